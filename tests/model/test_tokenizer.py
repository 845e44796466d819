import copy
import subprocess
import sys

import pytest

from bertrio.core.errors import UserError
from bertrio.model.tokenizer import load_tokenizer

TRAIN = """
import random, sys
from bertrio.model.tokenizer import build_tokenizer
from bertrio.config import load_params
words = ["".join(random.Random(i).choices("abcde", k=5)) for i in range(1500)]
texts = [" ".join(random.Random(i).choices(words, k=9)) for i in range(1500)]
build_tokenizer(load_params("params.yaml").encoder, texts, sys.argv[1])
"""


def test_vocabulary_is_the_same_bytes_in_every_process(root, tmp_path, monkeypatch):
    monkeypatch.chdir(root)
    environment = {"PYTHONPATH": "src", "PYTHONHASHSEED": "12345"}  # sets are in another order than here
    subprocess.run([sys.executable, "-c", TRAIN, tmp_path / "1"], env=environment, check=True)
    monkeypatch.setattr(sys, "argv", ["", tmp_path / "0"])
    exec(TRAIN, {})
    assert (tmp_path / "0/tokenizer.json").read_bytes() == (tmp_path / "1/tokenizer.json").read_bytes()


def test_a_tokenizer_without_padding_token_is_an_error(tokenizer, tmp_path):
    unpadded = copy.deepcopy(tokenizer)
    unpadded.pad_token = None
    unpadded.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="the tokenizer has no padding token"):
        load_tokenizer(tmp_path)
