import shutil

import numpy as np
import pandas as pd
import pytest
import torch

from bertrio.core.errors import UserError
from bertrio.core.files import read_json, write_json
from bertrio.core.runtime import Runtime, set_up
from bertrio.inference.trained_model import TrainedModel
from bertrio.model.config import ModelConfig
from bertrio.model.encoder import initial_transformer
from bertrio.model.multitask import build_model, load_model, save_model

TEXTS = pd.DataFrame({"text": ["a good film", "why", "is this a good question or a bad one", "bad", "the film is bad"]})
PAIRS = pd.DataFrame({"text_a": TEXTS["text"], "text_b": TEXTS["text"][::-1].tolist()})


def runtime(compute=torch.float32):
    return Runtime(torch.device("cpu"), compute)


@pytest.fixture(scope="module")
def folder(default_params, tokenizer, tokenizer_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    set_up(1, "cpu", "float32")
    initial_transformer(default_params.encoder, len(tokenizer)).save_pretrained(folder / "start")
    model = build_model(default_params, folder / "start", runtime())
    save_model(model, folder / "saved", ModelConfig.from_params(default_params), tokenizer_folder)
    return folder / "saved"


def test_bf16_weights_equal_autocast_bit_for_bit(folder):
    trained = TrainedModel.load(folder, runtime(torch.bfloat16), batch_size=2)
    slow = TrainedModel.load(folder, runtime(torch.bfloat16), batch_size=2)
    slow.network = load_model(folder, runtime(torch.bfloat16))  # casts its weights in every pass
    assert next(trained.network.encoder.transformer.encoder.parameters()).dtype == torch.bfloat16
    for task, texts in (("sst", TEXTS), ("qqp", PAIRS)):
        assert np.array_equal(trained.predict(task, texts).probabilities, slow.predict(task, texts).probabilities)


def test_non_finite_outputs_are_an_error(folder):
    trained = TrainedModel.load(folder, runtime(), 64)
    with torch.no_grad():
        trained.network.heads["sst"].output.bias[2] = torch.nan
    with pytest.raises(UserError, match="task sst: the model's outputs are not finite; its training diverged"):
        trained.predict("sst", TEXTS)


def test_tokens_unknown_to_the_model_are_an_error(folder, tmp_path):
    config = shutil.copytree(folder, tmp_path / "model") / "encoder/tokenizer_config.json"
    write_json(config, read_json(config) | {"cls_token": "[NEW]"})
    with pytest.raises(UserError, match=r"model/encoder: found a tokenizer of \d+ .* expected \d+ tokens at most"):
        TrainedModel.load(tmp_path / "model", runtime())


def test_the_prefinetuned_task_counts_as_trained(default_params):
    schedule = default_params.schedule.model_copy(update={"tasks": ["sst"]})
    prefinetune = default_params.prefinetune.model_copy(update={"task": "qqp", "epochs": 1})
    params = default_params.model_copy(update={"schedule": schedule})
    assert ModelConfig.from_params(params).trained == ["sst"]
    assert ModelConfig.from_params(params.model_copy(update={"prefinetune": prefinetune})).trained == ["sst", "qqp"]
