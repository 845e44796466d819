"""Classifiers of transformers give the logits of a linear head on any pooling, in each architecture."""

import itertools

import pytest
import torch
from transformers import AutoModel

from bertrio.core.errors import UserError
from bertrio.inference.export.sequence_classifier import FAMILIES, build_classifier
from bertrio.model.pooling import POOLINGS
from tests.model.test_encoder import config_of

CONFIG_FILE = {"id2label": {0: "a", 1: "b", 2: "c"}, "problem_type": "single_label_classification"}


def transformer(kind):
    torch.manual_seed(0)
    config = config_of(kind)
    config.initializer_range = 0.5
    model = AutoModel.from_config(config).eval()
    if kind == "bert":  # zero in a new model, but not in a pretrained one, whose pooler may be unused
        torch.nn.init.normal_(model.pooler.dense.bias)
    return model


def head(classes=3, scale=1.0):
    generator = torch.Generator().manual_seed(1)
    return tuple(scale * torch.randn(*size, generator=generator) for size in ((classes, 32), (classes,)))


@pytest.mark.parametrize(
    ("kind", "pooling", "scale"),
    [
        *itertools.product(FAMILIES, ("cls", "mean"), [1.0]), ("bert", "pooler", 1.0), ("roberta", "pooler", 1.0),
        *itertools.product(["bert"], ("cls", "mean"), [1e-3, 10.0]),  # small and large logits
    ],
)  # fmt: skip
def test_logits_match_the_head_on_pooled_vectors(kind, pooling, scale):
    model, (weight, bias) = transformer(kind), head(scale=scale)
    classifier = build_classifier(model, pooling, weight, bias, CONFIG_FILE)
    ids = torch.randint(5, 50, (3, 9), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    ids[0, 4:], mask[0, 4:] = 1, 0  # padding
    with torch.inference_mode():
        expected = POOLINGS[pooling](model(input_ids=ids, attention_mask=mask), mask) @ weight.T + bias
        difference = classifier(input_ids=ids, attention_mask=mask).logits - expected
    assert difference.abs().max() < 2e-5 * expected.abs().max()


def test_the_encoder_is_not_modified():
    model = transformer("bert")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    build_classifier(model, "mean", *head(), CONFIG_FILE)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.config.num_hidden_layers == 2


def test_unknown_architectures_and_too_many_classes_are_an_error():
    with pytest.raises(UserError, match="16 logits do not fit into hidden size 32; use onnx"):
        build_classifier(transformer("bert"), "mean", *head(classes=16), CONFIG_FILE)
    with pytest.raises(UserError, match="holds bert, .* found mpnet"):
        build_classifier(transformer("mpnet"), "cls", *head(), CONFIG_FILE)
