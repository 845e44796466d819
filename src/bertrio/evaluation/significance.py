"""Significance of differences: the paired test of two sets of runs on the same rows, and Holm's correction.

All p-values are two-sided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertrio.core.tasks import Array
from bertrio.evaluation.metrics import CORRELATIONS, overall

ALPHA = 0.05  # a p-value below it counts as a difference
DIGITS = 12  # decimals of a difference; the rest is rounding
ROUNDING = 10.0**-DIGITS
WIDEST = {  # largest difference of two values of a metric, if not 1
    **dict.fromkeys(("brier", *CORRELATIONS, "quadratic_kappa"), 2.0),
    **dict.fromkeys(("mae", "rmse"), math.inf),
}


@dataclass(frozen=True, eq=False)
class TaskScore:
    """The main metric of a task in one run.

    Args:
        metric: name of the metric.
        value: its value.
        rows: contribution of each row [N], see `intervals.contributions`.
        ids: ids of the rows [N]; tasks with equal ids count as labels of the same texts. None: of this task alone.
    """

    metric: str
    value: float
    rows: Array
    ids: tuple[str, ...] | None = None


Run = Mapping[str, TaskScore]  # by task


@dataclass(frozen=True)
class Difference:
    """A metric of two sides, and the second minus the first with its 95 % interval and p-value.

    `first` and `second` are means over the side's runs, and `seeds` counts these. If both sides have a single run,
    interval and p-value cover other rows, but not other seeds. `freedom` are the degrees of freedom of Student's t.
    """

    first: float
    second: float
    seeds: tuple[int, int]
    low: float
    high: float
    p: float
    freedom: float = math.inf

    @property
    def difference(self) -> float:
        """Second minus first, rounded to `DIGITS`."""
        return round(self.second - self.first, DIGITS)

    @property
    def rows_alone(self) -> bool:
        """True if no side has enough seeds to estimate their variance."""
        return max(self.seeds) < 2


def paired_difference(first: Sequence[Run], second: Sequence[Run], metric: str) -> Difference:
    r"""Test whether two sides differ beyond the variation of rows and seeds.

    The variance of the difference is $e^2 = \sum_k w_k^2 \mathrm{var}(\bar b_{ki} - \bar a_{ki}) / N_k + s_a^2 / n_a +
    s_b^2 / n_b$. The first part is the variance over rows: $\bar a_{ki}$ is the contribution of row i to the
    metric of task k, averaged over the runs of a side, so rows that are hard for both sides cancel; $w_k$ is the weight
    of the task in an overall score. Tasks of the same texts count as one, with the sum of their differences. The other
    parts are variances over seeds, with n runs a side. A side of one run is taken to vary as the other does,
    $s^2 (1 + 1 / n)$ as in Student's test. With one run on each, rows count alone.

    The difference divided by e is compared with Student's t with $e^4 / \sum_j v_j^2 / f_j$ degrees of freedom;
    Satterthwaite (1946), "An approximate distribution of estimates of variance components". A part $v_j$ of seeds
    has n - 1 degrees, the part of rows one less than their effective number $(\sum_i d_i^2)^2 / \sum_i d_i^4$ (Kish
    1965, "Survey Sampling"), which for an accuracy is the number of rows that only one side gets right. The test is
    close to McNemar's exact one on few rows, to the paired bootstrap on many, and to Welch's with seeds alone.

    The seeds of the two sides are taken as independent, and noise of rows that differs between seeds counts in both
    parts. Both are conservative.

    Args:
        first: runs of the baseline, which differ only in their seed.
        second: runs of the variant, likewise. All runs hold the same rows in the same order.
        metric: a task, whose main metric is compared, or an overall score.

    Returns:
        The difference. If all n rows differ alike, p is that of a sign test, $2^{1 - n}$; if none do, it is 1.
        The interval is cut to the largest difference that the metric allows.
    """
    sides = [[score_of(run, metric) for run in side] for side in (first, second)]
    weights = _weights(first[0], metric)
    differences: dict[Any, Array] = {}
    for task, weight in weights.items():
        texts = first[0][task].ids or task
        between = weight * (_mean_rows(second, task) - _mean_rows(first, task))
        differences[texts] = differences.get(texts, 0.0) + between
    parts = [_row_variance(values) for values in differences.values()]
    seeds = (len(first), len(second))
    spread = [(float(np.var(side, ddof=1)) / len(side), len(side) - 1.0) for side in sides if len(side) > 1]
    if len(spread) == 1:
        [(variance, freedom)] = spread
        spread = [(variance * (freedom + 2), freedom)]  # of n runs, and of one: s^2 / n + s^2
    parts += spread
    means = [float(np.mean(side)) for side in sides]
    low, high, p, freedom = _t_test(means[1] - means[0], parts)
    if not freedom:
        differ = sum(np.count_nonzero(np.abs(values) > ROUNDING) for values in differences.values())
        p, freedom = 1.0 if abs(means[1] - means[0]) < ROUNDING else min(1.0, 2 * 0.5**differ), math.inf
    largest = sum(weight * WIDEST.get(first[0][task].metric, 1.0) for task, weight in weights.items())
    return Difference(means[0], means[1], seeds, max(low, -largest), min(high, largest), p, freedom)


def _t_test(difference: float, parts: Sequence[tuple[float, float]]) -> tuple[float, float, float, float]:
    """Return the interval, p-value and degrees of freedom of a difference; `parts` are its variances and theirs.

    If nothing varies, there are no degrees of freedom.
    """
    error = math.sqrt(math.fsum(variance for variance, _ in parts))  # independent of the order of the sides
    if error < ROUNDING:
        return difference, difference, 1.0, 0.0
    from scipy.special import stdtr, stdtrit  # slow to import

    freedom = error**4 / math.fsum(variance**2 / freedom for variance, freedom in parts)
    half_width = float(stdtrit(freedom, 0.975)) * error
    p = 2 * float(stdtr(freedom, -abs(difference) / error))
    return difference - half_width, difference + half_width, p, freedom


def _row_variance(differences: Array) -> tuple[float, float]:
    """Return the variance of the mean of `differences` [N], and its degrees of freedom."""
    squared = np.square(differences)
    effective = squared.sum() ** 2 / np.square(squared).sum() if squared.any() else 1.0
    return float(np.var(differences)) / len(differences), max(float(effective) - 1, 1.0)


def _mean_rows(side: Sequence[Run], task: str) -> Array:
    return np.mean([run[task].rows for run in side], axis=0)


def score_of(run: Run, metric: str) -> float:
    """Return the value of a task's main metric, or of an overall score."""
    if metric in run:
        return run[metric].value
    return float(overall({task: (score.metric, score.value) for task, score in run.items()})[metric])


def _weights(run: Run, metric: str) -> dict[str, float]:
    """Return the weight of each task's main metric in `metric`; a normalized correlation r is (r + 1) / 2."""
    if metric in run:
        return {metric: 1.0}
    halved = CORRELATIONS if metric == "overall_normalized" else ()
    return {task: (0.5 if score.metric in halved else 1.0) / len(run) for task, score in run.items()}


def holm(ps: Sequence[float]) -> list[float]:
    r"""Correct p-values for the number of tests.

    Holm (1979), "A simple sequentially rejective multiple test procedure".

    Of K tests in rising order of p: $\max_{j \le i} \min(1, (K - j + 1) p_j)$. If those below 5 % are called
    differences, the chance that any is false is at most 5 %, also for dependent tests.

    Returns:
        The corrected values, in the order of `ps`.
    """
    order = np.argsort(ps, kind="stable")
    steps = np.minimum(1.0, np.asarray(ps, dtype=np.float64)[order] * np.arange(len(ps), 0, -1))
    corrected = np.empty(len(ps))
    corrected[order] = np.maximum.accumulate(steps)
    return corrected.tolist()


def p_text(p: float | None) -> str:
    """Return a p-value in words; a dash for none."""
    if p is None:
        return "-"
    return "below 0.001" if p < 0.001 else f"{p:.3f}"
