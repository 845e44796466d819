"""A paper's result tables: what it reports beside what was measured here, row by row.

What is written out is in `table_text`, what is drawn in `table_plots`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import TYPE_CHECKING

import numpy as np

from bertrio.core.errors import UserError
from bertrio.evaluation.metrics import OVERALL, overall
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
    """A measured metric: the mean over seeds, with their standard deviation, or the 95 % interval of a single one.

    What it does not have is NaN.
    """

    measured: float
    deviation: float = np.nan
    low: float = np.nan
    high: float = np.nan


@dataclass(frozen=True)
class Line:
    """One row of a table on one split.

    Args:
        row: the row.
        reported: the paper's figures; `overall` is its own, and with all three tasks there are both overall scores.
        runs: the measured runs, by seed.
        scores: by metric, those that were measured.
        differences: by metric, this row minus the one that the table compares with; on dev alone.
    """

    row: Row
    reported: Mapping[str, float]
    runs: Sequence[Measured]
    scores: Mapping[str, Score]
    differences: dict[str, Difference] = field(default_factory=dict)

    @property
    def seconds(self) -> float | None:
        """The seconds of training, the mean over seeds."""
        return mean(run.seconds for run in self.runs) if self.runs else None

    @property
    def peak_memory_mb(self) -> float | None:
        """The peak memory of training, the maximum over seeds."""
        return max((run.peak_memory_mb for run in self.runs), default=None)

    def follows(self, convention: str | None) -> bool:
        """Whether the paper's own overall score can be what its figures give, for all that was rounded.

        Args:
            convention: raw or normalized; None: either will do.
        """
        if not {"overall", *OVERALL} <= self.reported.keys():
            return True
        reach = {"overall_mean": 2 * LAST_DIGIT, "overall_normalized": (1 + 2.5 / 3) * LAST_DIGIT}
        allowed = [CONVENTIONS[convention]] if convention else OVERALL
        return any(abs(self.reported["overall"] - self.reported[name]) < reach[name] + 1e-9 for name in allowed)


@dataclass(frozen=True)
class Part:
    """One table on one split.

    Args:
        table: the table.
        split: dev or test.
        lines: its rows.
        against: the row that others are compared with; None where none can be.
        notes: what could not be compared.
    """

    table: Table
    split: str
    lines: Sequence[Line]
    against: Row | None = None
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class PaperTables:
    """All tables of a paper, the runs behind them, what their budget means, and the first metric of each task that they
    have columns for."""

    paper: Paper
    runs: Runs
    budget: str
    firsts: Mapping[str, str]
    parts: Sequence[Part]

    @property
    def metrics(self) -> tuple[str, ...]:
        """The tasks, each of which stands for its first metric, and the overall scores."""
        return (*self.firsts, *OVERALL)


def paper_tables(
    recipes: Recipes,
    measured: Iterable[Measured],
    paper: str,
    wanted: Setting | None = None,
    against: str | None = None,
) -> PaperTables:
    """Put every row of a paper beside its runs.

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
    base = recipes.row(against) if against else None
    if base and base.literature:
        raise UserError(f"{base.name}: is quoted from the literature and has no run to compare with; name another row")
    rows = {row.run_as for row in [*found.rows, *([base] if base else [])] if not row.literature}
    runs = runs_of(measured, rows, wanted or Setting(), recipes)
    budget = recipes.budget(runs.setting.budget).title if runs.setting.budget else ""
    firsts = _firsts_of(runs) if found.own and runs.all else None
    parts = []
    for table in found.tables.values():
        first = next((row for row in table.rows.values() if not row.literature), None)
        lines = [_line(row, row.reported, "dev", runs, firsts) for row in table.rows.values()]
        parts.append(Part(table, "dev", lines, base or first, _compare(lines, base or first, runs)))
        tested = [row for row in table.rows.values() if row.reported_test]
        if tested:
            lines = [_line(row, row.reported_test, "test", runs, firsts) for row in tested]
            parts.append(Part(table, "test", lines))
    return PaperTables(found, runs, budget, firsts or FIRSTS, parts)


def _firsts_of(runs: Runs) -> dict[str, str]:
    """The first metric of every task that any of the runs has: rows of our own may have tasks of one's own. All of
    them where runs have different ones."""
    found: dict[str, dict[str, None]] = {}
    for run in runs.all:
        for task, metric in firsts_of(run).items():
            found.setdefault(task, {})[metric] = None
    return {task: " or ".join(metrics) for task, metrics in found.items()}


def _line(row: Row, reported: Mapping[str, float], split: str, runs: Runs, firsts: Mapping[str, str] | None) -> Line:
    """Return a row with its scores; `firsts` is None where a paper's figures stand beside them."""
    own = () if row.literature else runs.of(row.run_as)
    if FIRSTS.keys() <= reported.keys():
        figures = {task: (metric, np.array(reported[task])) for task, metric in FIRSTS.items()}
        reported = {**reported, **{name: float(value) for name, value in overall(figures).items()}}
    scores = {metric: _score(own, metric, split, firsts is None) for metric in (*(firsts or FIRSTS), *OVERALL)}
    return Line(row, reported, own, {metric: score for metric, score in scores.items() if score})


def _score(runs: Sequence[Measured], metric: str, split: str, beside_paper: bool) -> Score | None:
    """A metric of a row's runs; None if it was not measured, or is not the same figure in all of them, and in what the
    paper reports if it stands beside that."""
    figures = [figure_of(run, metric) for run in runs]
    if beside_paper:
        figures.append({task: first for task, first in FIRSTS.items() if metric in OVERALL or task == metric})
    values = [value for run in runs if (value := value_of(run, metric, split)) is not None]
    if not values or len(values) < len(runs) or any(figure != figures[0] for figure in figures):
        return None
    if len(values) > 1:
        return Score(mean(values), stdev(values))
    low, high = value_of(runs[0], metric, split, "intervals") or (np.nan, np.nan)
    return Score(values[0], low=low, high=high)


def _compare(lines: Iterable[Line], against: Row | None, runs: Runs) -> list[str]:
    """Fill in the differences to a row, and return why some are missing."""
    if against is None:
        return []
    base = runs.of(against.run_as)
    if not base:
        return [f"{against.name} is not measured yet"]
    notes: dict[str, None] = {}
    for line in lines:
        for metric in line.scores if line.row.run_as != against.run_as else ():
            try:
                line.differences[metric] = differ(base, line.runs, metric)
            except UserError as error:
                notes[str(error)] = None
    return list(notes)
