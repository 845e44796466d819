"""Tasks and their targets.

A task is a kind of text and a target. The `Target` classes define everything that depends on the kind of target: the
number of outputs of a head, the allowed labels, how outputs become predictions, and the metrics. Other modules ask the
target instead of branching by its kind, except to check params, set limits of a loss, cut slices or describe a task.
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # torch is slow to import
    from torch import Tensor

TEXT_COLUMNS = {"single": ("text",), "pair": ("text_a", "text_b")}
NUMBER = re.compile(r"\s*[-+]?\d+(\.\d*)?\s*")
CLASS_METRICS = ("accuracy", "macro_f1", "balanced_accuracy")
MAX_SET = 53  # classes of a set whose number is exact in float64

Array = NDArray[np.float64]


class HeadOutput(NamedTuple):
    """Output of a head for a batch; the only part of the model that a loss sees.

    `outputs` [B, size], on the scale of `Target.predict`. Heads whose outputs are a function of a cosine also give the
    raw `cosine` [B] and the two `vectors` [B, H] that it compares. `texts` [B, 2], for losses over a whole batch, are
    numbers of the texts: equal texts have equal ones.
    """

    outputs: Tensor
    cosine: Tensor | None = None
    vectors: tuple[Tensor, Tensor] | None = None
    texts: Tensor | None = None

    def take(self, rows: Tensor) -> HeadOutput:
        """Return the outputs of some rows."""
        cosine, texts = (None if part is None else part[rows] for part in (self.cosine, self.texts))
        vectors = None if self.vectors is None else (self.vectors[0][rows], self.vectors[1][rows])
        return HeadOutput(self.outputs[rows], cosine, vectors, texts)


class Predicted(NamedTuple):
    """Predictions of a batch: `values` [B], and `probabilities` [B, C] or raw `scores` [B]."""

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


@dataclass(frozen=True, kw_only=True)
class Target(ABC):
    """Quantity that a task predicts.

    `labels` are the names that were given to the classes, in the order of their numbers, or (). `metric` is the main
    metric of the task if it is not the first of the default ones. Neither takes part in comparisons of targets, since
    predictions are the same kind of numbers.
    """

    divergence: ClassVar[str]  # between two outputs of the same row; a name in regularizers/divergences.py
    default_metrics: ClassVar[tuple[str, ...]]  # names in evaluation/metrics.py, the default main metric first
    main_metric_choices: ClassVar[tuple[str, ...]]  # of which more is better, some not computed by default
    discrete: ClassVar[bool]  # labels are class indices: members can vote, labels can be counted
    ordered: ClassVar[bool] = False  # a higher label means more: labels have a mean
    label_dtype: ClassVar[str]  # dtype of labels for losses: "int64" or "float32"
    symmetric: ClassVar[bool]  # whether the label of a pair is the same with its texts swapped
    sets: ClassVar[bool] = False  # labels are sets of classes, see `MultiLabel`
    labels: tuple[str, ...] = field(default=(), compare=False, repr=False)
    metric: str | None = field(default=None, compare=False, repr=False)

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of outputs of a head, unless the loss needs another."""

    @property
    def margin(self) -> float:
        """Largest difference between two predicted values that count as the same."""
        return 0.5

    @property
    def metrics(self) -> tuple[str, ...]:
        """All metrics of the task, its main metric first."""
        main = self.metric or self.default_metrics[0]
        return (main, *[name for name in self.default_metrics if name != main])

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, or their numbers as text if they have none; () for scores."""
        return self.labels or tuple(map(str, range(self.size if self.discrete else 0)))

    def outputs_for(self, loss: str) -> int:
        """Return the number of outputs of a head trained with `loss`."""
        return self.size

    def number_of(self, label: Any) -> float:
        """Return the number of a label from a file: the name of a class, a number, or a number as text.

        If the name of a class is a number, only names are valid: "1" may be the first of the classes 1, 2 and 3.

        Raises:
            ValueError: if the label is neither.
        """
        if self.labels:
            whole = isinstance(label, float) and label.is_integer()  # an integer column with missing values
            name, names = str(int(label) if whole else label).strip(), list(self.labels)
            if isinstance(label, (bool, np.bool_)):  # from JSON or parquet; text files vary in case
                name, names = name.lower(), [known.lower() for known in names]
            if name in names:
                return float(names.index(name))
            if any(NUMBER.fullmatch(known) for known in names):
                raise ValueError(f"{label!r} is none of {', '.join(self.labels)}")
        truth = isinstance(label, (bool, np.bool_)) and not isinstance(self, Binary)
        if truth or (isinstance(label, str) and "_" in label):  # Python takes true for 1, and 1_0 for 10
            raise ValueError(f"{label!r} is no number")
        return float(label)

    def name_of(self, value: float) -> str:
        """Return the class name of a label or prediction, or the number as text if it has none."""
        if self.labels and float(value).is_integer() and 0 <= value < len(self.labels):
            return self.labels[int(value)]
        return f"{value:g}"

    def label_problem(self, label: float) -> str | None:
        """Return why `label` can't be used, as a short fixed phrase, or None if it can."""
        if not math.isfinite(label):
            return "label is not a number"
        return None if self.allows(label) else "label out of range"

    def chosen(self, value: float) -> tuple[Any, Any]:
        """Return the class of a prediction and its name; of sets, a tuple of each."""
        return int(value), self.name_of(value)

    def encode(self, values: Array) -> Array:
        """Return labels [B] as losses take them: [B], or [B, C] for sets."""
        return values

    def counts(self, values: Array) -> list[int]:
        """Return the number of labels of each class; none of scores."""
        return np.bincount(values.astype(np.int64), minlength=max(2, self.size)).tolist() if self.discrete else []

    @abstractmethod
    def allows(self, label: float) -> bool:
        """Return whether a finite label is in the range of this target."""

    @abstractmethod
    def predict(self, outputs: Array) -> Predicted:
        """Turn a head's outputs [B, size] into predictions."""

    def change(self, before: Predicted, after: Predicted) -> tuple[NDArray[np.bool_], Array]:
        """Return whether the prediction of each row [B] changed, and by how much [B].

        The amount is the absolute change in the probability of the class predicted before.
        """
        assert before.probabilities is not None and after.probabilities is not None
        sides = [probability_of(before.values, side.probabilities, self.sets) for side in (before, after)]
        return before.values != after.values, np.abs(sides[1] - sides[0])

    def expected(self, predicted: Predicted) -> Array | None:
        """Return the mean label [B] by the predicted probabilities, or the score; None if labels have no order."""
        if not self.ordered:
            return None
        assert predicted.probabilities is not None
        return predicted.probabilities @ np.arange(predicted.probabilities.shape[1])


@dataclass(frozen=True)
class Classes(Target):
    """One of `count` classes, numbered from 0."""

    count: int

    divergence = "categorical"
    default_metrics: ClassVar[tuple[str, ...]] = (*CLASS_METRICS, "ece", "brier")
    main_metric_choices: ClassVar[tuple[str, ...]] = (*CLASS_METRICS, "matthews_correlation")
    discrete = True
    label_dtype = "int64"
    symmetric = False  # as in "the first text follows from the second"

    @property
    def size(self) -> int:
        return self.count

    def allows(self, label: float) -> bool:
        return label == int(label) and 0 <= label < self.count

    def predict(self, outputs: Array) -> Predicted:
        odds = np.exp(outputs - outputs.max(axis=-1, keepdims=True))
        probabilities = odds / odds.sum(axis=-1, keepdims=True)
        return Predicted(probabilities.argmax(axis=-1).astype(np.float64), probabilities, None)


@dataclass(frozen=True)
class Ordered(Classes):
    """One of `count` classes that have an order, such as degrees of sentiment."""

    ordered = True
    default_metrics = (*CLASS_METRICS, "off_by_one", "mae", "quadratic_kappa", "ece", "brier")
    main_metric_choices = (*CLASS_METRICS, "quadratic_kappa", "matthews_correlation")


@dataclass(frozen=True)
class Binary(Target):
    """Yes (1) or no (0), from one logit, or from two (no, yes) for `siamese_softmax`."""

    labels: tuple[str, ...] = field(default=("no", "yes"), compare=False, repr=False)

    size = 1
    divergence = "bernoulli"
    default_metrics = ("accuracy", "f1", "roc_auc", "average_precision", "ece", "brier")
    main_metric_choices = ("accuracy", "f1", "roc_auc", "average_precision", "matthews_correlation")
    discrete = True
    ordered = True
    label_dtype = "float32"
    symmetric = True

    def outputs_for(self, loss: str) -> int:
        return 2 if loss == "siamese_softmax" else 1

    def allows(self, label: float) -> bool:
        return label in (0.0, 1.0)

    def predict(self, outputs: Array) -> Predicted:
        logit = outputs[:, -1] - outputs[:, 0] if outputs.shape[1] == 2 else outputs[:, 0]
        yes = 0.5 * (1 + np.tanh(logit / 2))  # the sigmoid, without overflow
        return Predicted((yes > 0.5).astype(np.float64), np.stack((1 - yes, yes), axis=-1), None)


@dataclass(frozen=True)
class MultiLabel(Target):
    """Any of `count` classes, each with a logit: a set, numbered by the sum of 2^c over its classes c.

    With one number a row, tables, splits and resamples are those of the other targets. A class is predicted above its
    threshold, by default 0.5.
    """

    count: int
    thresholds: tuple[float, ...] = field(default=(), compare=False, repr=False)

    divergence = "bernoullis"
    default_metrics = ("micro_f1", "macro_f1", "accuracy")
    main_metric_choices = default_metrics
    discrete = True
    label_dtype = "float32"
    symmetric = False
    sets = True

    @property
    def size(self) -> int:
        return self.count

    def number_of(self, label: Any) -> float:
        """Return the number of a set: a list of classes, also as JSON, or classes with |, a comma or ; between them."""
        if isinstance(label, str):
            text = label.strip()
            parts = [text] if text in self.labels else re.split(r"[|,;]", text)
            label = json.loads(text) if text.startswith("[") else parts
        classes = {super(MultiLabel, self).number_of(name) for name in (label if np.iterable(label) else [label])}
        known = all(number in range(self.count) for number in classes)
        return float(sum(2.0**number for number in classes)) if known else -1.0

    def name_of(self, value: float) -> str:
        """Return the names of the classes with | between them, [] without one; a file may hold both."""
        return "|".join(self.chosen(value)[1]) or "[]"

    def chosen(self, value: float) -> tuple[Any, Any]:
        numbers = tuple(np.flatnonzero(self.encode(np.array(value))).tolist())
        return numbers, tuple(self.class_names[number] for number in numbers)

    def encode(self, values: Array) -> Array:
        return indicators(values, self.count)

    def counts(self, values: Array) -> list[int]:
        return self.encode(values).sum(axis=0).astype(int).tolist()

    def allows(self, label: float) -> bool:
        return label == int(label) and 0 <= label < 2**self.count

    def decide(self, probabilities: Array) -> Array:
        """Return the sets [N] of the classes whose probability, of [N, C], is above its threshold."""
        return set_numbers(probabilities > np.array(self.thresholds or 0.5))

    def predict(self, outputs: Array) -> Predicted:
        probabilities = 0.5 * (1 + np.tanh(outputs / 2))
        return Predicted(self.decide(probabilities), probabilities, None)


def indicators(values: Array, count: int) -> Array:
    """Return whether each of `count` classes is in the sets of numbers `values` [...]: [..., C], 0 or 1."""
    return (values.astype(np.int64)[..., None] >> np.arange(count) & 1).astype(np.float64)


def set_numbers(chosen: NDArray[Any]) -> Array:
    """Return the numbers [...] of sets of classes [..., C]: the inverse of `indicators`."""
    return chosen @ 2.0 ** np.arange(chosen.shape[-1])


def probability_of(values: Array, probabilities: Any, sets: bool) -> Array:
    """Return the probability of each row's class, or of its set if classes are independent: [N]."""
    if not sets:
        return probabilities[np.arange(len(values)), values.astype(np.int64)]
    return np.where(indicators(values, probabilities.shape[1]), probabilities, 1 - probabilities).prod(axis=1)


@dataclass(frozen=True)
class Score(Target):
    """A number from `low` to `high`."""

    low: float
    high: float

    size = 1
    divergence = "squared"
    default_metrics = ("pearson", "spearman", "rmse")
    main_metric_choices = ("pearson", "spearman")
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
        """Return whether each score [B] moved by more than `margin`, and by how much [B]."""
        moved = np.abs(after.values - before.values)
        return moved > self.margin, moved

    def expected(self, predicted: Predicted) -> Array | None:
        return predicted.values


@dataclass(frozen=True)
class Task:
    """Task with a `kind` of text (`single` sentence or `pair`), an `encoding` of pairs and a `target`.

    Rows of a `partial` task may lack its label, because another task has labels for the same rows.
    """

    name: str
    kind: str
    encoding: str
    target: Target
    partial: bool = field(default=False, compare=False)

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Text columns of a row table."""
        return TEXT_COLUMNS[self.kind]


def build_target(
    name: str,
    classes: int | Sequence[Any] | None = None,
    limits: tuple[float, float] | None = None,
    metric: str | None = None,
    thresholds: Sequence[float] | None = None,
) -> Target:
    """Return the target of kind `name`: `classes`, `ordered`, `binary`, `score` or `multilabel`.

    Args:
        name: the kind.
        classes: number of classes, or their names (of binary for no, then yes).
        limits: lowest and highest value, for `score`.
        metric: main metric, one of the kind's `main_metric_choices`; None means the default.
        thresholds: of the classes of `multilabel`; None means 0.5.
    """
    if name == "score":
        assert limits is not None
        return Score(*limits, metric=metric)
    names = tuple(map(str, classes)) if isinstance(classes, Sequence) else ()
    if name == "binary":
        return Binary(names or Binary.labels, metric=metric)
    kind: Callable[..., Target] = TARGETS[name]
    more = {"thresholds": tuple(thresholds)} if thresholds else {}
    return kind(len(names) or classes, labels=names, metric=metric, **more)


TARGETS: dict[str, type[Target]] = {
    kind.__name__.lower(): kind for kind in (Classes, Ordered, Binary, Score, MultiLabel)
}
