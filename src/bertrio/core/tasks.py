"""What a task is: a kind of text, a kind of target, and everything that follows from the target's kind.

What follows from the kind of target lives in the `Target` classes: how many outputs a head has, which labels are
allowed, how outputs become predictions, and which metrics apply. The rest of the project asks the target, and its kind
only where params are checked, a loss gets its limits, slices are cut, or a task is described.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # this module starts fast: it imports no torch
    from torch import Tensor

TEXT_COLUMNS = {"single": ("text",), "pair": ("text_a", "text_b")}
NUMBER = re.compile(r"\s*[-+]?\d+(\.\d*)?\s*")


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

    def map(self, change: Callable[[Array], Array]) -> Predicted:
        """Apply `change` to the values, and to the probabilities or scores."""
        parts: list[Any] = [None if part is None else change(part) for part in self]
        return Predicted(*parts)

    def take(self, rows: NDArray[np.int64] | Sequence[int]) -> Predicted:
        """Return the predictions of some rows."""
        return self.map(lambda part: part[np.asarray(rows, dtype=np.int64)])


class Target(ABC):
    """What a task predicts.

    `labels` are the names of the classes, in the order of their numbers, and () where they have none. `metric` is the
    metric that stands for the task where that is not the first of `measures`. Neither makes it another target:
    predictions are the same kind of numbers.
    """

    divergence: ClassVar[str]  # name in regularizers/divergences.py: how far apart two outputs for the same row are
    measures: ClassVar[tuple[str, ...]]  # names in evaluation/metrics.py, the usual one first
    leading: ClassVar[tuple[str, ...]]  # those that can stand for the task: the higher, the better the model
    discrete: ClassVar[bool]  # labels are class indices: members can vote, labels can be counted
    label_dtype: ClassVar[str]  # what the losses take: "int64" or "float32"
    symmetric: ClassVar[bool]  # whether the answer for a pair stays the same when its texts change places
    labels: tuple[str, ...] = ()
    metric: str | None = None

    @property
    @abstractmethod
    def size(self) -> int:
        """Outputs of a head, unless the loss wants another number."""

    @property
    def margin(self) -> float:
        """A value that is further than this from another says something else."""
        return 0.5

    @property
    def metrics(self) -> tuple[str, ...]:
        """All that the task is measured by, the metric that stands for it first."""
        first = self.metric or self.measures[0]
        return (first, *[name for name in self.measures if name != first])

    @property
    def outcomes(self) -> tuple[str, ...]:
        """What the probabilities of a prediction are of: the classes by name, or by number; () where there are none."""
        return self.labels

    def outputs_for(self, loss: str) -> int:
        """How many outputs a head needs that is trained by `loss`."""
        return self.size

    def number_of(self, label: Any) -> float:
        """The number of a label as a file has it: a class's name, or a number, or a number as text.

        Where a class is called by a number, names alone count: "1" may be the first of the classes 1, 2 and 3.

        Raises:
            ValueError: if it is neither.
        """
        if self.labels:
            whole = isinstance(label, float) and label.is_integer()  # a whole number in a column that had gaps
            name, names = str(int(label) if whole else label).strip(), list(self.labels)
            if isinstance(label, (bool, np.bool_)):  # from JSON or parquet; a text file spells it either way
                name, names = name.lower(), [each.lower() for each in names]
            if name in names:
                return float(names.index(name))
            if any(NUMBER.fullmatch(each) for each in names):
                raise ValueError(f"{label!r} is none of {', '.join(self.labels)}")
        return float(label)

    def name_of(self, value: float) -> str:
        """A label or prediction in words: the name of the class if it has one, else the number."""
        if self.labels and float(value).is_integer() and 0 <= value < len(self.labels):
            return self.labels[int(value)]
        return f"{value:g}"

    def label_problem(self, label: float) -> str | None:
        """Return why `label` can't be used, as a short fixed phrase; None if it can."""
        if not math.isfinite(label):
            return "label is not a number"
        return None if self.allows(label) else "label out of range"

    @abstractmethod
    def allows(self, label: float) -> bool:
        """Return whether a finite label is one of this target's."""

    @abstractmethod
    def predict(self, outputs: Array) -> Predicted:
        """Turn a head's outputs [B, size] into predictions."""

    def change(self, before: Predicted, after: Predicted) -> tuple[NDArray[np.bool_], Array]:
        """Whether the prediction of each row [B] is another one, and how far it moved.

        How far: the absolute change of the probability of the class that was predicted before.
        """
        assert before.probabilities is not None and after.probabilities is not None
        rows, classes = np.arange(len(before.values)), before.values.astype(np.int64)
        moved = np.abs(after.probabilities[rows, classes] - before.probabilities[rows, classes])
        return before.values != after.values, moved


@dataclass(frozen=True)
class Classes(Target):
    """One of `count` classes, numbered from 0."""

    count: int
    labels: tuple[str, ...] = field(default=(), compare=False)
    metric: str | None = field(default=None, compare=False)

    divergence = "categorical"
    measures: ClassVar[tuple[str, ...]] = ("accuracy", "macro_f1", "balanced_accuracy", "ece", "brier")
    leading: ClassVar[tuple[str, ...]] = ("accuracy", "macro_f1", "balanced_accuracy")
    discrete = True
    label_dtype = "int64"
    symmetric = False  # as in "the first text follows from the second"

    @property
    def size(self) -> int:
        return self.count

    @property
    def outcomes(self) -> tuple[str, ...]:
        return self.labels or tuple(map(str, range(self.count)))

    def allows(self, label: float) -> bool:
        return label == int(label) and 0 <= label < self.count

    def predict(self, outputs: Array) -> Predicted:
        odds = np.exp(outputs - outputs.max(axis=-1, keepdims=True))
        probabilities = odds / odds.sum(axis=-1, keepdims=True)
        return Predicted(probabilities.argmax(axis=-1).astype(np.float64), probabilities, None)


@dataclass(frozen=True)
class Ordered(Classes):
    """One of `count` classes that have an order, such as degrees of sentiment."""

    measures = ("accuracy", "macro_f1", "balanced_accuracy", "off_by_one", "mae", "quadratic_kappa", "ece", "brier")
    leading = ("accuracy", "macro_f1", "balanced_accuracy", "quadratic_kappa")


@dataclass(frozen=True)
class Binary(Target):
    """Yes (1) or no (0), from one logit, or from two (no, yes) for `siamese_softmax`."""

    labels: tuple[str, ...] = field(default=(), compare=False)
    metric: str | None = field(default=None, compare=False)

    size = 1
    divergence = "bernoulli"
    measures = ("accuracy", "f1", "roc_auc", "average_precision", "ece", "brier")
    leading = ("accuracy", "f1", "roc_auc", "average_precision")
    discrete = True
    label_dtype = "float32"
    symmetric = True

    @property
    def outcomes(self) -> tuple[str, ...]:
        return self.labels or ("no", "yes")

    def outputs_for(self, loss: str) -> int:
        return 2 if loss == "siamese_softmax" else 1

    def allows(self, label: float) -> bool:
        return label in (0.0, 1.0)

    def predict(self, outputs: Array) -> Predicted:
        logit = outputs[:, -1] - outputs[:, 0] if outputs.shape[1] == 2 else outputs[:, 0]
        yes = 0.5 * (1 + np.tanh(logit / 2))  # the sigmoid, without overflow
        return Predicted((yes > 0.5).astype(np.float64), np.stack((1 - yes, yes), axis=-1), None)


@dataclass(frozen=True)
class Score(Target):
    """A number from `low` to `high`."""

    low: float
    high: float
    metric: str | None = field(default=None, compare=False)

    size = 1
    divergence = "squared"
    measures = ("pearson", "spearman", "rmse")
    leading = ("pearson", "spearman")
    discrete = False
    label_dtype = "float32"
    symmetric = True

    @property
    def margin(self) -> float:
        """A tenth of the range."""
        return (self.high - self.low) / 10

    def allows(self, label: float) -> bool:
        return self.low <= label <= self.high

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


def build_target(
    name: str,
    classes: int | None = None,
    limits: tuple[float, float] | None = None,
    labels: Sequence[str] | None = None,
    metric: str | None = None,
) -> Target:
    """The target of kind `name`: `classes`, `ordered`, `binary` or `score`.

    Args:
        name: the kind.
        classes: how many, of `classes` and `ordered`; None: as many as there are `labels`.
        limits: lowest and highest, of `score`.
        labels: names of the classes (binary: no, yes), or None.
        metric: one of the kind's `leading` ones, which is then the first; None: the usual one.
    """
    if name == "score":
        assert limits is not None
        return Score(*limits, metric=metric)
    names = tuple(labels or ())
    if name == "binary":
        return Binary(names, metric)
    kind: Callable[..., Target] = TARGETS[name]
    return kind(len(names) if classes is None else classes, names, metric)


TARGETS: dict[str, type[Target]] = {"classes": Classes, "ordered": Ordered, "binary": Binary, "score": Score}
