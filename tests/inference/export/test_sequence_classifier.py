"""A linear head on any pooling is what transformers' own classifiers compute, in every architecture known."""

import itertools

import pytest
import torch
import transformers

from bertrio.core.errors import UserError
from bertrio.inference.export.sequence_classifier import FAMILIES, build_classifier
from bertrio.model.pooling import POOLINGS

SIZES = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
         "max_position_embeddings": 40, "initializer_range": 0.5}  # fmt: skip
OWN_SIZES = {
    "electra": {"embedding_size": 16},
    "distilbert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32},
    # as in DeBERTa-v3
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "share_att_key": True,
                   "position_buckets": 8, "norm_rel_ebd": "layer_norm", "position_biased_input": False,
                   "type_vocab_size": 0},
}  # fmt: skip
CONFIG_FILE = {"id2label": {0: "a", 1: "b", 2: "c"}, "problem_type": "single_label_classification"}
CLASSES = 3


def transformer(kind):
    torch.manual_seed(0)
    sizes = {} if kind == "distilbert" else SIZES
    names = (
        {"vocab_size": 50, "max_position_embeddings": 40, "initializer_range": 0.5} | sizes | OWN_SIZES.get(kind, {})
    )
    model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(kind, **names)).eval()
    if kind == "bert":  # zero in a new model, but not in a pretrained one, whose pooler may be unused
        torch.nn.init.normal_(model.pooler.dense.bias)
    return model


def head(classes=CLASSES, hidden=16, scale=1.0):
    generator = torch.Generator().manual_seed(1)
    return tuple(scale * torch.randn(*size, generator=generator) for size in ((classes, hidden), (classes,)))


def batch():
    """Three texts, one of them padded."""
    ids = torch.randint(5, 50, (3, 9), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    ids[0, 4:], mask[0, 4:] = 1, 0
    return {"input_ids": ids, "attention_mask": mask}


def difference(model, pooling, weight, bias):
    """Between the classifier and the head on the pooled vectors, as a share of the largest logit."""
    classifier = build_classifier(model, pooling, weight, bias, CONFIG_FILE)
    tokens = batch()
    with torch.inference_mode():
        expected = POOLINGS[pooling](model(**tokens), tokens["attention_mask"]) @ weight.T + bias
        return ((classifier(**tokens).logits - expected).abs().max() / expected.abs().max()).item()


@pytest.mark.parametrize(
    ("kind", "pooling", "scale"),
    [
        *itertools.product(FAMILIES, ("cls", "mean"), [1.0]), ("bert", "pooler", 1.0), ("roberta", "pooler", 1.0),
        *itertools.product(["bert"], ("cls", "mean"), [1e-3, 10.0]),  # small and large logits
    ],
)  # fmt: skip
def test_logits_are_those_of_the_head(kind, pooling, scale):
    assert difference(transformer(kind), pooling, *head(scale=scale)) < 1e-5


def test_the_encoder_itself_stays_as_it_was():
    model = transformer("bert")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    build_classifier(model, "mean", *head(), CONFIG_FILE)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.config.num_hidden_layers == 2


def test_unknown_architectures_and_too_many_classes_are_refused():
    with pytest.raises(UserError, match="8 logits do not fit into hidden size 16; use onnx"):
        build_classifier(transformer("bert"), "mean", *head(classes=8), CONFIG_FILE)
    model = transformers.MPNetModel(transformers.MPNetConfig(**SIZES))
    with pytest.raises(UserError, match="holds bert, .* found mpnet"):
        build_classifier(model, "cls", *head(), CONFIG_FILE)
