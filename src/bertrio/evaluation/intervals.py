"""Bootstrap intervals of metrics: their variation over other samples of rows.

A resample is N rows drawn with replacement from the N rows measured. Its metric is that of the original rows, each
weighted by how often it was drawn (`metrics.WEIGHTED`), so no row is copied or sorted again.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bertrio.core.tasks import Array, Task
from bertrio.evaluation.calibration import equal_mass_bins
from bertrio.evaluation.metrics import METRICS, ON_COUNTS, WEIGHTED, Scored, overall, scored_by_task, standardised

QUANTILES = ((1 - 0.95) / 2, (1 + 0.95) / 2)  # ends of an interval of 95 %
SEED = 0
RANKING = ("roc_auc", "average_precision", "ece", "spearman")  # slow: each resample takes several passes over the rows
TILT = 1e-6  # epsilon of `contributions`
CELLS = 2**16  # counts held at a time: half a megabyte, which fits a processor's cache


def resamples_of(metric: str) -> int:
    """Number of resamples of `metric`: 1,000 for metrics of ranks, 10,000 for means, counts and correlations."""
    return 1_000 if metric in RANKING else 10_000


def generator_for(split: str, task: str) -> np.random.Generator:
    """Generator seeded by split and task alone, so that results do not depend on other splits and tasks.

    All metrics of a task, and of other tasks with the same row ids, start from it. Metrics of counts draw counts where
    no other task has these rows, the others draw rows; within each of these two families all use the same resamples.
    """
    return np.random.default_rng([SEED, zlib.crc32(f"{split}/{task}".encode())])


def bootstrap(
    scored: Scored, resamples: Mapping[str, int], generator: np.random.Generator, rows: bool = False
) -> dict[str, Array]:
    """Values of metrics on resampled rows, which are drawn once for all of them.

    Metrics of counts draw the counts themselves from a multinomial distribution, so their cost does not depend on N.

    Args:
        scored: the predictions.
        resamples: by name in METRICS, the number of resamples R, as of `resamples_of`. Either all metrics are of counts
            or none.
        generator: draws the resamples.
        rows: draw rows for metrics of counts as well, so that tasks of the same texts get the same resamples.

    Returns:
        Values [R] by metric.
    """
    sizes = np.ones(len(scored.labels), dtype=np.int64)
    if set(resamples) <= set(ON_COUNTS) and not rows:
        scored, unit = _merged(scored)
        sizes = np.bincount(unit)
    measures = {metric: WEIGHTED[metric](scored) for metric in resamples}
    chunks: dict[str, list[Array]] = {metric: [] for metric in resamples}
    drawn = 0
    for counts in _draws(sizes, generator, max(resamples.values())):
        for metric, needed in resamples.items():
            if drawn < needed:
                chunks[metric].append(measures[metric](counts[: needed - drawn]))
        drawn += len(counts)
    return {metric: np.concatenate(values) for metric, values in chunks.items()}


def interval(values: Array) -> tuple[float, float]:
    """95 % percentile interval: between the 2.5 % and 97.5 % quantiles of bootstrap `values` [R]."""
    low, high = np.quantile(values, QUANTILES)
    return float(low), float(high)


def metric_interval(scored: Scored, metric: str, values: Array) -> tuple[float, float]:
    """Interval of a metric of `scored` from its bootstrap `values` [R]: the percentile interval, except for `ece`.

    `ece` is biased: it sums absolute gaps, so noise alone makes it positive. A perfectly calibrated model's is above 0,
    and that of its resamples higher still. The interval of `ece` is therefore the basic one (the quantiles mirrored at
    the estimate). It extends to 0 if a calibrated model could reach the estimate, and includes the estimate. In
    simulations it covers 85 to 98 %, the percentile interval 0 to 80 %.
    """
    low, high = interval(values)
    if metric != "ece":
        return low, high
    estimate = METRICS["ece"](scored)
    noise_limit = interval(_ece_of_calibrated(scored.confidence, len(values)))[1]
    return 0.0 if estimate <= noise_limit else max(0.0, 2 * estimate - high), max(estimate, 2 * estimate - low)


def _ece_of_calibrated(confidence: Array, draws: int) -> Array:
    """Draws of the `ece` of a perfectly calibrated model, with bins as normal variables: [draws]."""
    spread = np.sqrt(np.bincount(equal_mass_bins(confidence), weights=confidence * (1 - confidence)))
    noise = np.random.default_rng(SEED).standard_normal((draws, len(spread)))
    return np.abs(noise * spread).sum(axis=1) / len(confidence)


def intervals(frame: pd.DataFrame, tasks: Mapping[str, Task]) -> dict[str, dict[str, Any]]:
    """95 % intervals of all metrics of `evaluate_predictions`, with fixed seeds.

    Overall scores are computed from independent resamples of each task, or the same ones for tasks with the same row
    ids, which count as labels of the same texts. Their number is that of the task with the fewest resamples.

    Returns:
        `{split: {task: {metric: [low, high]}, "overall_mean": [low, high], "overall_normalized": [low, high]}}`.

    Raises:
        UserError: if there are predictions of an unknown task.
    """
    results: dict[str, dict[str, Any]] = {}
    ids = frame[frame["label"].notna()].groupby(["split", "task"])["id"].agg(tuple)
    for split, parts in scored_by_task(frame, tasks).items():
        results[split], main_metrics = {}, {}
        for task, scored in parts.items():
            metrics = tasks[task].target.metrics
            values: dict[str, Array] = {}
            same = [other for other in parts if ids[split, other] == ids[split, task]]
            for on_counts in {metric in ON_COUNTS for metric in metrics}:
                numbers = {metric: resamples_of(metric) for metric in metrics if (metric in ON_COUNTS) == on_counts}
                values |= bootstrap(scored, numbers, generator_for(split, same[0]), rows=len(same) > 1)
            results[split][task] = {name: list(metric_interval(scored, name, values[name])) for name in metrics}
            main_metrics[task] = (metrics[0], values[metrics[0]])
        if len(parts) == len(tasks):
            fewest = min(len(values) for _, values in main_metrics.values())
            cut = {task: (metric, values[:fewest]) for task, (metric, values) in main_metrics.items()}
            results[split] |= {name: list(interval(values)) for name, values in overall(cut).items()}
    return results


def contributions(scored: Scored, metric: str) -> Array:
    r"""Contribution of each row to a metric, from which the variance of a difference of two runs is estimated.

    For accuracy it is 1 or 0. For other metrics T it is the influence of the row ("The influence curve and its role in
    robust estimation", Hampel 1974), the derivative of $T((1 - \epsilon) F + \epsilon \delta_i)$ at $\epsilon = 0$,
    where F is the distribution of the rows and $\delta_i$ that of row i alone; its mean is 0. It has a closed form in
    `INFLUENCES`, and is taken numerically for metrics of counts.

    With contributions a and b of two runs on the same N rows, var(a - b) / N is the variance of the difference of
    their metrics that the paired bootstrap finds.

    Returns:
        Values [N] in the order of the rows.
    """
    if metric == "accuracy":
        return scored.correct
    if metric in INFLUENCES:
        return INFLUENCES[metric](scored)
    rows, unit = len(scored.labels), np.arange(len(scored.labels))
    if metric in ON_COUNTS:
        scored, unit = _merged(scored)
    weighted, counts = WEIGHTED[metric](scored), np.bincount(unit).astype(np.float64)
    values, chunk = np.empty(len(counts)), max(1, CELLS // len(counts))
    for start in range(0, len(counts), chunk):
        size = min(chunk, len(counts) - start)
        tilted = np.tile(counts * (1 - TILT), (size, 1))
        tilted[np.arange(size), start + np.arange(size)] += TILT * rows
        values[start : start + size] = weighted(tilted)
    return ((values - weighted(counts[None])) / TILT)[unit]


def _pearson_influence(scored: Scored) -> Array:
    """$z_x z_y - r (z_x^2 + z_y^2) / 2$ of standardised x and y (Devlin, Gnanadesikan and Kettenring 1975)."""
    x, y = standardised(scored.labels), standardised(scored.predictions)
    return x * y - np.mean(x * y) * (x * x + y * y) / 2


def _spearman_influence(scored: Scored) -> Array:
    r"""$\dot C_{ab} / \sqrt{C_{aa} C_{bb}} - \rho (\dot C_{aa} / C_{aa} + \dot C_{bb} / C_{bb}) / 2$ of centred ranks.

    a are those of labels and b those of predictions, and $C_{ab}$ is the mean of $a_i b_i$. Its derivative
    $\dot C_{ab} = a_k b_k + P_k + Q_k - 3 C_{ab}$ has two terms for the ranks that row k raises: $P_k$ is the mean of
    $b_i$ over rows above k in a, an equal rank counting half, else 0; $Q_k$ that of $a_i$ over rows above k in b.
    """
    sides = scored.labels, scored.predictions
    ranks = [_below(side, side) / len(side) - 0.5 for side in sides]
    spreads = [float(np.mean(rank * rank)) for rank in ranks]
    if not all(spreads):
        return np.zeros(len(scored.labels))

    def change(one: int, other: int) -> Array:
        above = _mean_above(ranks[other], sides[one]) + _mean_above(ranks[one], sides[other])
        return ranks[one] * ranks[other] + above - 3 * np.mean(ranks[one] * ranks[other])

    scale = np.sqrt(spreads[0] * spreads[1])
    rho = np.mean(ranks[0] * ranks[1]) / scale
    return change(0, 1) / scale - rho * (change(0, 0) / spreads[0] + change(1, 1) / spreads[1]) / 2


def _auc_influence(scored: Scored) -> Array:
    """(won - AUC) / share of the row's class, where a row wins against rows of the other class, a tie counting half."""
    yes, positive = scored.probabilities[:, 1], scored.labels == 1
    if positive.all() or not positive.any():
        return np.zeros(len(yes))
    won = np.where(
        positive, _below(yes[~positive], yes) / (~positive).sum(), 1 - _below(yes[positive], yes) / positive.sum()
    )
    return (won - won[positive].mean()) / np.where(positive, positive.mean(), 1 - positive.mean())


def _precision_influence(scored: Scored) -> Array:
    r"""$(y_k (p_k - AP) + \sum_i (y_k - p_i) / n_i) N / P$ for P rows of class 1.

    $p_i$ is the precision among the $n_i$ rows that are at least as probable as row i; the sum is over the rows of
    class 1 that are at most as probable as row k.
    """
    yes, positive = scored.probabilities[:, 1], scored.labels == 1
    if not positive.any():
        return np.zeros(len(yes))
    order = np.argsort(yes, kind="stable")
    chosen = len(yes) - np.searchsorted(yes[order], yes)
    precision = (np.sum(positive) - np.searchsorted(np.sort(yes[positive]), yes)) / chosen
    upto = np.searchsorted(yes[order], yes, "right") - 1
    of_yes, of_all = (np.cumsum((positive * values / chosen)[order])[upto] for values in (1.0, precision))
    return (positive * (precision - precision[positive].mean() + of_yes) - of_all) / positive.mean()


def _below(values: Array, limits: Array) -> Array:
    """Return the number of `values` below each limit [N]; equal ones count half."""
    ordered = np.sort(values)
    return (np.searchsorted(ordered, limits) + np.searchsorted(ordered, limits, "right")) / 2


def _mean_above(values: Array, keys: Array) -> Array:
    """Return, for each row [N], the mean of `values` with 0 for rows of a smaller key, and half for equal keys.

    The mean of all `values` is 0, so it is minus the sum below.
    """
    order = np.argsort(keys, kind="stable")
    sums = np.concatenate([[0.0], np.cumsum(values[order])])
    first, last = (np.searchsorted(keys[order], keys, side) for side in ("left", "right"))
    return -(sums[first] + sums[last]) / (2 * len(keys))


INFLUENCES: dict[str, Callable[[Scored], Array]] = {
    "pearson": _pearson_influence,
    "spearman": _spearman_influence,
    "roc_auc": _auc_influence,
    "average_precision": _precision_influence,
}


def _merged(scored: Scored) -> tuple[Scored, NDArray[np.int64]]:
    """Merge rows with equal labels and predictions; return them, and the merged row of each row [N]."""
    sides = np.stack([scored.labels, scored.predictions], axis=1)
    kinds, unit = np.unique(sides, axis=0, return_inverse=True)
    return Scored(kinds[:, 0], kinds[:, 1], sets=scored.sets), unit.reshape(-1)


def _draws(sizes: NDArray[np.int64], generator: np.random.Generator, resamples: int) -> Iterator[Array]:
    """Yield how often each unit of `sizes` [U] rows was drawn, [r, U] at a time, `resamples` in total."""
    rows, chunk = int(sizes.sum()), max(1, CELLS // len(sizes))
    for start in range(0, resamples, chunk):
        size = min(chunk, resamples - start)
        if len(sizes) < rows:
            yield generator.multinomial(rows, sizes / rows, size).astype(np.float64)
        else:  # drawing rows is cheaper than one binomial for each of them
            drawn = generator.integers(0, rows, (size, rows)) + rows * np.arange(size)[:, None]
            yield np.bincount(drawn.reshape(-1), minlength=size * rows).reshape(size, rows).astype(np.float64)
