"""Losses: `(output, labels [B], *, options) -> scalar`, the mean over rows, in float32.

A loss uses the head's `outputs` [B, size] or its `cosine` [B], of any floating dtype, and does not access the model.
Its options are its annotated keyword arguments; `low` and `high` come from the target. To add a loss, write the
function and add it to `LOSSES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from inspect import getfullargspec
from types import UnionType
from typing import Any, Literal, NamedTuple

from torch import Tensor

from bertrio.core.options import Group, options_of, read_options
from bertrio.core.tasks import Binary, Classes, HeadOutput, MultiLabel, Ordered, Score, Target
from bertrio.techniques.losses.binary import bce, siamese_softmax
from bertrio.techniques.losses.classes import cross_entropy, dual_objective, ordinal_log_loss
from bertrio.techniques.losses.cosine import cosent, cosine_embedding, cosine_mse
from bertrio.techniques.losses.negatives import multiple_negatives_ranking
from bertrio.techniques.losses.scores import mse, pearson
from bertrio.techniques.losses.weights import inverse_frequency

Loss = Callable[[HeadOutput, Tensor], Tensor]


class LossKind(NamedTuple):
    """A loss and the kinds of target that it supports.

    `rows` is the fewest rows of a batch from which it learns: 2 or more if it compares rows and is not a mean over
    them, so that a batch cannot be cut into pieces.
    """

    function: Callable[..., Tensor]
    targets: type[Target] | UnionType
    rows: int = 1

    @property
    def whole_batch(self) -> bool:
        """Whether the loss compares the rows of a batch."""
        return self.rows > 1


LOSSES: dict[str, LossKind] = {
    "cross_entropy": LossKind(cross_entropy, Classes),
    "dual_objective": LossKind(dual_objective, Classes),
    "ordinal_log_loss": LossKind(ordinal_log_loss, Ordered),
    "bce": LossKind(bce, Binary | MultiLabel),
    "siamese_softmax": LossKind(siamese_softmax, Binary),
    "mse": LossKind(mse, Score),
    "pearson": LossKind(pearson, Score, rows=3),
    "cosine_mse": LossKind(cosine_mse, Binary | Score),
    "cosine_embedding": LossKind(cosine_embedding, Binary | Score),
    "cosent": LossKind(cosent, Binary | Score, rows=2),
    "multiple_negatives_ranking": LossKind(multiple_negatives_ranking, Binary | Score, rows=2),
}
FROM_TARGET = {"low", "high"}  # arguments that users do not set


def losses_for(target: Target) -> list[str]:
    """Return the names of the losses that support `target`."""
    return [name for name, kind in LOSSES.items() if isinstance(target, kind.targets)]


@lru_cache
def loss_options(name: str) -> type[Group]:
    """Return the options of the loss `name` that users may set: `class_weights` replaces its `weights`."""
    function = LOSSES[name].function
    names = getfullargspec(function).kwonlyargs
    more = {"class_weights": (Literal["inverse"], None)} if "weights" in names else {}
    return options_of(function, [name for name in names if name not in {"weights", *FROM_TARGET}], **more)


def build_loss(name: str, target: Target, options: Mapping[str, Any], label_counts: Sequence[int] = ()) -> Loss:
    """Build the loss `name` for `target`, a function of a head's output and labels.

    Args:
        name: a key of `LOSSES`.
        target: target of the task, whose range is passed to losses with `low` and `high`.
        options: as in `loss_options`; options that are left out have their defaults.
        label_counts: [C], training rows by class (binary: no, yes), for `class_weights`.

    Raises:
        ValueError: if an option or its value is unknown or out of range, or the loss does not fit the target.
    """
    arguments = read_options(loss_options(name), options, f"loss {name}")
    if name not in (fits := losses_for(target)):
        kind = type(target).__name__.lower()
        raise ValueError(f"loss {name} does not fit target {kind}: expected {' or '.join(fits)}")
    if arguments.pop("class_weights", None):
        arguments["weights"] = inverse_frequency(label_counts)
    function = LOSSES[name].function
    if FROM_TARGET.issubset(getfullargspec(function).kwonlyargs):
        low, high = (target.low, target.high) if isinstance(target, Score) else (0.0, 1.0)
        arguments |= {"low": low, "high": high}
    return partial(function, **arguments)
