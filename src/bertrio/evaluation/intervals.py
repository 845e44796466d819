"""Intervals by the bootstrap: how far a metric would move if other rows of the same kind had been drawn.

A resample is N rows drawn with replacement from the N at hand, and a metric of it is the metric of the rows at hand,
each counted as often as it was drawn. So each metric is written here as a function of such counts, for many resamples
at once, and no row is copied or sorted again.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bertrio.core.tasks import Array, Task
from bertrio.evaluation import calibration
from bertrio.evaluation.metrics import (
    METRICS,
    ON_COUNTS,
    ON_THRESHOLDS,
    Scored,
    count,
    overall,
    scored_by_task,
    thresholds,
)

LEVEL = 0.95
SEED = 0
RANKING = ("roc_auc", "average_precision", "ece", "spearman")  # each of their resamples takes several passes over rows
TILT = 1e-6  # epsilon of `contributions`
CELLS = 2**16  # counts that are held at a time: half a megabyte, which stays in a processor's cache
Weighted = Callable[[Array], Array]  # counts [r, N] of the rows -> the metric [r] of each resample


def resamples_of(metric: str) -> int:
    """How many resamples `metric` gets: 1,000 for what depends on ranks, 10,000 for means, counts and correlations."""
    return 1_000 if metric in RANKING else 10_000


def generator_for(split: str, task: str) -> np.random.Generator:
    """A generator seeded by what is measured alone, so that no figure depends on what else is.

    All metrics of a task start from it; those of counts draw counts and the others rows, so that within these two
    families all see the same resamples. Other tasks see others.
    """
    return np.random.default_rng([SEED, zlib.crc32(f"{split}/{task}".encode())])


def bootstrap(sides: Sequence[Scored], metric: str, generator: np.random.Generator, resamples: int) -> Array:
    """A metric of resampled rows.

    Metrics of counts draw the counts themselves, from the multinomial that drawing rows leads to: their cost does not
    depend on N.

    Args:
        sides: [S] predictions of the same rows, in the same order: all see the same resamples, so that their
            differences are paired.
        metric: a name in METRICS.
        generator: draws the resamples.
        resamples: how many (R); `resamples_of` says how many are usual.

    Returns:
        Values [S, R].
    """
    return _resample(sides, {metric: resamples}, generator)[metric]


def interval(values: Array, level: float = LEVEL) -> tuple[float, float]:
    """The percentile interval: between the quantiles (1 - level) / 2 and (1 + level) / 2 of bootstrap `values` [R]."""
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def metric_interval(scored: Scored, metric: str, values: Array, level: float = LEVEL) -> tuple[float, float]:
    """The interval of a metric of `scored` from its bootstrap `values` [R]: `interval`, but for `ece`, which is biased.

    A bin's gap is taken without its sign, so noise alone makes an error: a perfectly calibrated model's is above 0,
    and its resamples' are higher still, all above the truth. So the interval of `ece` is the basic one (the quantiles
    mirrored at the estimate), reaches down to 0 where a calibrated model would reach the estimate, and includes the
    estimate. In simulations it covers 85 to 98 % where the percentile interval covers 0 to 80 %.
    """
    low, high = interval(values, level)
    if metric != "ece":
        return low, high
    estimate = METRICS["ece"](scored)
    by_noise = interval(_ece_of_calibrated(scored.confidence, len(values)), level)[1]
    return 0.0 if estimate <= by_noise else max(0.0, 2 * estimate - high), max(estimate, 2 * estimate - low)


def _ece_of_calibrated(confidence: Array, draws: int) -> Array:
    """What `ece` a model has that is right as often as it is confident: values [draws], bins as normal variables."""
    bin_of = calibration.equal_mass_bins(confidence)
    spread = np.sqrt(np.bincount(bin_of, weights=confidence * (1 - confidence)))
    noise = np.random.default_rng(SEED).standard_normal((draws, len(spread)))
    return np.abs(noise * spread).sum(axis=1) / len(confidence)


def intervals(frame: pd.DataFrame, tasks: Mapping[str, Task]) -> dict[str, dict[str, Any]]:
    """95 % intervals of all that `evaluate_predictions` returns, with fixed seeds.

    The overall scores' come from resamples of each task of its own, for tasks are measured on different rows.

    Returns:
        `{split: {task: {metric: [low, high]}, "overall_mean": [low, high], "overall_normalized": [low, high]}}`.

    Raises:
        UserError: if there are predictions of an unknown task.
    """
    found: dict[str, dict[str, Any]] = {}
    for split, of in scored_by_task(frame, tasks).items():
        found[split], firsts = {}, {}
        for task, scored in of.items():
            metrics = tasks[task].target.metrics
            values = _values(scored, metrics, split, task)
            found[split][task] = {name: list(metric_interval(scored, name, own)) for name, own in values.items()}
            firsts[task] = (metrics[0], values[metrics[0]])
        if len(of) == len(tasks):
            found[split] |= {name: list(interval(values)) for name, values in overall_of_resamples(firsts).items()}
    return found


def overall_of_resamples(firsts: Mapping[str, tuple[str, Array]]) -> dict[str, Array]:
    """The overall scores of resamples, by task the name of its first metric and its values [..., R].

    Metrics have unlike numbers of them (`resamples_of`). As tasks are resampled apart, it does not matter which
    resamples meet: there are as many overall scores as the metric with the fewest has values.
    """
    fewest = min(values.shape[-1] for _, values in firsts.values())
    return overall({task: (metric, values[..., :fewest]) for task, (metric, values) in firsts.items()})


def contributions(scored: Scored, metric: str) -> Array:
    r"""What each row contributes to a metric: the variance of a difference of two runs is that of paired means of them.

    For accuracy it is 1 or 0. For other metrics T it is the influence of the row ("The influence curve and its role in
    robust estimation", Hampel 1974), the derivative of $T((1 - \epsilon) F + \epsilon \delta_i)$ at $\epsilon = 0$,
    where F is the distribution of the rows and $\delta_i$ that of row i alone; its mean is 0. For Pearson's r that is
    $z_x z_y - r (z_x^2 + z_y^2) / 2$ (Devlin, Gnanadesikan and Kettenring 1975), z being standardised labels and
    predictions; for all others it is taken numerically.

    With contributions a and b of two runs on the same N rows, var(a - b) / N is the variance of the difference of
    their metrics that the paired bootstrap finds.

    Returns:
        Values [N] in the order of the rows.
    """
    if metric == "accuracy":
        return scored.correct
    if metric == "pearson":
        x, y = (standardised(values) for values in (scored.labels, scored.predictions))
        return x * y - np.mean(x * y) * (x * x + y * y) / 2
    rows, unit = len(scored.labels), np.arange(len(scored.labels))
    if metric in ON_COUNTS:
        [scored], unit = _merged([scored])
    weighted, counts = WEIGHTED[metric](scored), np.bincount(unit).astype(np.float64)
    values, chunk = np.empty(len(counts)), max(1, CELLS // len(counts))
    for start in range(0, len(counts), chunk):
        size = min(chunk, len(counts) - start)
        tilted = np.tile(counts * (1 - TILT), (size, 1))
        tilted[np.arange(size), start + np.arange(size)] += TILT * rows
        values[start : start + size] = weighted(tilted)
    return ((values - weighted(counts[None])) / TILT)[unit]


def _values(scored: Scored, metrics: Sequence[str], split: str, task: str) -> dict[str, Array]:
    """Values [R] of each metric, as `bootstrap` has them for the generator of the task."""
    values: dict[str, Array] = {}
    for counted in (True, False):
        family = {name: resamples_of(name) for name in metrics if (name in ON_COUNTS) == counted}
        if family:
            own = _resample([scored], family, generator_for(split, task))
            values |= {name: sides[0] for name, sides in own.items()}
    return {name: values[name] for name in metrics}


def _resample(sides: Sequence[Scored], metrics: Mapping[str, int], generator: np.random.Generator) -> dict[str, Array]:
    """Values [S, R] by metric, from the same resamples for all, of which each metric takes its first R.

    The metrics are all of counts, or none is.
    """
    unit = np.arange(len(sides[0].labels))  # rows that are alike for the metrics are one unit
    if ON_COUNTS.keys() >= metrics.keys():
        sides, unit = _merged(sides)
    weighted = {name: [WEIGHTED[name](side) for side in sides] for name in metrics}
    values = {name: np.empty((len(sides), resamples)) for name, resamples in metrics.items()}
    start = 0
    for counts in _draws(unit, generator, max(metrics.values())):
        for name, resamples in metrics.items():
            own = counts[: max(0, resamples - start)]
            for side, of in enumerate(weighted[name] if len(own) else ()):
                values[name][side, start : start + len(own)] = of(own)
        start += len(counts)
    return values


def _merged(sides: Sequence[Scored]) -> tuple[list[Scored], NDArray[np.int64]]:
    """One row for all rows that no side tells apart, and which of those each row [N] became.

    Their order, and with it the resamples, does not depend on the order of the sides.
    """
    order = sorted(range(len(sides)), key=lambda side: sides[side].predictions.tobytes())
    table = np.stack([sides[0].labels, *[sides[side].predictions for side in order]], axis=1)
    kinds, unit = np.unique(table, axis=0, return_inverse=True)
    return [Scored(kinds[:, 0], kinds[:, 1 + order.index(side)]) for side in range(len(sides))], unit.reshape(-1)


def _draws(unit: NDArray[np.int64], generator: np.random.Generator, resamples: int) -> Iterator[Array]:
    """How often each unit [U] was drawn, [r, U] at a time, until there were `resamples`.

    A multinomial draw costs U binomials and a draw of rows N small integers, which are the cheaper the more there are.
    """
    rows, sizes = len(unit), np.bincount(unit)
    few, alike = 16 * len(sizes) < rows, len(sizes) < rows
    chunk = max(1, CELLS // len(sizes))
    for start in range(0, resamples, chunk):
        size = min(chunk, resamples - start)
        if few:
            yield generator.multinomial(rows, sizes / rows, size).astype(np.float64)
            continue
        counts = np.empty((size, len(sizes)))
        for of in counts:
            drawn = generator.integers(0, rows, rows)
            of[:] = np.bincount(unit[drawn] if alike else drawn, minlength=len(sizes))
        yield counts


def _by_counts(metric: Callable[[Array], Array]) -> Callable[[Scored], Weighted]:
    """A function of counts of (label, prediction), from counts of rows."""

    def prepare(scored: Scored) -> Weighted:
        size = len(count(scored))
        cell = (scored.labels * size + scored.predictions).astype(np.int64)
        cells = np.zeros((len(cell), size * size))
        cells[np.arange(len(cell)), cell] = 1
        return lambda counts: metric((counts @ cells).reshape(-1, size, size))

    return prepare


def _by_thresholds(metric: Callable[[Array, Array], Array]) -> Callable[[Scored], Weighted]:
    """A function of counts of yes and of no at each probability, from counts of rows."""

    def prepare(scored: Scored) -> Weighted:
        rank, _ = thresholds(scored)
        total = _grouped(rank)
        return lambda counts: metric(yes := total(counts * scored.labels), total(counts) - yes)

    return prepare


def _by_means(columns: Callable[[Scored], Array], metric: Callable[[Array], Array]) -> Callable[[Scored], Weighted]:
    """A function of the means [r, k] of `columns` [N, k]."""

    def prepare(scored: Scored) -> Weighted:
        table = np.ascontiguousarray(columns(scored).T)  # [k, N]: products along rows are several times faster
        return lambda counts: metric(counts @ table.T / len(scored.labels))

    return prepare


def _moments(scored: Scored) -> Array:
    """[N, 5]: x, y, x^2, y^2 and x y, both standardised, so that no digits are lost to a large mean."""
    x, y = (standardised(side) for side in (scored.labels, scored.predictions))
    return np.stack([x, y, x * x, y * y, x * y], axis=1)


def standardised(values: Array) -> Array:
    """Values [N] less their mean, by their standard deviation; zeros where all are equal."""
    spread = values.std() if np.ptp(values) else 1.0
    return (values - values.mean()) / spread


def _correlation(means: Array) -> Array:
    """Pearson's correlation, from the means of the `_moments`."""
    x, y, xx, yy, xy = means.T
    return _cosine(xy - x * y, xx - x * x, yy - y * y)


def _cosine(both: Array, one: Array, other: Array) -> Array:
    """both / sqrt(one * other), 0 where either is 0 but for rounding, given that they are about 1 elsewhere."""
    constant = np.minimum(one, other) < 1e-12
    return np.where(constant, 0.0, np.clip(both / np.sqrt(np.where(constant, 1.0, one * other)), -1.0, 1.0))


def _spearman(scored: Scored) -> Weighted:
    ranks = [_ranks(values) for values in (scored.labels, scored.predictions)]

    def measure(counts: Array) -> Array:
        x, y = (rank(counts) for rank in ranks)
        weighed = counts * x
        both, one = (weighed * y).mean(axis=1), (weighed * x).mean(axis=1)
        return _cosine(both, one, (counts * y * y).mean(axis=1))

    return measure


def _ranks(values: Array) -> Weighted:
    """The mean rank of each row's value among all resampled rows [r, N], 0 in the middle, and scaled by N / 4.

    Rows that are alike share the mean of their ranks, and the mean over all rows is 0 whatever was drawn.
    """
    _, group = np.unique(values, return_inverse=True)
    total = _grouped(group)

    def rank(counts: Array) -> Array:
        sizes = total(counts)
        middle = np.cumsum(sizes, axis=1) - (sizes + len(values)) / 2
        return (middle / (len(values) / 4))[:, group]

    return rank


def _grouped(group: NDArray[np.int64]) -> Weighted:
    """Sums of columns [r, N] by group: [r, G]."""
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    return lambda counts: np.add.reduceat(counts[:, order], starts, axis=1)


def _ece(scored: Scored) -> Weighted:
    """Bins by rank among the resampled rows, as `calibration.equal_mass_bins` has them."""
    rows, bins = len(scored.labels), calibration.BINS
    _, group = np.unique(scored.confidence, return_inverse=True)
    total, gap = _grouped(group), scored.correct - scored.confidence

    def measure(counts: Array) -> Array:
        sizes = total(counts)
        middle = np.cumsum(sizes, axis=1) - sizes / 2
        bin_of = np.minimum((middle * bins / rows).astype(np.int64), bins - 1)  # last groups may be empty: at N itself
        bin_of += bins * np.arange(len(counts))[:, None]
        gaps = np.bincount(bin_of.reshape(-1), weights=total(counts * gap).reshape(-1), minlength=bins * len(counts))
        return np.abs(gaps).reshape(-1, bins).sum(axis=1) / rows

    return measure


def _brier_rows(scored: Scored) -> Array:
    """[N, 1]."""
    return calibration.brier_terms(scored.class_probabilities, scored.labels)[:, None]


def _squared_errors(scored: Scored) -> Array:
    """[N, 1]."""
    return np.square(scored.labels - scored.predictions)[:, None]


WEIGHTED: dict[str, Callable[[Scored], Weighted]] = {
    **{name: _by_counts(metric) for name, metric in ON_COUNTS.items()},
    **{name: _by_thresholds(metric) for name, metric in ON_THRESHOLDS.items()},
    "ece": _ece,
    "brier": _by_means(_brier_rows, lambda means: means[:, 0]),
    "pearson": _by_means(_moments, _correlation),
    "spearman": _spearman,
    "rmse": _by_means(_squared_errors, lambda means: np.sqrt(means[:, 0])),
}
