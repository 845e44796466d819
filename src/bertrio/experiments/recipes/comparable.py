"""Comparable measured runs: those of one budget, data source and encoder."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from bertrio.core.errors import UserError
from bertrio.evaluation.metrics import OVERALL
from bertrio.evaluation.significance import Difference, Run, TaskScore, paired_difference
from bertrio.experiments.machine_paths import overridden
from bertrio.experiments.recipes.measured import Measured
from bertrio.experiments.recipes.params import value_text
from bertrio.experiments.recipes.resolving import resolve
from bertrio.experiments.recipes.rows import Recipes

FIELDS = ("budget", "source", "encoder")  # fields of a setting, without its overrides


@dataclass(frozen=True)
class Setting:
    """Fields that comparable runs share; None allows any value that all runs have in common.

    `overrides` are those of `-S` that `is_override` names, as given; runs with other overrides do not match.
    """

    budget: str | None = None
    source: str | None = None
    encoder: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def matches(self, run: Measured) -> bool:
        """Return whether the run has this budget, source and encoder; overrides are not compared."""
        return all(getattr(self, name) in (None, getattr(run, name)) for name in FIELDS)

    @property
    def flags(self) -> str:
        """Command-line flags that select the setting."""
        fields = {name: getattr(self, name) for name in FIELDS}
        parts = [f"--{name} {shlex.quote(value)}" for name, value in fields.items() if value is not None]
        return " ".join([*parts, *self._set])

    def run_command(self, *rows: str) -> str:
        """Return the command that runs rows in the setting, without its data and encoder."""
        budget = [f"--budget {self.budget}"] if self.budget else []
        return " ".join(["bertrio recipes run", *rows, *budget, *self._set])

    @property
    def title(self) -> str:
        """Description for captions."""
        return ", ".join([f"budget {self.budget}", str(self.source), str(self.encoder), *self.changed])

    @property
    def changed(self) -> list[str]:
        """Overrides as text."""
        return [f"{name} {value_text(value)}" for name, value in sorted(self.overrides.items())]

    @property
    def _set(self) -> list[str]:
        return [f"-S {shlex.quote(f'{name}={value_text(value)}')}" for name, value in sorted(self.overrides.items())]


@dataclass(frozen=True)
class Runs:
    """Runs of one setting by row, one for each seed.

    `left_out` counts runs with other overrides; `note` says which setting was taken, unless the user named it.
    """

    setting: Setting
    by_row: Mapping[str, Sequence[Measured]]
    left_out: int = 0
    note: str = ""

    def of(self, row: str) -> Sequence[Measured]:
        """Return the runs of a row (its `run_as`), by seed; empty if it was not measured."""
        return self.by_row.get(row, ())

    @property
    def all(self) -> list[Measured]:
        """Runs of all rows."""
        return [run for runs in self.by_row.values() for run in runs]


def runs_of(measured: Iterable[Measured], rows: Iterable[str], wanted: Setting, recipes: Recipes) -> Runs:
    """Return the runs of some rows in one setting.

    Args:
        measured: all measured runs.
        rows: names of the rows to compare (`Row.run_as`).
        wanted: the requested setting; fields may be None.
        recipes: the recipes with these rows.

    Returns:
        The runs and their setting: of several that match `wanted`, the one with most runs. No runs and `wanted` if none
        of the rows was measured.

    Raises:
        UserError: if no run matches `wanted`, or two runs of a row have the same seed.
    """
    rows = set(rows)
    of_rows = [run for run in measured if run.row in rows]
    settings = _settings(of_rows, wanted, recipes)
    if of_rows and not settings:
        flags = wanted.flags or "without -S"
        raise UserError(f"recipes/measured: of these rows there are no runs {flags}, but\n{_list_settings(of_rows)}")
    if not settings:
        return Runs(wanted, {})
    setting, selected = max(settings, key=lambda part: len(part[1]))  # of equals the first, which has no overrides
    by_row: dict[str, list[Measured]] = {}
    for run in sorted(selected, key=lambda run: run.seed):
        runs = by_row.setdefault(run.row, [])
        if runs and runs[-1].seed == run.seed:
            raise UserError(
                f"recipes/measured: two runs of {run.row} have seed {run.seed}, {runs[-1].name} and {run.name}; "
                "a seed counts once, so remove the file of one of them"
            )
        runs.append(run)
    note = ""
    if len(settings) > 1 or (setting.overrides and not wanted.overrides):
        others = "".join(f"; {other.flags} has {len(runs)}" for other, runs in settings if other != setting)
        note = f"This uses the {len(selected)} runs of {setting.flags}{others}."
    return Runs(setting, by_row, sum(map(setting.matches, of_rows)) - len(selected), note)


def _settings(of_rows: Sequence[Measured], wanted: Setting, recipes: Recipes) -> list[tuple[Setting, list[Measured]]]:
    """Return the settings that match `wanted`, each with its runs; without overrides in `wanted`, of any overrides."""
    candidates = [run for run in of_rows if wanted.matches(run)]
    keys = {(run.row, run.budget) for run in candidates}
    check = bool(wanted.overrides)  # those of measured runs were valid
    plain = cache(lambda row, budget: resolve(recipes, recipes.row(row), budget, check=check))

    def effect(row: str, budget: str, overrides: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the params of a row that the overrides change, in the form of measured files.

        `tasks.*.dropout` is expanded to all tasks, and values that the row already has are left out. `resolve` raises
        a UserError if they don't fit the row. A row of another paper or tool has no params to change.
        """
        if not overrides or recipes.row(row).literature:
            return {}
        return overridden(plain(row, budget), resolve(recipes, recipes.row(row), budget, overrides, check=check))

    choices = [wanted.overrides]
    if not wanted.overrides:
        choices += [run.overrides for run in candidates]
    settings: list[tuple[Setting, list[Measured]]] = []
    for overrides in (choice for index, choice in enumerate(choices) if choice not in choices[:index]):
        effects, problems = {}, []
        for key in sorted(keys):
            try:
                effects[key] = effect(*key, overrides)
            except UserError as error:  # overrides of one row need not fit another
                problems.append(error)
        if wanted.overrides and problems and all(recipes.row(row).literature for row, _ in effects):
            raise problems[0]
        by_fields: dict[tuple[str, str, str], list[Measured]] = {}
        for run in candidates:
            if run.overrides == effects.get((run.row, run.budget)):
                by_fields.setdefault((run.budget, run.source, run.encoder), []).append(run)
        settings += [(Setting(*fields, overrides), runs) for fields, runs in by_fields.items()]
    return settings


def _list_settings(runs: Iterable[Measured]) -> str:
    """Return a line for each setting: its flags, and its numbers of runs and rows."""
    rows: dict[str, list[str]] = {}
    for run in runs:
        setting = Setting(run.budget, run.source, run.encoder, run.overrides)
        rows.setdefault(setting.flags, []).append(run.row)
    return "\n".join(f"  {flags}: {len(names)} runs of {len(set(names))} rows" for flags, names in sorted(rows.items()))


def value_of(run: Measured, metric: str, split: str = "dev", kind: str = "metrics") -> Any:
    """One metric of a run, or with `kind="intervals"` its interval: the main one of a task, by the task's name, or an
    overall score; None if not measured."""
    value = getattr(run, kind).get(split, {}).get(metric)
    return next(iter(value.values()), None) if isinstance(value, Mapping) else value


def main_metrics_of(run: Measured) -> dict[str, str]:
    """The name of each task's main metric."""
    return {task: next(iter(values)) for task, values in run.metrics["dev"].items() if isinstance(values, Mapping)}


def figure_of(run: Measured, metric: str) -> dict[str, str]:
    """The main metric of each task that `metric`, a task or an overall score, is made of."""
    return {task: main for task, main in main_metrics_of(run).items() if metric in OVERALL or task == metric}


@dataclass(frozen=True)
class Ratio:
    """Ratio of the updates' times of two sides with its 95 % interval, which a side with a single seed leaves open."""

    value: float
    low: float
    high: float
    seeds: tuple[int, int]


def time_ratio(first: Sequence[Measured], second: Sequence[Measured]) -> Ratio:
    """Return how many times as long as those of `first` the updates of `second` took.

    Scoring is left out: on few training rows it takes a share of the time that it does not have on many.

    The interval is that of Welch's test on the logarithms of the seconds; Welch 1947, "The generalization of Student's
    problem when several different population variances are involved".

    Of several sessions, the one in which both sides have most runs counts.

    Raises:
        UserError: if no session timed both sides with one device, precision and number of threads.
    """
    timed: dict[tuple, tuple[list[Measured], list[Measured]]] = {}
    for side, runs in enumerate((first, second)):
        for run in runs:
            if run.session is not None and run.update_seconds:
                timed.setdefault((run.session, run.device, run.precision, run.threads), ([], []))[side].append(run)
    shared = [sides for sides in timed.values() if all(sides)]
    if not shared:
        raise UserError(f"{second[0].row} and {first[0].row} were not timed in one session")
    first, second = max(shared, key=lambda sides: min(map(len, sides)))
    from scipy.stats import ttest_ind  # slow to import

    logs = [np.log(np.array([run.update_seconds for run in side], dtype=float)) for side in (second, first)]
    several = min(map(len, logs)) > 1
    ends = ttest_ind(*logs, equal_var=False).confidence_interval(0.95) if several else (-np.inf, np.inf)
    value, low, high = np.exp([logs[0].mean() - logs[1].mean(), *ends]).tolist()
    return Ratio(value, low, high, (len(first), len(second)))


def differ(first: Sequence[Measured], second: Sequence[Measured], metric: str) -> Difference:
    """Compare two sides on the same dev rows, see `significance.paired_difference`.

    Args:
        first: what is compared with: runs of one row, a seed each.
        second: what is to be judged, likewise.
        metric: a task, whose main metric is compared, or an overall score.

    Raises:
        UserError: if a side did not measure the metric, or two runs have other dev rows or other main
            metrics.
    """
    runs = [*first, *second]
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
