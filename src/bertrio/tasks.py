"""What a task is: a kind of text, a kind of target, and everything that follows from the target's kind.

All branching by kind of target lives in the `Target` classes: how many outputs a head has, which labels are allowed,
how outputs become predictions, and which metrics apply. The rest of the project asks the target and never its kind.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # this module starts fast: it imports no torch
    from torch import Tensor

TEXT_COLUMNS = {"single": ("text",), "pair": ("text_a", "text_b")}


Array = NDArray[np.float64]


class HeadOutput(NamedTuple):
    """What a head says of a batch, and all that a loss gets to see of the model.

    `outputs` [B, size], on the scale that `Target.predict` reads, and the raw `cosine` [B] of heads whose outputs
    are a function of a cosine similarity.
    """

    outputs: Tensor
    cosine: Tensor | None = None


class Predicted(NamedTuple):
    """What outputs say: `values` [B], and `probabilities` [B, C] or raw `scores` [B]."""

    values: Array
    probabilities: Array | None
    scores: Array | None

    def take(self, rows: Sequence[int]) -> Predicted:
        """The predictions of some rows."""
        places = np.asarray(rows, dtype=np.int64)
        return Predicted(*[None if part is None else part[places] for part in self])


class Target(ABC):
    """What a task predicts."""

    size: int  # outputs of a head, unless the loss wants another number
    losses: tuple[str, ...]  # names of the losses that fit, the usual one first
    divergence: str  # name in regularizers/divergences.py: how far apart two outputs for the same row are
    metrics: tuple[str, ...]  # names in evaluation/metrics.py, the one that stands for the task first
    discrete: bool  # labels are class indices: members can vote, labels can be counted
    label_dtype: str  # what the losses take: "int64" or "float32"
    symmetric: bool  # whether the answer for a pair stays the same when its texts change places
    margin: float = 0.5  # a value that is further than this from another says something else

    def outputs_for(self, loss: str) -> int:
        """How many outputs a head needs that is trained by `loss`."""
        return self.size

    @abstractmethod
    def label_problem(self, label: float) -> str | None:
        """Why `label` can't be used, as a short fixed phrase; None if it can."""

    @abstractmethod
    def predict(self, outputs: Array) -> Predicted:
        """Turns a head's outputs [B, size] into predictions."""

    def change(self, before: Predicted, after: Predicted) -> tuple[NDArray[np.bool_], Array]:
        """Whether the prediction of each row [B] is another one, and how far it moved.

        How far: the absolute change of the probability of the class that was predicted before.
        """
        rows, classes = np.arange(len(before.values)), before.values.astype(np.int64)
        moved = np.abs(after.probabilities[rows, classes] - before.probabilities[rows, classes])
        return before.values != after.values, moved


@dataclass(frozen=True)
class Classes(Target):
    """One of `count` classes, numbered from 0."""

    count: int

    losses = ("cross_entropy", "dual_objective")
    divergence = "categorical"
    metrics = ("accuracy", "macro_f1", "balanced_accuracy", "ece", "brier")
    discrete = True
    label_dtype = "int64"
    symmetric = False  # as in "the first text follows from the second"

    @property
    def size(self) -> int:
        return self.count

    def label_problem(self, label: float) -> str | None:
        if not math.isfinite(label):
            return "label is not a number"
        if label != int(label) or not 0 <= label < self.count:
            return "label out of range"
        return None

    def predict(self, outputs: Array) -> Predicted:
        odds = np.exp(outputs - outputs.max(axis=-1, keepdims=True))
        probabilities = odds / odds.sum(axis=-1, keepdims=True)
        return Predicted(probabilities.argmax(axis=-1).astype(np.float64), probabilities, None)


@dataclass(frozen=True)
class Ordered(Classes):
    """One of `count` classes that have an order, such as degrees of sentiment."""

    losses = ("cross_entropy", "dual_objective", "ordinal_log_loss")
    metrics = ("accuracy", "macro_f1", "balanced_accuracy", "off_by_one", "mae", "quadratic_kappa", "ece", "brier")


@dataclass(frozen=True)
class Binary(Target):
    """Yes (1) or no (0), from one logit, or from two (no, yes) for `siamese_softmax`."""

    size = 1
    losses = ("bce", "siamese_softmax", "cosine_mse", "cosine_embedding", "cosent")
    divergence = "bernoulli"
    metrics = ("accuracy", "f1", "roc_auc", "average_precision", "ece", "brier")
    discrete = True
    label_dtype = "float32"
    symmetric = True

    def outputs_for(self, loss: str) -> int:
        return 2 if loss == "siamese_softmax" else 1

    def label_problem(self, label: float) -> str | None:
        if not math.isfinite(label):
            return "label is not a number"
        return None if label in (0.0, 1.0) else "label out of range"

    def predict(self, outputs: Array) -> Predicted:
        logit = outputs[:, -1] - outputs[:, 0] if outputs.shape[1] == 2 else outputs[:, 0]
        yes = 0.5 * (1 + np.tanh(logit / 2))  # the sigmoid, without overflow
        return Predicted((yes > 0.5).astype(np.float64), np.stack((1 - yes, yes), axis=-1), None)


@dataclass(frozen=True)
class Score(Target):
    """A number from `low` to `high`."""

    low: float
    high: float

    size = 1
    losses = ("mse", "pearson", "cosine_mse", "cosine_embedding", "cosent")
    divergence = "squared"
    metrics = ("pearson", "spearman", "rmse")
    discrete = False
    label_dtype = "float32"
    symmetric = True

    @property
    def margin(self) -> float:
        """A tenth of the range."""
        return (self.high - self.low) / 10

    def label_problem(self, label: float) -> str | None:
        if not math.isfinite(label):
            return "label is not a number"
        return None if self.low <= label <= self.high else "label out of range"

    def predict(self, outputs: Array) -> Predicted:
        scores = outputs[:, 0]
        return Predicted(scores.clip(self.low, self.high), None, scores)

    def change(self, before: Predicted, after: Predicted) -> tuple[NDArray[np.bool_], Array]:
        """As for classes, where a score is another one if it moved by more than `margin`."""
        moved = np.abs(after.values - before.values)
        return moved > self.margin, moved


@dataclass(frozen=True)
class Task:
    """One thing to learn: `kind` of text (`single` sentence or `pair`), `encoding` of pairs, and `target`."""

    name: str
    kind: str
    encoding: str
    target: Target

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The columns of a row table that hold the text."""
        return TEXT_COLUMNS[self.kind]


def build_target(name: str, classes: int | None = None, limits: tuple[float, float] | None = None) -> Target:
    """The target of kind `name`: `classes`, `ordered`, `binary` or `score`."""
    if name == "binary":
        return Binary()
    if name == "score":
        return Score(*limits)
    return {"classes": Classes, "ordered": Ordered}[name](classes)
