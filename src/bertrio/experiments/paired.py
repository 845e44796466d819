"""The paired test on measured files: differences of two rows of the papers, a few seeds each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bertrio.core.errors import UserError
from bertrio.evaluation.metrics import OVERALL
from bertrio.evaluation.significance import Difference, Run, TaskScore, paired_difference

if TYPE_CHECKING:
    from bertrio.experiments.recipes.measured import Measured


def value_of(run: Measured, metric: str, split: str = "dev") -> float | None:
    """One metric of a run: the first of a task, by the name of the task, or an overall score; None if not measured."""
    value = run.metrics.get(split, {}).get(metric)
    return next(iter(value.values()), None) if isinstance(value, Mapping) else value


def firsts_of(run: Measured) -> dict[str, str]:
    """The name of each task's first metric."""
    return {task: next(iter(values)) for task, values in run.metrics["dev"].items() if isinstance(values, Mapping)}


def figure_of(run: Measured, metric: str) -> dict[str, str]:
    """The first metric of each task that `metric`, a task or an overall score, is made of."""
    return {task: first for task, first in firsts_of(run).items() if metric in OVERALL or task == metric}


def differ(first: Sequence[Measured], second: Sequence[Measured], metric: str) -> Difference:
    """Compare two sides on the same dev rows, see `significance.paired_difference`.

    Args:
        first: what is compared with: runs of one row, a seed each.
        second: what is to be judged, likewise.
        metric: a task, whose first metric is compared, or an overall score.

    Raises:
        UserError: if a side has no run or did not measure the metric, or two runs have other dev rows or other first
            metrics.
    """
    runs = [*first, *second]
    if not first or not second:
        raise UserError("there is no run to compare")
    for run in runs:
        if value_of(run, metric) is None:
            raise UserError(f"{run.row} has no {metric} on dev")
    figures = {tuple(figure_of(run, metric).items()): run.row for run in runs}
    if len({frozenset(figure) for figure in figures}) > 1:
        named = [f"of {row} it is {', '.join(map(' '.join, figure))}" for figure, row in figures.items()]
        raise UserError(f"{metric}: {' and '.join(named)}")
    for task in figure_of(first[0], metric):
        for run in runs:
            if task not in run.by_row:
                raise UserError(f"{run.row} has no contributions by row of {task}; collect it again")
        if len({run.by_row[task].rows for run in runs}) > 1:
            raise UserError(f"{second[0].row} and {first[0].row} were measured on other dev rows of {task}")
    one, other = ([_scores(run, metric) for run in side] for side in (first, second))
    return paired_difference(one, other, metric)


def _scores(run: Measured, metric: str) -> Run:
    dev: Mapping[str, Any] = run.metrics["dev"]
    return {
        task: TaskScore(name, dev[task][name], run.by_row[task].values) for task, name in figure_of(run, metric).items()
    }
