"""Runs that may stand side by side: those of one budget, data source and encoder."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from bertrio.config.loading import read_yaml
from bertrio.core.errors import UserError
from bertrio.evaluation.metrics import OVERALL
from bertrio.evaluation.significance import Difference, Run, TaskScore, paired_difference
from bertrio.experiments.machine_paths import is_override, overridden
from bertrio.experiments.recipes.params import value_text
from bertrio.experiments.recipes.resolving import resolve

if TYPE_CHECKING:
    from bertrio.experiments.recipes.measured import Measured
    from bertrio.experiments.recipes.rows import Recipes

NAMED = ("budget", "source", "encoder")  # what a setting names beside its overrides


@dataclass(frozen=True)
class Setting:
    """What runs must share to be compared; where it is None, any will do as long as all runs have the same.

    `overrides` are those that `-S` made, as it was given: none, unless they are asked for.
    """

    budget: str | None = None
    source: str | None = None
    encoder: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Measured) -> Setting:
        """The setting of one run."""
        return cls(run.budget, run.source, run.encoder, dict(run.overrides))

    def takes(self, run: Measured) -> bool:
        """Whether the run is of this setting, its overrides aside."""
        return all(getattr(self, name) in (None, getattr(run, name)) for name in NAMED)

    @property
    def flags(self) -> str:
        """The flags of the command line that ask for it."""
        named = {name: getattr(self, name) for name in NAMED}
        parts = [f"--{name} {shlex.quote(value)}" for name, value in named.items() if value is not None]
        return " ".join([*parts, *self._set])

    @property
    def to_run(self) -> str:
        """Those of `bertrio recipes run` that make runs of it; data and encoder are the user's to name."""
        return " ".join([*([f"--budget {self.budget}"] if self.budget else []), *self._set])

    @property
    def title(self) -> str:
        """All of it in words, for below a picture."""
        return ", ".join([f"budget {self.budget}", str(self.source), str(self.encoder), *self.changed])

    @property
    def changed(self) -> list[str]:
        """The overrides in words."""
        return [f"{name} {value_text(value)}" for name, value in sorted(self.overrides.items())]

    @property
    def _set(self) -> list[str]:
        return [f"-S {shlex.quote(f'{name}={value_text(value)}')}" for name, value in sorted(self.overrides.items())]


@dataclass(frozen=True)
class Runs:
    """The runs of one setting by the row that they are of, a seed each; `left_out` were made with other overrides."""

    setting: Setting
    by_row: Mapping[str, Sequence[Measured]]
    left_out: int = 0

    def of(self, row: str) -> Sequence[Measured]:
        """The runs of a row (its `run_as`), by seed; none if it was not measured."""
        return self.by_row.get(row, ())

    @property
    def all(self) -> list[Measured]:
        """The runs of all rows."""
        return [run for runs in self.by_row.values() for run in runs]


def _effect(row: str, budget: str, overrides: Mapping[str, Any], recipes: Recipes) -> Mapping[str, Any]:
    """Return what overrides come to for a row, as measured files name it: `tasks.*.dropout` is a param of every task,
    and what the row has anyway is none. They are checked as `resolve` does."""
    if not overrides:
        return {}
    base = read_yaml("params.yaml")
    plain, changed = (resolve(recipes, recipes.row(row), budget, own, base=base) for own in ({}, overrides))
    return overridden(plain, changed)


def runs_of(measured: Iterable[Measured], rows: Iterable[str], wanted: Setting, recipes: Recipes) -> Runs:
    """The runs of some rows in one setting.

    Args:
        measured: all that there is.
        rows: what rows are called that are to be compared (`Row.run_as`).
        wanted: the setting, as far as it was named.
        recipes: that have these rows.

    Returns:
        No runs at all, and `wanted`, if none of the rows was measured yet.

    Raises:
        UserError: if there is no such budget, the runs are of several settings or of others than `wanted`, or two of a
            row have the same seed.
    """
    measured = list(measured)
    if wanted.budget is not None and all(run.budget != wanted.budget for run in measured):
        recipes.budget(wanted.budget)
    overrides = {param: value for param, value in wanted.overrides.items() if is_override(param)}
    rows = set(rows)
    there = [run for run in measured if run.row in rows]
    candidates = [run for run in there if wanted.takes(run)]
    effects = {key: _effect(*key, overrides, recipes) for key in {(run.row, run.budget) for run in candidates}}
    taken = [run for run in candidates if run.overrides == effects[run.row, run.budget]]
    if there and not taken:
        asked = wanted.flags or "without -S"
        raise UserError(f"recipes/measured: of these rows there are no runs {asked}, but\n{_listed(there)}")
    if len({(run.budget, run.source, run.encoder) for run in taken}) > 1:
        raise UserError(
            "recipes/measured: runs of these rows are of several settings, which are never mixed; choose one by its "
            f"flags:\n{_listed(taken)}"
        )
    by_row: dict[str, list[Measured]] = {}
    for run in sorted(taken, key=lambda run: run.seed):
        runs = by_row.setdefault(run.row, [])
        if runs and runs[-1].seed == run.seed:
            raise UserError(
                f"recipes/measured: two runs of {run.row} have seed {run.seed}, {runs[-1].name} and {run.name}; "
                "a seed counts once, so remove the file of one of them"
            )
        runs.append(run)
    if not taken:
        return Runs(wanted, by_row)
    setting = replace(Setting.of(taken[0]), overrides=overrides)
    return Runs(setting, by_row, sum(map(setting.takes, there)) - len(taken))


def _listed(runs: Iterable[Measured]) -> str:
    """A line for each setting: its flags, and how many runs of how many rows it has."""
    rows: dict[str, list[str]] = {}
    for run in runs:
        rows.setdefault(Setting.of(run).flags, []).append(run.row)
    return "\n".join(f"  {flags}: {len(own)} runs of {len(set(own))} rows" for flags, own in sorted(rows.items()))


def value_of(run: Measured, metric: str, split: str = "dev", kind: str = "metrics") -> Any:
    """One metric of a run, or with `kind="intervals"` its interval: the first of a task, by the name of the task, or an
    overall score; None if not measured."""
    value = getattr(run, kind).get(split, {}).get(metric)
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
    for task in figure_of(runs[0], metric):
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
