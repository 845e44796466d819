r"""A task's linear head as the classifier that transformers has for the encoder's architecture.

Those classifiers pool in one way only: a dense layer and an activation on the first token, then a linear layer:

.. math:: o = W_2 \, f(W_1 h_1 + b_1) + b_2

Pooling `pooler` is just that. For the others the weights are chosen such that the same function comes out, up to
rounding, with no code but that of transformers:

- `cls`, :math:`o = W h_1 + b`: the logits pass the dense layer as pairs of units, one the negative of the other, and
  the last layer takes the difference. For ReLU and GELU :math:`f(x) - f(-x) = x`; tanh is given numbers so small that
  :math:`\tanh(x) - \tanh(-x) = 2x` to within rounding.
- `mean`, :math:`o = W \bar{h} + b`: one more transformer layer, whose queries and keys are zero. Its attention is the
  mean over all tokens but padding, and its values are the logits. LayerNorm would divide them by their own size; they
  go into the residual stream as pairs as well, together with a much larger constant, so that it divides by the
  constant's. And they are made much larger themselves than what is in the stream, which vanishes beside them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

State = dict[str, Tensor]

SMALL = 2.0**-16  # of logits that pass tanh: at a logit of 100 its bend is 8e-7 of it
LOUD = 2.0**24  # of logits beside the hidden states that they are added to, whose numbers are around 1
LOUDER = 2.0**40  # of the constant beside the logits


@dataclass(frozen=True)
class Family:
    """What an architecture calls the parts that matter here.

    Attributes:
        dense: the layer in front of the activation, in the classifier.
        output: the linear layer behind it.
        slope: of f(x) - f(-x) at 0: 2 for tanh, 1 for ReLU and GELU.
        layers: of the encoder; values, joined (what attention gives goes through it), and two norms inside of each.
    """

    dense: str
    output: str
    slope: float
    layers: str = "encoder.layer"
    values: str = "attention.self.value"
    joined: str = "attention.output.dense"
    norms: tuple[str, str] = ("attention.output.LayerNorm", "output.LayerNorm")


ROBERTA = Family("classifier.dense", "classifier.out_proj", slope=2)
FAMILIES: dict[str, Family] = {
    "bert": Family("bert.pooler.dense", "classifier", slope=2),
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "electra": Family("classifier.dense", "classifier.out_proj", slope=1),
    "deberta-v2": Family("pooler.dense", "classifier", slope=1, values="attention.self.value_proj"),
    "distilbert": Family(
        "pre_classifier",
        "classifier",
        slope=1,
        layers="transformer.layer",
        values="attention.v_lin",
        joined="attention.out_lin",
        norms=("sa_layer_norm", "output_layer_norm"),
    ),
}


MODERNBERT = "modernbert"  # pools both ways by itself, but then has a dense layer and a norm
KNOWN = (*FAMILIES, MODERNBERT)


def build_classifier(transformer: Any, pooling: str, weight: Tensor, bias: Tensor, about: Mapping[str, Any]) -> Any:
    """The architecture's `...ForSequenceClassification`, which says `weight @ pooled + bias`.

    Args:
        transformer: the encoder.
        pooling: `cls`, `mean` or `pooler`.
        weight: [C, H], of the head.
        bias: [C].
        about: fields of its config: id2label, label2id, problem_type.

    Raises:
        ValueError: with the reason, if the architecture or this number of classes can't have it.
    """
    from transformers import AutoModelForSequenceClassification

    config = copy.deepcopy(transformer.config)
    if config.model_type not in KNOWN:
        raise ValueError(f"not known how for {config.model_type} models, only for {', '.join(KNOWN)}")
    if pooling != "pooler" and 2 * len(weight) + 2 > weight.shape[1]:
        raise ValueError(f"{len(weight)} logits do not fit into a hidden size of {weight.shape[1]}")
    config.update(dict(about))
    if config.model_type == MODERNBERT:
        config.update({"classifier_pooling": pooling, "classifier_activation": "linear", "classifier_bias": True})
    elif pooling == "mean":
        config.num_hidden_layers += 1
    model = AutoModelForSequenceClassification.from_config(config).eval()
    prefix, own = model.base_model_prefix, model.state_dict()
    body = {f"{prefix}.{name}": value for name, value in transformer.state_dict().items()}
    empty = {name: torch.zeros_like(value) for name, value in own.items() if name not in body}
    filled = _filled(config, prefix, pooling, transformer, weight, bias)
    model.load_state_dict({name: value for name, value in (body | empty | filled).items() if name in own})
    return model


def _filled(config: Any, prefix: str, pooling: str, transformer: Any, weight: Tensor, bias: Tensor) -> State:
    """The classifier's weights that are not the encoder's, but for those that are zero."""
    if config.model_type == MODERNBERT:
        return _modernbert(weight) | {"classifier.bias": bias}
    family = FAMILIES[config.model_type]
    if pooling == "pooler":
        found = _pooler(family, transformer.pooler.dense, weight)
    elif pooling == "cls":
        found = _first(family, SMALL * weight)
    else:
        layer = f"{prefix}.{family.layers}.{config.num_hidden_layers - 1}"
        found = _mean(
            family, layer, weight, getattr(config, "layer_norm_eps", 0.0)
        )  # DistilBERT's is not worth a param
    return found | {f"{family.output}.bias": bias}


def _pooler(family: Family, dense: torch.nn.Linear, weight: Tensor) -> State:
    """The pooler, a dense layer and tanh, and the head behind it, as they are."""
    if family.slope != 2:
        raise ValueError("its pooler has tanh, and its classifier another activation")
    return {
        f"{family.dense}.weight": dense.weight,
        f"{family.dense}.bias": dense.bias,
        f"{family.output}.weight": weight,
    }


def _first(family: Family, rows: Tensor) -> State:
    """The dense layer on the first token, of which `rows` [C, H] make SMALL times the logits, and what takes those."""
    classes, hidden = rows.shape
    return {
        f"{family.dense}.weight": pairs_of(rows),
        f"{family.dense}.bias": torch.zeros(hidden),
        f"{family.output}.weight": differences(classes, hidden, 1 / (SMALL * family.slope)),
    }


def _mean(family: Family, layer: str, weight: Tensor, eps: float) -> State:
    """The last `layer`, which hands logits of the mean to `_first`. Of its two norms, the second finds a standard
    deviation of 1."""
    classes, hidden = weight.shape
    values = torch.zeros(hidden, hidden)
    values[:classes] = weight
    gain = gain_of(hidden) / (1 + eps) ** 0.5
    return {
        f"{layer}.{family.values}.weight": values,
        f"{layer}.{family.joined}.weight": pairs_of(LOUD * torch.eye(hidden)[:classes]),
        f"{layer}.{family.joined}.bias": constant_of(hidden),
        **{f"{layer}.{norm}.weight": torch.ones(hidden) for norm in family.norms},
        **_first(family, differences(classes, hidden, SMALL / gain)),
    }


def _modernbert(weight: Tensor) -> State:
    """A dense layer on the pooled vector, without activation, and a norm, against which the constant helps here too."""
    classes, hidden = weight.shape
    return {
        "head.dense.weight": pairs_of(LOUD * weight),
        "head.dense.bias": constant_of(hidden),
        "head.norm.weight": torch.ones(hidden),
        "classifier.weight": differences(classes, hidden, 1 / gain_of(hidden)),
    }


def pairs_of(rows: Tensor) -> Tensor:
    """A square matrix [H, H]: rows 2c and 2c + 1 are row c of `rows` [C, H] and its negative, and others zero."""
    square = torch.zeros(rows.shape[1], rows.shape[1])
    square[: 2 * len(rows)] = torch.stack((rows, -rows), dim=1).flatten(0, 1)
    return square


def differences(classes: int, hidden: int, factor: float) -> Tensor:
    """A matrix [C, H] that takes the difference of units 2c and 2c + 1, times `factor`."""
    return factor * pairs_of(torch.eye(hidden)[:classes]).T[:classes]


def constant_of(hidden: int) -> Tensor:
    """What is added to H numbers so that they have mean 0 and standard deviation LOUDER sqrt(2 / H): [H]."""
    constant = torch.zeros(hidden)
    constant[-2:] = torch.tensor([LOUDER, -LOUDER])
    return constant


def gain_of(hidden: int) -> float:
    """What a logit is multiplied by when it was added as a pair, LOUD and -LOUD times itself, beside the constant, and
    the difference is taken behind the norm."""
    return 2 * LOUD / LOUDER * (hidden / 2) ** 0.5
