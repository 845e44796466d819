"""The difference of two rows of the papers, a few seeds each, and whether it is more than luck.

All that it needs is in the measured files, so a clone without predictions can tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bertrio.core.errors import UserError
from bertrio.core.tasks import Array
from bertrio.evaluation.metrics import CORRELATIONS
from bertrio.evaluation.significance import DIGITS, Mean, welch
from bertrio.experiments.bounds import widest, widest_overall, within
from bertrio.experiments.recipes.measured import OVERALL

if TYPE_CHECKING:
    from bertrio.experiments.recipes.measured import Measured

NEGLIGIBLE = 1e-12  # values are near 1: an error below this is rounding


@dataclass(frozen=True)
class Difference:
    """A metric of two sides and the second minus the first, with its 95 % interval and p-value.

    `first` and `second` are means over `seeds`, of which each side has that many. Where one has a single seed, interval
    and p-value know nothing of seeds: they say what other dev rows would do, not what other seeds would.
    """

    metric: str
    first: float
    second: float
    seeds: tuple[int, int]
    low: float
    high: float
    p: float

    @property
    def difference(self) -> float:
        """Second minus first; equal values differ by nothing, whatever was rounded."""
        return round(self.second - self.first, DIGITS)

    @property
    def rows_alone(self) -> bool:
        """Whether a side has too few seeds to tell what they change."""
        return min(self.seeds) < 2


def value_of(run: Measured, metric: str, split: str = "dev") -> float | None:
    """One metric of a run: the first of a task, by the name of the task, or an overall score; None if not measured."""
    found = run.metrics.get(split, {}).get(metric)
    return next(iter(found.values()), None) if isinstance(found, Mapping) else found


def differ(first: Sequence[Measured], second: Sequence[Measured], metric: str) -> Difference:
    """Compares two sides on the same dev rows.

    The difference of the means has the variance of the rows, from what each row adds to the metric (paired: rows that
    both sides find hard cancel out), plus that of the seeds, by `significance.welch`. With fewer than two seeds on a
    side it is that of the rows alone. The interval is cut to what is possible (`bounds`): with one or two degrees of
    freedom Student's t reaches beyond, and differences of accuracies are within 1, of correlations within 2.

    Args:
        first: what is compared with: runs of one row, a seed each.
        second: what is to be judged, likewise.
        metric: a task, whose first metric is meant, or an overall score.

    Raises:
        UserError: if a side has no run, or did not measure the metric, or any two runs have other dev rows, another
            first metric of the task or, for an overall score, of any task.
    """
    _need_same_metrics([*first, *second], metric)
    sides = [_values(first, metric), _values(second, metric)]
    variance = row_variance(first, second, metric)
    seeds = (len(first), len(second))
    mean = welch(*sides, rows=variance) if min(seeds) > 1 else _of_rows_alone(*sides, variance)
    low, high = within((mean.low, mean.high), _widest(first[0], metric))
    return Difference(metric, *(float(np.mean(side)) for side in sides), seeds, low, high, mean.p)


def row_variance(first: Sequence[Measured], second: Sequence[Measured], metric: str) -> float:
    r"""The variance of the difference over other dev rows, seeds as they are.

    For a task it is $\mathrm{var}(\bar a_i - \bar b_i) / N$, $\bar a_i$ being what row i adds to the metric, the mean
    over the seeds of a side. Tasks have rows of their own, so an overall score, the sum of $w_k$ times the metric of
    task k, has $\sum_k w_k^2$ times the variance of task k.

    Raises:
        UserError: as `differ`.
    """
    return sum(
        weight**2 * float(np.var(difference)) / len(difference)
        for task, weight in _weights(first[0], metric).items()
        for difference in [_by_row(second, first, task) - _by_row(first, second, task)]
    )


def _need_same_metrics(runs: Sequence[Measured], metric: str) -> None:
    """Raises a UserError unless `metric` is the same figure in all runs."""
    figures: dict[frozenset[tuple[str, str]], str] = {}
    for run in runs:
        of = figure_of(run, metric)
        told = ", ".join(f"{task} {first}" for task, first in of.items())
        figures.setdefault(frozenset(of.items()), f"of {run.row} it is {told}")
    if len(figures) > 1 and all(figures):  # a run that lacks it is told of below
        raise UserError(f"{metric}: {' and '.join(figures.values())}")


def _values(side: Sequence[Measured], metric: str) -> list[float]:
    if not side:
        raise UserError("there is no run to compare")
    values = [value_of(run, metric) for run in side]
    if None in values:
        raise UserError(f"{side[0].row} has no {metric} on dev")
    return values


def _weights(run: Measured, metric: str) -> dict[str, float]:
    """How much each task's first metric counts in `metric`; a normalized correlation r is (r + 1) / 2."""
    if metric not in OVERALL:
        return {metric: 1.0}
    firsts = firsts_of(run)
    halved = CORRELATIONS if metric == "overall_normalized" else ()
    return {task: (0.5 if first in halved else 1.0) / len(firsts) for task, first in firsts.items()}


def figure_of(run: Measured, metric: str) -> dict[str, str]:
    """The first metric of each task that `metric`, a task or an overall score, is made of."""
    return {task: first for task, first in firsts_of(run).items() if metric in OVERALL or task == metric}


def firsts_of(run: Measured) -> dict[str, str]:
    """The name of each task's first metric."""
    return {task: next(iter(own)) for task, own in run.metrics["dev"].items() if isinstance(own, Mapping)}


def _widest(run: Measured, metric: str) -> float:
    """How far two values of `metric` can be apart."""
    firsts = firsts_of(run)
    return widest_overall(firsts)[metric] if metric in OVERALL else widest(firsts[metric])


def _by_row(side: Sequence[Measured], other: Sequence[Measured], task: str) -> Array:
    """What each dev row adds to the task's first metric [N], the mean over the runs of `side`."""
    runs = [*side, *other]
    if any(task not in run.by_row for run in runs):
        name = next(run.row for run in runs if task not in run.by_row)
        raise UserError(f"{name} has no figures by row of {task}, without which nothing is known of luck")
    if len({run.by_row[task].rows for run in runs}) > 1:
        raise UserError(f"{side[0].row} and {other[0].row} were measured on other dev rows of {task}")
    return np.mean([run.by_row[task].values for run in side], axis=0)


def _of_rows_alone(first: Sequence[float], second: Sequence[float], variance: float) -> Mean:
    """The difference as a normal variable; where nothing varies p is 1, as in `welch`."""
    difference, error = float(np.mean(second) - np.mean(first)), float(np.sqrt(variance))
    if error < NEGLIGIBLE:
        return Mean(difference, difference, difference, 1.0)
    from scipy.special import ndtr, ndtri  # a tenth of a second to import

    reach = float(ndtri(0.975)) * error
    return Mean(difference, difference - reach, difference + reach, 2 * float(ndtr(-abs(difference) / error)))
