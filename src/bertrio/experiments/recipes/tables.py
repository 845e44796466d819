"""A paper's result tables: what it reports beside what was measured here, as one table of figures.

What is written out is in `table_text`, what is drawn in `table_plots`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bertrio.core.errors import UserError
from bertrio.evaluation.metrics import OVERALL, overall
from bertrio.experiments.runs import Runs, Setting, differ, figure_of, firsts_of, runs_of, value_of

if TYPE_CHECKING:
    from bertrio.experiments.recipes.measured import Measured
    from bertrio.experiments.recipes.rows import Paper, Recipes, Row

FIRSTS = {"sst": "accuracy", "qqp": "accuracy", "sts": "pearson"}  # what the papers report of their tasks
METRICS = (*FIRSTS, *OVERALL)
CONVENTIONS = {"raw": "overall_mean", "normalized": "overall_normalized"}
LAST_DIGIT = 0.0005  # how far a figure of three decimals may be from the one that it was rounded from


@dataclass(frozen=True)
class PaperTables:
    """All tables of a paper.

    Args:
        paper: the paper.
        runs: the measured runs behind them.
        budget: what their budget means.
        firsts: the first metric of each task that there are columns for.
        figures: a line for each metric of each row, by table and split, see `_figures`.
        against: by table, the row that others are compared with, if any can be.
        notes: by table, what could not be compared.
    """

    paper: Paper
    runs: Runs
    budget: str
    firsts: Mapping[str, str]
    figures: pd.DataFrame
    against: Mapping[str, str]
    notes: Mapping[str, Sequence[str]]

    @property
    def metrics(self) -> tuple[str, ...]:
        """The tasks, each of which stands for its first metric, and the overall scores."""
        return (*self.firsts, *OVERALL)

    def parts(self) -> Iterator[tuple[str, str, pd.DataFrame]]:
        """Yield each table on each split that it has rows of: both names, and the figures."""
        for (table, split), part in self.figures.groupby(["table", "split"], sort=False):
            yield table, split, part


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
    firsts = _firsts_of(runs) if found.own and runs.all else FIRSTS
    lines: list[dict[str, Any]] = []
    bases: dict[str, str] = {}
    notes: dict[str, list[str]] = {}
    for name, table in found.tables.items():
        first = base or next((row for row in table.rows.values() if not row.literature), None)
        bases[name], notes[name] = first.name if first else "", []
        for row in table.rows.values():
            lines += _figures(row, "dev", found, runs, firsts, first, notes[name])
        for row in table.rows.values():
            if row.reported_test:
                lines += _figures(row, "test", found, runs, firsts, None, notes[name])
        notes[name] = list(dict.fromkeys(notes[name]))
    return PaperTables(found, runs, budget, firsts, pd.DataFrame(lines), bases, notes)


def _firsts_of(runs: Runs) -> dict[str, str]:
    """The first metric of every task that any of the runs has: rows of our own may have tasks of one's own. All of
    them where runs have different ones."""
    found: dict[str, dict[str, None]] = {}
    for run in runs.all:
        for task, metric in firsts_of(run).items():
            found.setdefault(task, {})[metric] = None
    return {task: " or ".join(metrics) for task, metrics in found.items()}


def _figures(
    row: Row,
    split: str,
    paper: Paper,
    runs: Runs,
    firsts: Iterable[str],
    base: Row | None,
    notes: list[str],
) -> Iterator[dict[str, Any]]:
    """Yield a line for each metric of a row; `overall` is the paper's own score.

    Args:
        row: the row.
        split: dev or test.
        paper: its paper.
        runs: all runs.
        firsts: the tasks, for the first metric of each.
        base: the row that it is compared with; None if there is none.
        notes: gets why differences are missing.
    """
    own = () if row.literature else runs.of(row.run_as)
    reported = _with_overalls(row.reported if split == "dev" else row.reported_test)
    compared = base is not None and row.run_as != base.run_as and not row.literature
    if base and not runs.of(base.run_as):
        notes.append(f"{base.name} is not measured yet")
    for metric in (*firsts, *OVERALL, "overall"):
        score = _score(own, metric, split, not (paper.own and runs.all))
        difference = None
        if base and compared and score and runs.of(base.run_as):
            try:
                difference = differ(runs.of(base.run_as), own, metric)
            except UserError as error:
                notes.append(str(error))
        yield {
            "table": row.table,
            "split": split,
            "row": row.name,
            "run_as": row.run_as,
            "title": row.title,
            "seeds": len(own),
            "metric": metric,
            "reported": reported.get(metric),
            **(score or dict.fromkeys(("measured", "deviation", "low", "high"))),
            "against": base.name if base and difference else None,
            "difference": difference.difference if difference else None,
            "difference_low": difference.low if difference else None,
            "difference_high": difference.high if difference else None,
            "p": difference.p if difference else None,
            "seconds": mean(run.seconds for run in own) if own else None,
            "peak_memory_mb": max((run.peak_memory_mb for run in own), default=None),
            "minutes": reported.get("minutes"),
            "literature": row.literature,
            "compared": compared,
            "rows_alone": difference is not None and difference.rows_alone,
            "odd": metric == "overall" and not _follows(reported, paper.overall),
        }


def _with_overalls(reported: Mapping[str, float]) -> Mapping[str, float]:
    """Return the paper's figures with both overall scores, if it reports all three tasks."""
    if not FIRSTS.keys() <= reported.keys():
        return reported
    figures = {task: (metric, np.array(reported[task])) for task, metric in FIRSTS.items()}
    return {**reported, **{name: float(value) for name, value in overall(figures).items()}}


def _follows(reported: Mapping[str, float], convention: str | None) -> bool:
    """Whether the paper's own overall score can be what its figures give, for all that was rounded.

    Args:
        reported: its figures, with both overall scores.
        convention: raw or normalized; None: either will do.
    """
    if not {"overall", *OVERALL} <= reported.keys():
        return True
    reach = {"overall_mean": 2 * LAST_DIGIT, "overall_normalized": (1 + 2.5 / 3) * LAST_DIGIT}
    allowed = [CONVENTIONS[convention]] if convention else OVERALL
    return any(abs(reported["overall"] - reported[name]) < reach[name] + 1e-9 for name in allowed)


def _score(runs: Sequence[Measured], metric: str, split: str, beside_paper: bool) -> dict[str, float | None] | None:
    """A metric of a row's runs: the mean over seeds, with their standard deviation, or the 95 % interval of a single
    one; None if it was not measured, or is not the same figure in all of them, and in what the paper reports if it
    stands beside that."""
    figures = [figure_of(run, metric) for run in runs]
    if beside_paper:
        figures.append({task: first for task, first in FIRSTS.items() if metric in OVERALL or task == metric})
    values = [value for run in runs if (value := value_of(run, metric, split)) is not None]
    if not values or len(values) < len(runs) or any(figure != figures[0] for figure in figures):
        return None
    deviation = stdev(values) if len(values) > 1 else None
    low, high = (len(values) == 1 and value_of(runs[0], metric, split, "intervals")) or (None, None)
    return {"measured": mean(values), "deviation": deviation, "low": low, "high": high}
