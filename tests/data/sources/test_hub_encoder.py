"""Encoders from the hub: the real client against the stand-in hub, in a process of its own that reads HF_ENDPOINT."""

import hashlib
import json

import pytest

A, B = ("a" * 40, "b" * 40)  # commits

CLIENT = """
from bertrio.model.encoder import initial_transformer
from bertrio.model.names import hub_origin
from bertrio.model.tokenizer import build_tokenizer, pinned
from bertrio.config import load_params

def answer(order):
    encoder = load_params(order["params"]).encoder
    params = encoder.model_copy(update={"name": order["name"], "revision": order["revision"]})
    if order["do"] == "tokenizer":
        return {"size": len(build_tokenizer(params, [], order["folder"]))}
    params = pinned(params, order["folder"])
    model = initial_transformer(params, 7)
    model.save_pretrained(order["folder"] + "/saved")
    return {"bias": model.pooler.dense.bias[0].item(), "origin": hub_origin(params.name, params.revision)}
"""


def encoder_files(folder, bias):
    """The files of a small BERT whose pooler has this bias, and a few that are no part of one."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "film"]
    BertTokenizerFast(vocab={word: i for i, word in enumerate(words)}).save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = BertModel(BertConfig(vocab_size=len(words), **sizes))
    torch.nn.init.constant_(model.pooler.dense.bias, bias)
    model.save_pretrained(folder)
    made = {path.name: path.read_bytes() for path in folder.iterdir()}
    return made | {"pytorch_model.bin": b"pickle", "own.py": b"code", "onnx/config.json": b"{}", "README.md": b"-"}


@pytest.fixture(scope="module")
def repository(stand_in_hub, tmp_path_factory):
    files = {commit: encoder_files(tmp_path_factory.mktemp("bert"), bias) for commit, bias in ((A, 1.0), (B, 2.0))}
    return stand_in_hub.Repository(files, {"main": A})


@pytest.fixture
def hub(stand_in_hub, repository, tmp_path, root):
    """A function that asks a client, and the requests that reached the hub."""
    same = {"params": str(root / "params.yaml"), "folder": str(tmp_path / "tokenizer")}
    served = stand_in_hub.serve({"org/bert": repository})
    with served as (url, requests), stand_in_hub.client(CLIENT, url, tmp_path / "hub") as client:

        def ask(do, name="org/bert", revision=None):
            return client({"do": do, "name": name, "revision": revision, **same})

        yield ask, requests


def test_tokenizer_and_weights_are_of_one_commit_though_the_branch_moves_on(hub, repository, tmp_path):
    ask, requests = hub
    assert ask("tokenizer") == {"size": 7}
    assert json.loads((tmp_path / "tokenizer/source.json").read_text()) == {"id": "org/bert", "commit": A}
    repository.refs["main"] = B
    result = ask("encoder")
    assert result["bias"] == 1.0
    wanted = {
        name: hashlib.sha256(content).hexdigest()
        for name, content in repository.files[A].items()
        if name.endswith((".json", ".safetensors")) and "/" not in name
    }
    assert result["origin"] == {"id": "org/bert", "commit": A, "files": wanted}
    assert not [line for line in requests if line.endswith((".bin", ".py", "onnx/config.json"))]
    saved = json.loads((tmp_path / "tokenizer/saved/config.json").read_text())
    assert str(tmp_path) not in json.dumps(saved)


def test_what_the_hub_does_not_have_says_so(hub):
    ask, _ = hub
    for name, revision in (("org/none", None), ("org/bert", "v9"), ("not an id", None)):
        message = ask("tokenizer", name, revision)["error"]
        assert f"encoder.name: {name}: can't be loaded" in message and "without a network" in message
