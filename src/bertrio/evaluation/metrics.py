"""How good predictions are: one number a metric, and the overall scores of the papers.

Most metrics are functions of counts alone, and are written as such, over any number of leading axes: so one definition
serves the rows as they are and thousands of resamples of them (`intervals`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bertrio.core.errors import UserError
from bertrio.core.tasks import Array, Task
from bertrio.evaluation import calibration
from bertrio.evaluation.predictions import Scored, check_tasks

# Classes: functions of counts [..., C, C] of (label, prediction)


def accuracy(confusion: Array) -> Array:
    """Share of rows whose prediction is the label, 0 to 1."""
    return np.trace(confusion, axis1=-2, axis2=-1) / confusion.sum((-2, -1))


def f1(confusion: Array) -> Array:
    """Harmonic mean of precision and recall of class 1, 0 to 1.

    0 where no row is, or is predicted to be, of class 1: nothing was found.
    """
    return _f1_by_class(confusion)[..., 1]


def macro_f1(confusion: Array) -> Array:
    """Mean of the F1 of all classes, however few rows they have; 0 to 1.

    Classes that are neither labels nor predictions are left out.
    """
    occurs = confusion.sum(-1) + confusion.sum(-2) > 0
    return _f1_by_class(confusion).sum(-1) / occurs.sum(-1)


def balanced_accuracy(confusion: Array) -> Array:
    """Mean of the recall of all classes that are labels, 0 to 1; a constant prediction reaches 1 / C."""
    labels = confusion.sum(-1)
    return _ratio(_diagonal(confusion), labels).sum(-1) / (labels > 0).sum(-1)


def off_by_one(confusion: Array) -> Array:
    """Of the wrong predictions, the share that is a neighbour of the label, 0 to 1; 0 where all are right."""
    near = np.trace(confusion, 1, -2, -1) + np.trace(confusion, -1, -2, -1)
    wrong = confusion.sum((-2, -1)) - np.trace(confusion, axis1=-2, axis2=-1)
    return _ratio(near, wrong)


def mae(confusion: Array) -> Array:
    """Mean absolute difference of class and predicted class, 0 to C - 1."""
    return (confusion * np.abs(_differences(confusion))).sum((-2, -1)) / confusion.sum((-2, -1))


def quadratic_kappa(confusion: Array) -> Array:
    r"""Cohen's kappa with quadratic weights, -1 to 1: agreement beyond what the two sides' frequencies bring by chance.

    $1 - \sum_{ij} n_{ij} (i-j)^2 / \sum_{ij} e_{ij} (i-j)^2$, where $e_{ij}$ is the count expected of independent sides
    ("Weighted kappa", Cohen 1968). 0 where both are one and the same constant, for which it is undefined.
    """
    total = confusion.sum((-2, -1))
    expected = confusion.sum(-1)[..., :, None] * confusion.sum(-2)[..., None, :]
    squared = _differences(confusion) ** 2
    apart, by_chance = (confusion * squared).sum((-2, -1)), (expected * squared).sum((-2, -1))
    return np.where(by_chance > 0, 1 - _ratio(apart * total, by_chance), 0.0)


def count(scored: Scored, classes: int = 0) -> Array:
    """Counts [C, C] of (label, prediction); C is `classes`, or more where a class beyond them occurs."""
    labels, predictions = scored.labels.astype(np.int64), scored.predictions.astype(np.int64)
    size = int(max(classes, 2, labels.max() + 1, predictions.max() + 1))
    return np.bincount(labels * size + predictions, minlength=size * size).reshape(size, size).astype(np.float64)


def _f1_by_class(confusion: Array) -> Array:
    return _ratio(2 * _diagonal(confusion), confusion.sum(-1) + confusion.sum(-2))


def _diagonal(confusion: Array) -> Array:
    return np.diagonal(confusion, axis1=-2, axis2=-1)


def _differences(confusion: Array) -> Array:
    classes = np.arange(confusion.shape[-1], dtype=np.float64)
    return classes[:, None] - classes[None, :]


def _ratio(part: Array, whole: Array) -> Array:
    """`part` / `whole`, 0 where `whole` is 0."""
    return np.divide(part, whole, out=np.zeros(np.shape(whole)), where=np.asarray(whole) > 0)


# Yes or no by a threshold: functions of the counts [..., G] of yes and of no at each of G rising probabilities of yes


def roc_auc(yes: Array, no: Array) -> Array:
    """Chance that a row of class 1 has the higher probability of two rows, one of each class; a tie counts half.

    0 to 1; a constant has 0.5, and so have rows of one class alone, which say nothing.
    """
    pairs = yes.sum(-1) * no.sum(-1)
    won = (yes * (np.cumsum(no, axis=-1) - no / 2)).sum(-1)
    return np.where(pairs > 0, _ratio(won, pairs), 0.5)


def average_precision(yes: Array, no: Array) -> Array:
    """Mean, over the rows of class 1, of the precision among all rows that are at least as probable; 0 to 1.

    The share of class 1 is what a constant reaches. 0 without rows of class 1.
    """
    found = np.cumsum(yes[..., ::-1], axis=-1)
    chosen = np.cumsum((yes + no)[..., ::-1], axis=-1)
    return _ratio((yes[..., ::-1] * _ratio(found, chosen)).sum(-1), yes.sum(-1))


def thresholds(scored: Scored) -> tuple[NDArray[np.int64], int]:
    """The rank [N] of each row's probability of class 1 among the G distinct ones, from 0, and G."""
    values, rank = np.unique(scored.class_probabilities[:, 1], return_inverse=True)
    return rank, len(values)


def _on_counts(metric: Callable[[Array], Array]) -> Callable[[Scored], float]:
    return lambda scored: float(metric(count(scored)))


def _at_thresholds(metric: Callable[[Array, Array], Array]) -> Callable[[Scored], float]:
    def measure(scored: Scored) -> float:
        rank, size = thresholds(scored)
        yes = np.bincount(rank, weights=scored.labels, minlength=size).astype(np.float64)
        return float(metric(yes, np.bincount(rank, minlength=size).astype(np.float64) - yes))

    return measure


# Scores


def pearson(scored: Scored) -> float:
    """Pearson's correlation of labels and predictions, -1 to 1.

    Undefined where either is constant (a variance of 0 divides): 0 then, for a constant says nothing about the
    other, and a model that collapsed must not stop a run or leave a NaN in the metrics.
    """
    return _correlation(scored.labels, scored.predictions)


def spearman(scored: Scored) -> float:
    """Spearman's correlation: Pearson's of the ranks, ties sharing their mean rank. Constants as in `pearson`."""
    from scipy.stats import rankdata

    return _correlation(rankdata(scored.labels), rankdata(scored.predictions))


def _correlation(one: Array, other: Array) -> float:
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return 0.0
    from scipy.stats import pearsonr  # takes a second to import, and most of bertrio does without

    return float(pearsonr(one, other).statistic)


def rmse(scored: Scored) -> float:
    """Square root of the mean squared error, in the unit of the labels."""
    return float(np.sqrt(np.mean(np.square(scored.labels - scored.predictions))))


# Probabilities


def ece(scored: Scored) -> float:
    """Expected calibration error, see `calibration.ece`."""
    return calibration.ece(scored.confidence, scored.correct)


def brier(scored: Scored) -> float:
    """Brier's score, see `calibration.brier`."""
    return calibration.brier(scored.class_probabilities, scored.labels)


ON_COUNTS: dict[str, Callable[[Array], Array]] = {
    metric.__name__: metric for metric in (accuracy, f1, macro_f1, balanced_accuracy, off_by_one, mae, quadratic_kappa)
}
ON_THRESHOLDS: dict[str, Callable[[Array, Array], Array]] = {
    "roc_auc": roc_auc,
    "average_precision": average_precision,
}
METRICS: dict[str, Callable[[Scored], float]] = {
    **{name: _on_counts(metric) for name, metric in ON_COUNTS.items()},
    **{name: _at_thresholds(metric) for name, metric in ON_THRESHOLDS.items()},
    "ece": ece,
    "brier": brier,
    "pearson": pearson,
    "spearman": spearman,
    "rmse": rmse,
}
CORRELATIONS = ("pearson", "spearman")  # what overall_normalized brings from -1 to 1 to 0 to 1
OVERALL = ("overall_mean", "overall_normalized")
LOWER_IS_BETTER = ("mae", "ece", "brier", "rmse")


def evaluate_predictions(frame: pd.DataFrame, tasks: Mapping[str, Task]) -> dict[str, dict[str, Any]]:
    """Measures a prediction table against its labels.

    Scores are measured by `prediction`, clipped to the task's range: it is what is handed in and ensembled.

    Args:
        frame: a prediction table; unlabelled rows are left out.
        tasks: all tasks, by name; the first metric of each stands for it in the overall scores.

    Returns:
        `{split: {task: {metric: value}, "overall_mean": value, "overall_normalized": value}}`. A split or task
        without labels is absent. The overall scores (see `overall`) are there where every task has labels.

    Raises:
        UserError: if there are predictions of an unknown task.
    """
    return {split: _evaluate_split(of, tasks) for split, of in scored_by_task(frame, tasks).items()}


def _evaluate_split(scored: Mapping[str, Scored], tasks: Mapping[str, Task]) -> dict[str, Any]:
    metrics = {name: tasks[name].target.metrics for name in scored}
    results: dict[str, Any] = {
        name: {metric: METRICS[metric](one) for metric in metrics[name]} for name, one in scored.items()
    }
    if len(scored) == len(tasks):
        firsts = {name: (own[0], np.asarray(results[name][own[0]], np.float64)) for name, own in metrics.items()}
        results |= {name: float(value) for name, value in overall(firsts).items()}
    return results


def scored_by_task(frame: pd.DataFrame, tasks: Mapping[str, Task]) -> dict[str, dict[str, Scored]]:
    """The labelled rows of a prediction table by split and, in the order of `tasks`, by task.

    Raises:
        UserError: if there are predictions of an unknown task.
    """
    check_tasks(frame, tasks)
    labelled = frame[frame["label"].notna()]
    parts = {(str(split), str(task)): rows for (split, task), rows in labelled.groupby(["split", "task"])}
    return {
        split: {name: Scored.of(parts[split, name]) for name in tasks if (split, name) in parts}
        for split in dict.fromkeys(split for split, _ in parts)
    }


def overall(firsts: Mapping[str, tuple[str, Array]]) -> dict[str, Array]:
    """The overall scores of the papers.

    `overall_mean` is the mean over tasks of the first metric ("BERT++", "A Comprehensive Analysis of Fine-Tuning
    Strategies for BERT"), `overall_normalized` the same with a correlation r as (r + 1) / 2 ("SMART Fine-tuning",
    "BERT and Beyond").

    Args:
        firsts: by task, the name of its first metric and its value, or values of any one shape.
    """
    normalized = [(value + 1) / 2 if metric in CORRELATIONS else value for metric, value in firsts.values()]
    return {
        "overall_mean": np.mean([value for _, value in firsts.values()], axis=0),
        "overall_normalized": np.mean(normalized, axis=0),
    }


def selection_score(metrics: Mapping[str, Any], select: str, tasks: Mapping[str, Task]) -> float:
    """The number by which `finetune.select` ranks epochs; higher is better.

    Args:
        metrics: one split of what `evaluate_predictions` returns.
        select: `overall_normalized`, `overall_mean`, or the name of a task, whose first metric counts.
        tasks: all tasks, by name.

    Raises:
        UserError: if the rows that were measured have no labels for it.
    """
    if select not in metrics:
        without = [name for name in ([select] if select in tasks else tasks) if name not in metrics]
        raise UserError(
            f"finetune.select: {select} needs labels, and the rows to select on have none for task "
            f"{', '.join(without)}; set finetune.select to a task that has them or to last, "
            "or finetune.select_on to holdout"
        )
    return metrics[select][tasks[select].target.metrics[0]] if select in tasks else metrics[select]
