"""A paper's result tables: what it reports beside what was measured here, row by row.

What is written out is in `table_text`, what is drawn in `table_plots`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import TYPE_CHECKING

import numpy as np

from bertrio.core.errors import UserError
from bertrio.evaluation.metrics import overall
from bertrio.experiments.recipes.measured import OVERALL
from bertrio.experiments.runs import Difference, Runs, Setting, differ, figure_of, firsts_of, runs_of, value_of

if TYPE_CHECKING:
    from bertrio.experiments.recipes.measured import Measured
    from bertrio.experiments.recipes.rows import Paper, Recipes, Row, Table

FIRSTS = {"sst": "accuracy", "qqp": "accuracy", "sts": "pearson"}  # what the papers report of their tasks
METRICS = (*FIRSTS, *OVERALL)
CONVENTIONS = {"raw": "overall_mean", "normalized": "overall_normalized"}
LAST_DIGIT = 0.0005  # how far a figure of three decimals may be from the one that it was rounded from


@dataclass(frozen=True)
class Score:
    """A measured metric: the mean over seeds, with their standard deviation, or the 95 % interval of a single one."""

    value: float
    deviation: float | None
    interval: tuple[float, float] | None

    @property
    def ends(self) -> tuple[float, float]:
        """Where error bars end."""
        if self.deviation is not None:
            return self.value - self.deviation, self.value + self.deviation
        return self.interval or (self.value, self.value)


@dataclass(frozen=True)
class Line:
    """One row of a table on one split.

    Args:
        row: the row.
        reported: the paper's figures; `overall` is its own.
        runs: the measured runs, by seed.
        scores: by metric, those that were measured.
        differences: by metric, this row minus the one that the table compares with; on dev alone.
    """

    row: Row
    reported: Mapping[str, float]
    runs: Sequence[Measured]
    scores: Mapping[str, Score]
    differences: Mapping[str, Difference]

    @property
    def overalls(self) -> dict[str, float]:
        """Both overall scores of the paper's figures; empty where it does not report all three tasks."""
        if any(task not in self.reported for task in FIRSTS):
            return {}
        firsts = {task: (metric, np.array(self.reported[task])) for task, metric in FIRSTS.items()}
        return {name: float(value) for name, value in overall(firsts).items()}

    def follows(self, convention: str | None) -> bool:
        """Whether the paper's own overall score can be what its figures give, for all that was rounded.

        Args:
            convention: raw or normalized; None: either will do.
        """
        if "overall" not in self.reported or not self.overalls:
            return True
        reach = {"overall_mean": 2 * LAST_DIGIT, "overall_normalized": (1 + 2.5 / 3) * LAST_DIGIT}
        allowed = [CONVENTIONS[convention]] if convention else OVERALL
        return any(abs(self.reported["overall"] - self.overalls[name]) < reach[name] + 1e-9 for name in allowed)


@dataclass(frozen=True)
class Part:
    """One table on one split.

    Args:
        table: the table.
        split: dev or test.
        lines: its rows.
        firsts: the first metric of each task that the table has columns for.
        against: the row that others are compared with; None where none can be.
        notes: what could not be compared.
    """

    table: Table
    split: str
    lines: Sequence[Line]
    firsts: Mapping[str, str]
    against: Row | None = None
    notes: tuple[str, ...] = ()

    @property
    def metrics(self) -> tuple[str, ...]:
        """The tasks, each of which stands for its first metric, and the overall scores."""
        return (*self.firsts, *OVERALL)


@dataclass(frozen=True)
class PaperTables:
    """All tables of a paper, the runs behind them, and what their budget means."""

    paper: Paper
    runs: Runs
    budget: str
    parts: Sequence[Part]


def paper_tables(
    recipes: Recipes,
    measured: Iterable[Measured],
    paper: str,
    wanted: Setting | None = None,
    against: str | None = None,
) -> PaperTables:
    """Puts every row of a paper beside its runs.

    Args:
        recipes: all papers.
        measured: all measured files.
        paper: its short name.
        wanted: which budget, source, encoder and overrides; None: those that there are, if they are one and the same.
        against: the row that all are compared with, of this paper or another; None: the first of each table that can be
            run.

    Raises:
        UserError: if there is no such paper or row, or the runs are of several settings.
    """
    found = recipes.paper(paper)
    base = _runnable(recipes.row(against)) if against else None
    rows = {row.run_as for row in found.rows if not row.literature} | ({base.run_as} if base else set())
    runs = runs_of(measured, rows, wanted or Setting(), recipes)
    budget = recipes.budget(runs.setting.budget).title if runs.setting.budget else ""
    firsts = _firsts_of(runs) if found.own and runs.all else FIRSTS
    parts = [part for table in found.tables.values() for part in _parts(table, runs, base, firsts)]
    return PaperTables(found, runs, budget, parts)


def score_of(
    runs: Sequence[Measured], metric: str, split: str = "dev", firsts: Mapping[str, str] | None = None
) -> Score | None:
    """A metric of a row's runs; None if it was not measured, or is not the same figure in all of them.

    Args:
        runs: the runs.
        metric: a task, for its first metric, or an overall score.
        split: dev or test.
        firsts: the first metric of each task, as the figures beside it have them; None if there are no such figures.
    """
    figures = [figure_of(run, metric) for run in runs]
    if firsts is not None:
        figures.append({task: first for task, first in firsts.items() if metric in OVERALL or task == metric})
    if any(of != figures[0] for of in figures):
        return None
    values = [value for run in runs if (value := value_of(run, metric, split)) is not None]
    if not values or len(values) < len(runs):
        return None
    if len(values) > 1:
        return Score(mean(values), stdev(values), None)
    interval = runs[0].intervals.get(split, {}).get(metric)
    if isinstance(interval, Mapping):
        interval = next(iter(interval.values()), None)
    return Score(values[0], None, (interval[0], interval[1]) if interval else None)


def _runnable(row: Row) -> Row:
    if row.literature:
        raise UserError(f"{row.name}: is quoted from the literature and has no run to compare with; name another row")
    return row


def _firsts_of(runs: Runs) -> dict[str, str]:
    """The first metric of every task that any of the runs has: rows of our own may have tasks of one's own. All of
    them where runs have different ones."""
    found: dict[str, dict[str, None]] = {}
    for run in runs.all:
        for task, metric in firsts_of(run).items():
            found.setdefault(task, {})[metric] = None
    return {task: " or ".join(metrics) for task, metrics in found.items()}


def _parts(table: Table, runs: Runs, base: Row | None, firsts: Mapping[str, str]) -> Iterator[Part]:
    """The table on dev, and on test where the paper reports that of any of its rows."""
    base = base or next((row for row in table.rows.values() if not row.literature), None)
    lines = [_line(row, row.reported, "dev", runs, firsts) for row in table.rows.values()]
    if base is None:
        yield Part(table, "dev", lines, firsts)
    else:
        yield _compared(Part(table, "dev", lines, firsts, base), base, runs.of(base.run_as))
    tested = [_line(row, row.reported_test, "test", runs, firsts) for row in table.rows.values() if row.reported_test]
    if tested:
        yield Part(table, "test", tested, firsts)


def _line(row: Row, reported: Mapping[str, float], split: str, runs: Runs, firsts: Mapping[str, str]) -> Line:
    own = () if row.literature else runs.of(row.run_as)
    papers = FIRSTS if firsts is FIRSTS else None  # else the table is of our own, with columns for what runs have
    scores = {metric: score_of(own, metric, split, papers) for metric in (*firsts, *OVERALL)}
    return Line(row, reported, own, {metric: score for metric, score in scores.items() if score}, {})


def _compared(part: Part, against: Row, base: Sequence[Measured]) -> Part:
    """The same part with differences to the runs `base` of the row `against`, and why some are missing."""
    if not base:
        return replace(part, notes=(f"{against.name} is not measured yet",))
    lines, notes = [], []
    for line in part.lines:
        differences = {}
        for metric in line.scores if line.runs and line.runs[0].row != base[0].row else ():
            try:
                differences[metric] = differ(base, line.runs, metric)
            except UserError as error:
                notes.append(str(error))
        lines.append(replace(line, differences=differences))
    return replace(part, lines=lines, notes=tuple(dict.fromkeys(notes)))
