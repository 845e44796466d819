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
CONVENTIONS = {"raw": "overall_mean", "normalized": "overall_normalized"}
COLUMNS = (  # of the CSV file
    "table", "split", "row", "run_as", "title", "seeds", "metric", "reported", "measured", "deviation", "low", "high",
    "against", "difference", "difference_low", "difference_high", "p", "seconds", "peak_memory_mb",
)  # fmt: skip
REMARKS = ("minutes", "literature", "rows_alone", "not_compared")  # what only the text says


@dataclass(frozen=True)
class PaperTables:
    """All tables of a paper.

    Args:
        paper: the paper.
        runs: the measured runs behind them.
        firsts: the first metric of each task that there are columns for.
        figures: a line for each metric of each row, by table and split, see `_figures`.
    """

    paper: Paper
    runs: Runs
    firsts: Mapping[str, str]
    figures: pd.DataFrame

    def parts(self) -> Iterator[tuple[str, str, pd.DataFrame]]:
        """Yield each table on each split that it has rows of: both names, and the figures."""
        for (table, split), part in self.figures.groupby(["table", "split"], sort=False):
            yield table, split, part


def paper_tables(
    recipes: Recipes,
    measured: Iterable[Measured],
    name: str,
    wanted: Setting | None = None,
    against: str | None = None,
) -> PaperTables:
    """Put every row of a paper beside its runs.

    Args:
        recipes: all papers.
        measured: all measured files.
        name: the paper's short name.
        wanted: which budget, source, encoder and overrides; None: those that there are, if they are one and the same.
        against: the row that all are compared with, of this paper or another; None: the first of each table that can be
            run.

    Raises:
        UserError: if there is no such paper or row, or the runs are of several settings.
    """
    paper = recipes.paper(name)
    base = recipes.row(against) if against else None
    if base and base.literature:
        raise UserError(f"{base.name}: is quoted from the literature and has no run to compare with; name another row")
    rows = {row.run_as for row in [*paper.rows, *([base] if base else [])] if not row.literature}
    runs = runs_of(measured, rows, wanted or Setting(), recipes)
    firsts = _firsts_of(runs) if paper.own and runs.all else FIRSTS
    lines: list[dict[str, Any]] = []
    for table in paper.tables.values():
        first = base or next((row for row in table.rows.values() if not row.literature), None)
        for row in table.rows.values():
            lines += _figures(row, "dev", paper, runs, firsts, first)
        for row in table.rows.values():
            if row.reported_test:
                lines += _figures(row, "test", paper, runs, firsts, None)
    return PaperTables(paper, runs, firsts, pd.DataFrame(lines, columns=[*COLUMNS, *REMARKS]))


def _firsts_of(runs: Runs) -> dict[str, str]:
    """Return the first metric of every task that any of the runs has, or all of them where runs have different ones."""
    metrics: dict[str, dict[str, None]] = {}
    for run in runs.all:
        for task, metric in firsts_of(run).items():
            metrics.setdefault(task, {})[metric] = None
    return {task: " or ".join(names) for task, names in metrics.items()}


def _figures(
    row: Row, split: str, paper: Paper, runs: Runs, firsts: Iterable[str], base: Row | None
) -> Iterator[dict[str, Any]]:
    """Yield a line for each metric of a row; `overall` is the paper's own score.

    Args:
        row: the row.
        split: dev or test.
        paper: its paper.
        runs: all runs.
        firsts: the tasks, for the first metric of each.
        base: the row that it is compared with; None if there is none.
    """
    row_runs = () if row.literature else runs.of(row.run_as)
    reported = _with_overalls(row.reported if split == "dev" else row.reported_test)
    shared = {
        "table": row.table,
        "split": split,
        "row": row.name,
        "run_as": row.run_as,
        "title": row.title,
        "seeds": len(row_runs),
        "minutes": reported.get("minutes"),
        "literature": row.literature,
    }
    if row_runs:
        shared |= {"seconds": mean(run.seconds for run in row_runs)}
        shared |= {"peak_memory_mb": max(run.peak_memory_mb for run in row_runs)}
    for metric in (*firsts, *OVERALL, "overall"):
        score = _score(row_runs, metric, split, not (paper.own and runs.all))
        if base and base.run_as != row.run_as and "measured" in score:
            score |= _compare(row_runs, base, runs, metric)
        yield {**shared, "metric": metric, "reported": reported.get(metric), **score}


def _compare(row_runs: Sequence[Measured], base: Row, runs: Runs, metric: str) -> dict[str, Any]:
    """Return the difference of a row from its base, or why there is none."""
    if not runs.of(base.run_as):
        return {"not_compared": f"{base.name} is not measured yet"}
    try:
        test = differ(runs.of(base.run_as), row_runs, metric)
    except UserError as error:
        return {"not_compared": str(error)}
    return {
        "against": base.name,
        "difference": test.difference,
        "difference_low": test.low,
        "difference_high": test.high,
        "p": test.p,
        "rows_alone": test.rows_alone,
    }


def _with_overalls(reported: Mapping[str, float]) -> Mapping[str, float]:
    """Return the paper's figures with both overall scores, if it reports all three tasks."""
    if not FIRSTS.keys() <= reported.keys():
        return reported
    figures = {task: (metric, np.array(reported[task])) for task, metric in FIRSTS.items()}
    return {**reported, **{name: float(value) for name, value in overall(figures).items()}}


def _score(runs: Sequence[Measured], metric: str, split: str, beside_paper: bool) -> dict[str, Any]:
    """Return a metric of a row's runs: the mean over seeds with their standard deviation, or with the 95 % interval of
    a single one.

    Nothing but the reason if it is not the same figure in all of them and in what the paper reports, if it stands
    beside that; empty if it was not measured.
    """
    figures = [figure_of(run, metric) for run in runs]
    if beside_paper:
        figures.append({task: first for task, first in FIRSTS.items() if metric in OVERALL or task == metric})
    values = [value for run in runs if (value := value_of(run, metric, split)) is not None]
    if not values or len(values) < len(runs):
        return {}
    if any(figure != figures[0] for figure in figures):
        return {"not_compared": f"{metric} of {runs[0].row} has other metrics or tasks in some runs, or in the paper"}
    if len(values) > 1:
        return {"measured": mean(values), "deviation": stdev(values)}
    low, high = value_of(runs[0], metric, split, "intervals") or (None, None)
    return {"measured": values[0], "low": low, "high": high}
