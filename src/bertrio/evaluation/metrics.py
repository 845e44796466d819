"""Metrics of predictions, and the overall scores of the papers.

A metric is a function from weights [R, N] of the N rows to its values [R]. One definition thus serves the rows as they
are (weights of 1) and thousands of resamples of them (`intervals`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from bertrio.core.errors import UserError
from bertrio.core.tasks import Array, Task, indicators
from bertrio.evaluation.predictions import Scored, check_tasks

BINS = 15  # of the calibration error
Weighted = Callable[[Array], Array]  # weights [R, N] of the rows -> the metric [R]

# Classes: functions of the counts [..., C] of rows with a class in both, in the label, and in the prediction. Sets have
# several classes a row.


def f1(both: Array, labels: Array, predictions: Array) -> Array:
    """Harmonic mean of precision and recall of class 1, 0 to 1.

    0 if no row is, or is predicted to be, of class 1.
    """
    return _f1_by_class(both, labels, predictions)[..., 1]


def macro_f1(both: Array, labels: Array, predictions: Array) -> Array:
    """Mean of the F1 of all classes, however few rows they have; 0 to 1.

    Classes that are neither labels nor predictions are left out.
    """
    return _ratio(_f1_by_class(both, labels, predictions).sum(-1), (labels + predictions > 0).sum(-1))


def micro_f1(both: Array, labels: Array, predictions: Array) -> Array:
    """F1 of all decisions of a class in a row taken together, 0 to 1; for one class a row it is the accuracy."""
    return _ratio(2 * both.sum(-1), (labels + predictions).sum(-1))


def balanced_accuracy(both: Array, labels: Array, predictions: Array) -> Array:
    """Mean of the recall of all classes that are labels, 0 to 1; a constant prediction reaches 1 / C."""
    return _ratio(both, labels).sum(-1) / (labels > 0).sum(-1)


def matthews_correlation(both: Array, labels: Array, predictions: Array) -> Array:
    r"""Matthews correlation of labels and predictions, -1 to 1.

    $(n \sum_k n_{kk} - \sum_k t_k p_k) / \sqrt{(n^2 - \sum_k p_k^2)(n^2 - \sum_k t_k^2)}$, where $t_k$ of n rows have
    label k and $p_k$ are predicted to be k (Matthews 1975; for any number of classes: Gorodkin 2004). 0 if labels or
    predictions are constant, for which it is undefined.
    """
    total = labels.sum(-1)
    spreads = (total**2 - (predictions**2).sum(-1)) * (total**2 - (labels**2).sum(-1))
    return _ratio(both.sum(-1) * total - (labels * predictions).sum(-1), np.sqrt(np.maximum(spreads, 0.0)))


def _f1_by_class(both: Array, labels: Array, predictions: Array) -> Array:
    return _ratio(2 * both, labels + predictions)


def _ratio(part: Array, whole: Array) -> Array:
    """Return `part` / `whole`, 0 where `whole` is 0."""
    return np.divide(part, whole, out=np.zeros(np.shape(whole)), where=np.asarray(whole) > 0)


# Thresholds: functions of the counts [..., G] of yes and of no at each of G rising probabilities of yes


def roc_auc(yes: Array, no: Array) -> Array:
    """Chance that a row of class 1 has a higher probability than one of class 0; a tie counts half.

    0 to 1; 0.5 for a constant, and if all rows are of one class.
    """
    pairs = yes.sum(-1) * no.sum(-1)
    won = (yes * (np.cumsum(no, axis=-1) - no / 2)).sum(-1)
    return np.where(pairs > 0, _ratio(won, pairs), 0.5)


def average_precision(yes: Array, no: Array) -> Array:
    """Mean, over the rows of class 1, of the precision among all rows that are at least as probable; 0 to 1.

    A constant reaches the share of class 1. 0 without rows of class 1.
    """
    hits = np.cumsum(yes[..., ::-1], axis=-1)
    chosen = np.cumsum((yes + no)[..., ::-1], axis=-1)
    return _ratio((yes[..., ::-1] * _ratio(hits, chosen)).sum(-1), yes.sum(-1))


# Metrics as functions of weights


def _by_class(metric: Callable[[Array, Array, Array], Array]) -> Callable[[Scored], Weighted]:
    """Return a metric of counts [R, C] of both, labels and predictions as one of weights."""

    def prepare(scored: Scored) -> Weighted:
        highest = int(max(scored.labels.max(), scored.predictions.max()))
        if scored.sets:
            labels, predictions = (
                indicators(side, highest.bit_length()) for side in (scored.labels, scored.predictions)
            )
            both = labels * predictions
            return lambda weights: metric(weights @ both, weights @ labels, weights @ predictions)
        by_label, by_prediction = (
            _sum_by_class(side, max(2, highest + 1)) for side in (scored.labels, scored.predictions)
        )
        return lambda weights: metric(by_label(weights * scored.correct), by_label(weights), by_prediction(weights))

    return prepare


def _sum_by_class(classes: Array, count: int) -> Weighted:
    """Return a function that sums columns [R, N] over the rows of each of `count` classes: [R, C]."""
    present, total = np.unique(classes).astype(np.int64), _sum_by_group(classes)

    def sum_columns(columns: Array) -> Array:
        sums = np.zeros((len(columns), count))
        sums[:, present] = total(columns)
        return sums

    return sum_columns


def _by_thresholds(metric: Callable[[Array, Array], Array]) -> Callable[[Scored], Weighted]:
    """Return a metric of counts [R, G] of yes and of no at each probability of yes as one of weights."""

    def prepare(scored: Scored) -> Weighted:
        total = _sum_by_group(scored.probabilities[:, 1])
        return lambda weights: metric(yes := total(weights * scored.labels), total(weights) - yes)

    return prepare


def _by_sums(
    columns: Callable[[Scored], Sequence[Array]], metric: Callable[..., Array]
) -> Callable[[Scored], Weighted]:
    """Return a metric of the number of rows [R] and the sums [R] of `columns`, each [N], as one of weights."""

    def prepare(scored: Scored) -> Weighted:
        table = np.stack(columns(scored))
        return lambda weights: metric(weights.sum(axis=1), *(weights @ table.T).T)

    return prepare


def _by_mean(column: Callable[[Scored], Array]) -> Callable[[Scored], Weighted]:
    """Return the mean of a column [N] as a metric of weights."""
    return _by_sums(lambda scored: [column(scored)], lambda rows, total: total / rows)


def _absolute_errors(scored: Scored) -> Array:
    return np.abs(scored.labels - scored.predictions)


def _neighbours_and_errors(scored: Scored) -> Sequence[Array]:
    """Return which predictions [N] are a neighbour of the label, and which are wrong; `off_by_one` is their ratio."""
    errors = _absolute_errors(scored)
    return (errors == 1).astype(np.float64), (errors > 0).astype(np.float64)


def _second_moments(scored: Scored) -> Sequence[Array]:
    """Return (x - y)^2, x^2 + y^2, x and y of labels x and predictions y, both minus the first label: [N] each.

    Kappa does not depend on the origin; from this one, sums of a constant are exactly 0.
    """
    x, y = scored.labels - scored.labels[0], scored.predictions - scored.labels[0]
    return np.square(x - y), x * x + y * y, x, y


def _quadratic_kappa(rows: Array, observed: Array, squares: Array, x: Array, y: Array) -> Array:
    r"""Cohen's kappa with quadratic weights, -1 to 1: agreement of labels and predictions beyond chance.

    $1 - \sum_{ij} n_{ij} (i-j)^2 / \sum_{ij} e_{ij} (i-j)^2$, where $n_{ij}$ rows have label i and prediction j, and
    $e_{ij}$ is the count expected if both are independent ("Weighted kappa", Cohen 1968). For the sums of
    `_second_moments` over n rows, the second sum is $\sum (x^2 + y^2) - 2 \sum x \sum y / n$. 0 if both are the same
    constant, for which it is undefined.
    """
    chance = rows * squares - 2 * x * y
    return np.where(chance > 0, 1 - _ratio(observed * rows, chance), 0.0)


def standardised(values: Array) -> Array:
    """Return values [N] minus their mean, divided by their standard deviation; zeros if all are equal."""
    spread = values.std() if np.ptp(values) else 1.0
    return (values - values.mean()) / spread


def _moments(scored: Scored) -> Sequence[Array]:
    """Return x, y, x^2, y^2 and x y of standardised x and y: [N] each. Large means would cost digits."""
    x, y = standardised(scored.labels), standardised(scored.predictions)
    return x, y, x * x, y * y, x * y


def _pearson(rows: Array, *sums: Array) -> Array:
    """Pearson correlation, -1 to 1, from the sums of `_moments`.

    0 if either side is constant, for which it is undefined, so that a collapsed model neither stops a run nor leaves a
    NaN in the metrics.
    """
    x, y, xx, yy, xy = (total / rows for total in sums)
    return _cosine(xy - x * y, xx - x * x, yy - y * y)


def spearman(scored: Scored) -> Weighted:
    """Spearman correlation: Pearson's of the ranks, ties sharing their mean rank; 0 for constants."""
    rank_labels, rank_predictions = _ranks(scored.labels), _ranks(scored.predictions)

    def measure(weights: Array) -> Array:
        x, y = rank_labels(weights), rank_predictions(weights)
        return _cosine(*[(weights * product).mean(axis=1) for product in (x * y, x * x, y * y)])

    return measure


def _cosine(both: Array, one: Array, other: Array) -> Array:
    """Return both / sqrt(one * other), 0 where either is 0 up to rounding; elsewhere they are about 1."""
    constant = np.minimum(one, other) < 1e-12
    return np.where(constant, 0.0, np.clip(both / np.sqrt(np.where(constant, 1.0, one * other)), -1.0, 1.0))


def _ranks(values: Array) -> Weighted:
    """Return the mean rank of each row's value among all weighted rows [R, N], 0 in the middle, divided by N / 4."""
    _, group = np.unique(values, return_inverse=True)
    total = _sum_by_group(values)

    def rank(weights: Array) -> Array:
        sizes = total(weights)
        middle = np.cumsum(sizes, axis=1) - (sizes + len(values)) / 2
        return (middle / (len(values) / 4))[:, group]

    return rank


def _sum_by_group(values: Array) -> Weighted:
    """Return a function that sums columns [R, N] over equal `values` [N], in rising order: [R, G]."""
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.diff(values[order], prepend=-np.inf))
    return lambda columns: np.add.reduceat(columns[:, order], starts, axis=1)


def ece(scored: Scored) -> Weighted:
    r"""Expected calibration error: mean absolute gap of confidence and accuracy; 0 is best, 1 worst.

    $\sum_b \frac{n_b}{N} |\mathrm{acc}_b - \mathrm{conf}_b|$ over bins with about equally many rows ("Mitigating Bias
    in Calibration Error Estimation"; with bins of equal width, most would be empty). Rows of equal confidence share a
    bin. On few rows it is above 0 even for a perfectly calibrated model: about $\sqrt{\mathrm{bins} / N} / 3$.
    """
    rows, gap = len(scored.labels), scored.correct - scored.confidence
    total = _sum_by_group(scored.confidence)

    def measure(weights: Array) -> Array:
        sizes = total(weights)
        middle = np.cumsum(sizes, axis=1) - sizes / 2  # mean rank of the group, counted from 0.5
        bin_of = np.minimum((middle * BINS / rows).astype(np.int64), BINS - 1)  # last groups may be empty, and lie at N
        bin_of += BINS * np.arange(len(weights))[:, None]
        gaps = np.bincount(bin_of.reshape(-1), total(weights * gap).reshape(-1), BINS * len(weights))
        return np.abs(gaps).reshape(-1, BINS).sum(axis=1) / rows

    return measure


def _brier_terms(scored: Scored) -> Array:
    """Squared distance of each row's probabilities from the label [N]; the mean is the Brier score, 0 is best.

    The sum over classes, 0 to 2 (Brier 1950); for two classes half of it, the usual (p - y)^2 of one class, 0 to 1.
    """
    probabilities = scored.probabilities
    truth = np.eye(probabilities.shape[1])[scored.labels.astype(np.int64)]
    total = np.square(probabilities - truth).sum(axis=1)
    return total / 2 if probabilities.shape[1] == 2 else total


def _measure(prepare: Callable[[Scored], Weighted]) -> Callable[[Scored], float]:
    return lambda scored: float(prepare(scored)(np.ones((1, len(scored.labels))))[0])


WEIGHTED: dict[str, Callable[[Scored], Weighted]] = {
    "accuracy": _by_mean(lambda scored: scored.correct),
    "f1": _by_class(f1),
    "micro_f1": _by_class(micro_f1),
    "macro_f1": _by_class(macro_f1),
    "balanced_accuracy": _by_class(balanced_accuracy),
    "off_by_one": _by_sums(_neighbours_and_errors, lambda _, near, wrong: _ratio(near, wrong)),
    "mae": _by_mean(_absolute_errors),
    "quadratic_kappa": _by_sums(_second_moments, _quadratic_kappa),
    "matthews_correlation": _by_class(matthews_correlation),
    "roc_auc": _by_thresholds(roc_auc),
    "average_precision": _by_thresholds(average_precision),
    "ece": ece,
    "brier": _by_mean(_brier_terms),
    "pearson": _by_sums(_moments, _pearson),
    "spearman": spearman,
    "rmse": _by_sums(lambda scored: [np.square(_absolute_errors(scored))], lambda rows, total: np.sqrt(total / rows)),
}
ON_COUNTS = (  # metrics that depend only on how many rows have each pair of label and prediction
    "accuracy", "f1", "micro_f1", "macro_f1", "balanced_accuracy", "off_by_one", "mae", "quadratic_kappa",
    "matthews_correlation",
)  # fmt: skip
METRICS: dict[str, Callable[[Scored], float]] = {name: _measure(prepare) for name, prepare in WEIGHTED.items()}
CORRELATIONS = ("pearson", "spearman", "matthews_correlation")  # overall_normalized maps these from [-1, 1] to [0, 1]
OVERALL = ("overall_mean", "overall_normalized")
LOWER_IS_BETTER = ("mae", "ece", "brier", "rmse")


def evaluate_predictions(frame: pd.DataFrame, tasks: Mapping[str, Task]) -> dict[str, dict[str, Any]]:
    """Measure a prediction table against its labels.

    Score tasks are measured by `prediction`, which is clipped to the task's range.

    Args:
        frame: a prediction table; unlabelled rows are left out.
        tasks: all tasks, by name; the main metric of each enters the overall scores.

    Returns:
        `{split: {task: {metric: value}, "overall_mean": value, "overall_normalized": value}}`. Splits and
        tasks without labels are absent, overall scores (see `overall`) as well unless all tasks have labels.

    Raises:
        UserError: if there are predictions of an unknown task.
    """
    results: dict[str, dict[str, Any]] = {}
    for split, parts in scored_by_task(frame, tasks).items():
        results[split] = {
            name: {metric: METRICS[metric](scored) for metric in tasks[name].target.metrics}
            for name, scored in parts.items()
        }
        if len(parts) == len(tasks):
            main_metrics = {name: next(iter(values.items())) for name, values in results[split].items()}
            results[split] |= {name: float(value) for name, value in overall(main_metrics).items()}
    return results


def scored_by_task(frame: pd.DataFrame, tasks: Mapping[str, Task]) -> dict[str, dict[str, Scored]]:
    """Return the labelled rows of a prediction table by split and, in the order of `tasks`, by task.

    Raises:
        UserError: if there are predictions of an unknown task.
    """
    check_tasks(frame, tasks)
    labelled = frame[frame["label"].notna()]
    parts = {(str(split), str(task)): rows for (split, task), rows in labelled.groupby(["split", "task"])}
    return {
        split: {name: Scored.from_rows(parts[split, name], tasks[name]) for name in tasks if (split, name) in parts}
        for split in dict.fromkeys(split for split, _ in parts)
    }


def overall(main_metrics: Mapping[str, tuple[str, Any]]) -> dict[str, Array]:
    """The overall scores of the papers.

    `overall_mean` is the mean over tasks of the main metric ("BERT++", "A Comprehensive Analysis of Fine-Tuning
    Strategies for BERT"), `overall_normalized` the same with a correlation r as (r + 1) / 2 ("SMART Fine-tuning",
    "BERT and Beyond").

    Args:
        main_metrics: by task, the name of its main metric and its value, or values of any one shape.
    """
    normalized = [(value + 1) / 2 if metric in CORRELATIONS else value for metric, value in main_metrics.values()]
    return {
        "overall_mean": np.mean([value for _, value in main_metrics.values()], axis=0),
        "overall_normalized": np.mean(normalized, axis=0),
    }


def selection_score(metrics: Mapping[str, Any], select: str, tasks: Mapping[str, Task]) -> float:
    """Return the score by which `finetune.select` ranks epochs; higher is better.

    Args:
        metrics: metrics of one split, as of `evaluate_predictions`.
        select: `overall_normalized`, `overall_mean`, or the name of a task, whose main metric counts.
        tasks: all tasks, by name.

    Raises:
        UserError: if the measured rows have no labels for it.
    """
    if select not in metrics:
        without = [name for name in ([select] if select in tasks else tasks) if name not in metrics]
        raise UserError(
            f"finetune.select: {select} needs labels, and the rows to select on have none for task "
            f"{', '.join(without)}; set finetune.select to last or a task that has them, or change finetune.select_on"
        )
    return metrics[select][tasks[select].target.metrics[0]] if select in tasks else metrics[select]
