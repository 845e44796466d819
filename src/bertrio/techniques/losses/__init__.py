"""Losses: `(output, labels [B], *, options) -> scalar`, the mean over rows, in float32. None sees the model.

A loss reads the head's `outputs` [B, size] or its `cosine` [B], of any floating dtype. Other packages add theirs in the
entry-point group `bertrio.techniques.losses`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bertrio.core.plugins import blamed, check_options, choose, keyword_options
from bertrio.core.tasks import HeadOutput, Score, Target
from bertrio.techniques.losses.binary import bce, siamese_softmax
from bertrio.techniques.losses.classes import cross_entropy, dual_objective, ordinal_log_loss
from bertrio.techniques.losses.cosine import cosent, cosine_embedding, cosine_mse
from bertrio.techniques.losses.scores import mse, pearson
from bertrio.techniques.losses.weights import inverse_frequency

__all__ = ["LOSSES", "Loss", "build_loss", "inverse_frequency", "options_of"]

Loss = Callable[[HeadOutput, Tensor], Tensor]

LOSSES: dict[str, Callable[..., Tensor]] = {
    "cross_entropy": cross_entropy,
    "dual_objective": dual_objective,
    "ordinal_log_loss": ordinal_log_loss,
    "bce": bce,
    "siamese_softmax": siamese_softmax,
    "mse": mse,
    "pearson": pearson,
    "cosine_mse": cosine_mse,
    "cosine_embedding": cosine_embedding,
    "cosent": cosent,
}
LIMITS = {"low", "high"}  # arguments that come from the target
CLASS_WEIGHTS = {"inverse": inverse_frequency}


def options_of(name: str) -> set[str]:
    """The options that a user may give for the loss `name`.

    They are its keyword arguments, without those that the target decides, and with `class_weights` (how to make
    them) for `weights`.

    Raises:
        ValueError: if there is no such loss.
    """
    return _options(choose("losses", LOSSES, name)[0])


def _options(function: Callable[..., Tensor]) -> set[str]:
    options = keyword_options(function) - LIMITS
    return options - {"weights"} | {"class_weights"} if "weights" in options else options


def build_loss(
    name: str, target: Target, options: Mapping[str, Any], label_counts: Sequence[int] | None = None
) -> Loss:
    """The loss `name` for `target`, ready to be called with a head's output and labels.

    Args:
        name: a key of `LOSSES`, or of another package's.
        target: what the task predicts; its range goes to the losses that ask for one.
        options: as in `options_of`; those left out have their defaults. `class_weights` is `inverse` or None.
        label_counts: [C], training rows by class (binary: no, yes), for `class_weights`.

    Raises:
        ValueError: if the name, an option or its value is unknown or out of range, or the counts are missing.
        UserError: if another package's loss does not take the options, or fails on a row of the target.
    """
    function, plugin = choose("losses", LOSSES, name)
    with blamed(plugin):
        known = _options(function)
        check_options(options, known, f"loss {name}: ")
        arguments = {key: value for key, value in options.items() if key != "class_weights"}
        if options.get("class_weights") is not None:
            arguments["weights"] = _class_weights(options["class_weights"], label_counts)
        if keyword_options(function) >= LIMITS:
            low, high = (target.low, target.high) if isinstance(target, Score) else (0.0, 1.0)
            arguments |= {"low": low, "high": high}
        loss = partial(function, **arguments)
        _try_out(loss, name, target)
    return loss


def _class_weights(method: str, label_counts: Sequence[int] | None) -> Tensor:
    if method not in CLASS_WEIGHTS:
        raise ValueError(f"class_weights: expected {_listed(CLASS_WEIGHTS)} or None, found {method}")
    if label_counts is None:
        raise ValueError(f"label_counts: expected the rows of each class for class_weights {method}, found None")
    return CLASS_WEIGHTS[method](label_counts)


def _try_out(loss: Loss, name: str, target: Target) -> None:
    """Calls `loss` on one row of zeros, so that a wrong option is an error now and not in the first step."""
    output = HeadOutput(torch.zeros(1, target.outputs_for(name)), torch.zeros(1))
    result = loss(output, torch.zeros(1, dtype=getattr(torch, target.label_dtype)))
    if not isinstance(result, Tensor) or result.shape != () or result.dtype != torch.float32:
        found = f"{list(result.shape)}, {result.dtype}" if isinstance(result, Tensor) else type(result).__name__
        raise ValueError(f"loss {name}: gave {found}, expected a scalar in float32")


def _listed(names: Mapping[str, Any] | set[str]) -> str:
    """Alternatives, as an error message lists them."""
    return " or ".join(sorted(names))
