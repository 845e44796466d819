"""Model folders to export: a small BERT with the heads of the default tasks, or others."""

from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml

from bertrio.config import load_params, merged, read_yaml
from bertrio.core.runtime import Runtime, set_up
from bertrio.model.config import ModelConfig
from bertrio.model.encoder import initial_transformer
from bertrio.model.multitask import build_model, save_model
from tests.linear_heads import LINEAR_HEADS

SMALL = {"encoder": {"max_length": 24, "tiny": {"vocab_size": 200, "hidden_size": 16, "layers": 1, "heads": 2,
                                                "intermediate_size": 32}}}  # fmt: skip
TEXTS = ["a good film", "bad", "why is this the question ? the film is good", "a bad question " * 20]
SINGLE = pd.DataFrame({"text": TEXTS})
PAIRS = pd.DataFrame({"text_a": TEXTS, "text_b": TEXTS[1:] + TEXTS[:1]})
POOLINGS = ("cls", "mean", "pooler")


def bi_encoded(**options):
    """Return task overrides for sts with encoding bi, head cosine and these head options."""
    return {"sts": {"encoding": "bi", "head": "cosine", "head_options": options}}


@pytest.fixture(scope="session")
def make_model(root, tokenizer_folder, tmp_path_factory):
    """`make_model(**overrides)`: the folder of a model with random weights, of the default params with overrides."""

    def make(**overrides) -> Path:
        work = tmp_path_factory.mktemp("model")
        params = merged(merged(read_yaml(root / "params.yaml"), SMALL | LINEAR_HEADS), overrides)
        (work / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
        params = load_params(work / "params.yaml")
        set_up(1, "cpu", "float32")
        initial_transformer(params.encoder, 200).save_pretrained(work / "start")
        model = build_model(params, work / "start", Runtime(torch.device("cpu"), torch.float32))
        save_model(model, work / "base", ModelConfig.from_params(params), tokenizer_folder)
        return work / "base"

    return make


@pytest.fixture(scope="session")
def models(make_model):
    """The model of each pooling."""
    return {pooling: make_model(encoder={"pooling": pooling}) for pooling in POOLINGS}


@pytest.fixture(scope="session")
def bi_model(make_model):
    """A model that bi-encodes sts, with a projection before the cosine."""
    return make_model(tasks=bi_encoded(scaling="affine", projection=True, activation="tanh"))


@pytest.fixture(scope="session")
def load():
    """`load(folder)`: the model in float32 on the CPU."""
    from bertrio.inference.trained_model import TrainedModel

    return lambda folder: TrainedModel.load(folder, Runtime(torch.device("cpu"), torch.float32))
