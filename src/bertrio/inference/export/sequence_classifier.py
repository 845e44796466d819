r"""A task's linear head as transformers' own classifier of the encoder's architecture.

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

from bertrio.core.errors import UserError

State = dict[str, Tensor]

SMALL = 2.0**-16  # of logits that pass tanh: at a logit of 100 its bend is 8e-7 of it
LOUD = 2.0**24  # of logits beside the hidden states that they are added to, whose numbers are around 1
LOUDER = 2.0**40  # of the constant beside the logits


@dataclass(frozen=True)
class Family:
    """Names of an architecture's parts.

    Attributes:
        dense: linear layer before the classifier's activation.
        output: linear layer after it.
        slope: slope of f(x) - f(-x) at 0: 2 for tanh, 1 for ReLU and GELU.
        layers: layers of the encoder.
        values: value projection of a layer's attention.
        joined: output projection of a layer's attention.
        norms: norms of a layer.
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


def build_classifier(transformer: Any, pooling: str, weight: Tensor, bias: Tensor, about: Mapping[str, Any]) -> Any:
    """Return the architecture's `...ForSequenceClassification` that computes `weight @ pooled + bias`.

    Args:
        transformer: the encoder.
        pooling: `cls`, `mean` or `pooler`.
        weight: weight of the head, [C, H].
        bias: bias of the head, [C].
        about: fields of the config: id2label, label2id, problem_type.

    Raises:
        UserError: if the architecture or the number of classes allows no such weights.
    """
    from transformers import AutoModelForSequenceClassification

    config, (classes, hidden) = copy.deepcopy(transformer.config), weight.shape
    if config.model_type not in FAMILIES:
        raise UserError(f"--format classifier: holds {', '.join(FAMILIES)}, found {config.model_type}; use onnx")
    if pooling != "pooler" and 2 * classes + 2 > hidden:
        raise UserError(f"--format classifier: {classes} logits do not fit into hidden size {hidden}; use onnx")
    config.update(dict(about))
    if pooling == "mean":
        config.num_hidden_layers += 1
    model = AutoModelForSequenceClassification.from_config(config).eval()
    prefix, family = model.base_model_prefix, FAMILIES[config.model_type]
    if pooling == "pooler":  # a dense layer and tanh, as in the classifier
        dense = transformer.pooler.dense
        filled = {"dense.weight": dense.weight, "dense.bias": dense.bias, "output.weight": weight}
    elif pooling == "cls":
        filled = _first(family, SMALL * weight)
    else:  # DistilBERT's epsilon is no param
        filled = _mean(family, weight, getattr(config, "layer_norm_eps", 0.0))
    layer = f"{prefix}.{family.layers}.{config.num_hidden_layers - 1}"
    places = {"dense": family.dense, "output": family.output, "layer": layer}
    state = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    state |= {f"{prefix}.{name}": value for name, value in transformer.state_dict().items()}
    for name, value in (filled | {"output.bias": bias}).items():
        place, _, rest = name.partition(".")
        state[f"{places[place]}.{rest}"] = value
    model.load_state_dict({name: state[name] for name in model.state_dict()})
    return model


def _first(family: Family, rows: Tensor) -> State:
    """Return the weights of both layers, where `rows` [C, H] give SMALL times the logits of the first token."""
    classes, hidden = rows.shape
    return {
        "dense.weight": pairs_of(rows),
        "dense.bias": torch.zeros(hidden),  # not that of the encoder's pooler, which is not in use
        "output.weight": differences(classes, hidden, 1 / (SMALL * family.slope)),
    }


def _mean(family: Family, weight: Tensor, eps: float) -> State:
    """Return the weights of the additional layer, which hands logits of the mean to `_first`.

    The constant gives H small numbers mean 0 and standard deviation LOUDER sqrt(2 / H); `gain` is the factor of a logit
    after the norm and the difference. The second of the layer's two norms finds a standard deviation of 1.
    """
    classes, hidden = weight.shape
    values, constant = torch.zeros(hidden, hidden), torch.zeros(hidden)
    values[:classes] = weight
    constant[-2:] = torch.tensor([LOUDER, -LOUDER])
    gain = 2 * LOUD / LOUDER * (hidden / 2) ** 0.5 / (1 + eps) ** 0.5
    return {
        f"layer.{family.values}.weight": values,
        f"layer.{family.joined}.weight": pairs_of(LOUD * torch.eye(hidden)[:classes]),
        f"layer.{family.joined}.bias": constant,
        **{f"layer.{norm}.weight": torch.ones(hidden) for norm in family.norms},
        **_first(family, differences(classes, hidden, SMALL / gain)),
    }


def pairs_of(rows: Tensor) -> Tensor:
    """Return a square matrix [H, H]: rows 2c and 2c + 1 are row c of `rows` [C, H] and its negative, others zero."""
    square = torch.zeros(rows.shape[1], rows.shape[1])
    square[: 2 * len(rows)] = torch.stack((rows, -rows), dim=1).flatten(0, 1)
    return square


def differences(classes: int, hidden: int, factor: float) -> Tensor:
    """Return a matrix [C, H] that takes the difference of units 2c and 2c + 1, times `factor`."""
    return factor * pairs_of(torch.eye(hidden)[:classes]).T[:classes]
