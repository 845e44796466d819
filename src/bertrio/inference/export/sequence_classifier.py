r"""A task's linear head as transformers' own classifier of the encoder's architecture.

These classifiers know one pooling: a dense layer and an activation on the first token, then a linear layer:

.. math:: o = W_2 \, f(W_1 h_1 + b_1) + b_2

Pooling `pooler` is the same. For the others, weights are chosen that compute the same function up to rounding, with
transformers' code alone:

- `cls`, :math:`o = W h_1 + b`: the logits pass the dense layer as pairs of units, one the negative of the other, and
  the last layer takes the difference. For ReLU and GELU :math:`f(x) - f(-x) = x`; for tanh, values are scaled so small
  that :math:`\tanh(x) - \tanh(-x) = 2x` up to rounding.
- `mean`, :math:`o = W \bar{h} + b`: one more transformer layer, whose queries and keys are zero. Its attention is the
  mean over all tokens but padding, and its values are the logits. They enter the residual stream as pairs, scaled so
  large that the hidden states in it vanish. A still larger constant beside them determines the scale by which
  LayerNorm divides.
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

TANH_SCALE = 2.0**-16  # scale of logits that pass tanh: at a logit of 100 its relative error is 8e-7
LOGIT_SCALE = 2.0**24  # scale of logits that are added to hidden states, which are around 1
CONSTANT_SCALE = 2.0**40  # scale of the constant beside the logits


@dataclass(frozen=True)
class Family:
    """Names of an architecture's modules.

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


def build_classifier(transformer: Any, pooling: str, weight: Tensor, bias: Tensor, labels: Mapping[str, Any]) -> Any:
    """Return the architecture's `...ForSequenceClassification` that computes `weight @ pooled + bias`.

    Args:
        transformer: the encoder.
        pooling: `cls`, `mean` or `pooler`.
        weight: weight of the head, [C, H].
        bias: bias of the head, [C].
        labels: fields of the config: id2label, label2id, problem_type.

    Raises:
        UserError: if the architecture or the number of classes is not supported.
    """
    from transformers import AutoModelForSequenceClassification

    config, (classes, hidden) = copy.deepcopy(transformer.config), weight.shape
    if config.model_type not in FAMILIES:
        raise UserError(f"--format classifier: holds {', '.join(FAMILIES)}, found {config.model_type}; use onnx")
    if pooling != "pooler" and 2 * classes + 2 > hidden:
        raise UserError(f"--format classifier: {classes} logits do not fit into hidden size {hidden}; use onnx")
    config.update(dict(labels))
    if pooling == "mean":
        config.num_hidden_layers += 1
    model = AutoModelForSequenceClassification.from_config(config).eval()
    prefix, family = model.base_model_prefix, FAMILIES[config.model_type]
    if pooling == "pooler":  # a dense layer and tanh, as in the classifier
        dense = transformer.pooler.dense
        filled = {"dense.weight": dense.weight, "dense.bias": dense.bias, "output.weight": weight}
    elif pooling == "cls":
        filled = _first(family, TANH_SCALE * weight)
    else:  # DistilBERT's config has no epsilon
        filled = _mean(family, weight, getattr(config, "layer_norm_eps", 0.0))
    layer = f"{prefix}.{family.layers}.{config.num_hidden_layers - 1}"
    modules = {"dense": family.dense, "output": family.output, "layer": layer}
    state = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    state |= {f"{prefix}.{name}": value for name, value in transformer.state_dict().items()}
    for name, value in (filled | {"output.bias": bias}).items():
        module, _, rest = name.partition(".")
        state[f"{modules[module]}.{rest}"] = value
    model.load_state_dict({name: state[name] for name in model.state_dict()})
    return model


def _first(family: Family, rows: Tensor) -> State:
    """Return the weights of both layers; `rows` [C, H] give TANH_SCALE times the logits of the first token."""
    classes, hidden = rows.shape
    return {
        "dense.weight": pairs_of(rows),
        "dense.bias": torch.zeros(hidden),  # overwrites the bias of the encoder's unused pooler
        "output.weight": differences(classes, hidden, 1 / (TANH_SCALE * family.slope)),
    }


def _mean(family: Family, weight: Tensor, eps: float) -> State:
    """Return the weights of the additional layer, which passes logits of the mean to `_first`.

    With the constant, the H values have mean 0 and standard deviation CONSTANT_SCALE sqrt(2 / H); `gain` is the factor
    of a logit after the norm and the difference. At the second norm the standard deviation is 1 already.
    """
    classes, hidden = weight.shape
    values, constant = torch.zeros(hidden, hidden), torch.zeros(hidden)
    values[:classes] = weight
    constant[-2:] = torch.tensor([CONSTANT_SCALE, -CONSTANT_SCALE])
    gain = 2 * LOGIT_SCALE / CONSTANT_SCALE * (hidden / 2) ** 0.5 / (1 + eps) ** 0.5
    return {
        f"layer.{family.values}.weight": values,
        f"layer.{family.joined}.weight": pairs_of(LOGIT_SCALE * torch.eye(hidden)[:classes]),
        f"layer.{family.joined}.bias": constant,
        **{f"layer.{norm}.weight": torch.ones(hidden) for norm in family.norms},
        **_first(family, differences(classes, hidden, TANH_SCALE / gain)),
    }


def pairs_of(rows: Tensor) -> Tensor:
    """Return a square matrix [H, H]: rows 2c and 2c + 1 are row c of `rows` [C, H] and its negative, others zero."""
    square = torch.zeros(rows.shape[1], rows.shape[1])
    square[: 2 * len(rows)] = torch.stack((rows, -rows), dim=1).flatten(0, 1)
    return square


def differences(classes: int, hidden: int, factor: float) -> Tensor:
    """Return a matrix [C, H] that takes the difference of units 2c and 2c + 1, times `factor`."""
    return factor * pairs_of(torch.eye(hidden)[:classes]).T[:classes]
