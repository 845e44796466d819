"""A paper's result tables: reported and measured scores in one table of figures.

`table_text` writes them, `table_plots` draws them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

import numpy as np
import pandas as pd

from bertrio.core.errors import UserError
from bertrio.evaluation.metrics import OVERALL, overall
from bertrio.experiments.recipes.comparable import Runs, Setting, differ, figure_of, main_metrics_of, runs_of, value_of
from bertrio.experiments.recipes.measured import Measured
from bertrio.experiments.recipes.rows import Paper, Recipes, Row

MAIN_METRICS = {"sst": "accuracy", "qqp": "accuracy", "sts": "pearson"}  # metrics that the papers report
CONVENTIONS = {"raw": "overall_mean", "normalized": "overall_normalized"}
COLUMNS = (  # columns of the CSV file
    "table", "split", "row", "run_as", "title", "seeds", "metric", "reported", "measured", "deviation", "low", "high",
    "against", "difference", "difference_low", "difference_high", "p", "seconds", "peak_memory_mb",
)  # fmt: skip
FACTS: dict[str, Callable[[Measured], float | None]] = {  # figures besides scores that papers print, and of a run
    "minutes": lambda run: run.training_seconds / 60,
    "seconds_per_epoch": lambda run: (run.update_seconds or run.seconds) / len(run.epochs) if run.history else None,
    "best_epoch": lambda run: run.best_epoch,
    "sst_train": lambda run: run.epochs["train_sst"].get(run.best_epoch) if "train_sst" in run.history else None,
    "ranking": lambda run: None,  # on the course's leaderboard, among so many entries
    "entries": lambda run: None,
}
TIMES = ("minutes", "seconds_per_epoch")  # facts that depend on the machine
# columns that only the text uses
REMARKS = ("literature", "rows_alone", "not_compared", "timed_on", *FACTS, *(f"paper: {name}" for name in FACTS))


@dataclass(frozen=True)
class PaperTables:
    """All tables of a paper.

    Args:
        paper: the paper.
        runs: the measured runs.
        main_metrics: main metric of each task that has columns.
        figures: one line per table, split, row and metric, see `_figures`.
    """

    paper: Paper
    runs: Runs
    main_metrics: Mapping[str, str]
    figures: pd.DataFrame

    def parts(self) -> Iterator[tuple[str, str, pd.DataFrame]]:
        """Yield table name, split name and figures for each table and split that has rows."""
        for (table, split), part in self.figures.groupby(["table", "split"], sort=False):
            yield table, split, part


def paper_tables(
    recipes: Recipes, measured: Iterable[Measured], name: str, wanted: Setting | None = None, against: str | None = None
) -> PaperTables:
    """Combine the reported scores of a paper with its measured runs.

    Args:
        recipes: all papers.
        measured: all measured files.
        name: the paper's short name.
        wanted: budget, source, encoder and overrides of the runs; None takes all runs, which must share one setting.
        against: the row to compare with, of this or another paper; None takes the first row of each table that can be
            run.

    Raises:
        UserError: if the paper or row is unknown, or the runs have several settings.
    """
    paper = recipes.paper(name)
    base = recipes.row(against) if against else None
    rows = {row.run_as for row in [*paper.rows, *([base] if base else [])]}
    runs = runs_of(measured, rows, wanted or Setting(), recipes)
    if base and base.literature and not runs.of(base.run_as):
        raise UserError(f"{base.name}: is another tool's or paper's, without a run to compare with; name another row")
    measured_metrics = {task: metric for run in runs.all for task, metric in main_metrics_of(run).items()}
    main_metrics = measured_metrics if paper.own and runs.all else MAIN_METRICS
    lines: list[dict[str, Any]] = []
    for table in paper.tables.values():
        first = base or next((row for row in table.rows.values() if not row.literature), None)
        machines = Counter(name for row in table.rows.values() for name in {*map(_machine, runs.of(row.run_as))})
        for row in table.rows.values():
            lines += _figures(row, "dev", paper, runs, main_metrics, first, machines)
        for row in table.rows.values():
            if row.reported_test:
                lines += _figures(row, "test", paper, runs, main_metrics, None, machines)
    return PaperTables(paper, runs, main_metrics, pd.DataFrame(lines, columns=[*COLUMNS, *REMARKS]))


def trains(row: Row, metric: str, tasks: Iterable[str]) -> bool:
    """Return whether a row trains a task or, for an overall score, all of `tasks`."""
    trained = row.overrides.get("schedule.tasks") or tasks
    return metric in trained or (metric not in tasks and set(trained) >= set(tasks))


def _machine(run: Measured) -> str:
    """Return device and precision, between which times are not comparable."""
    return f"{run.device or 'unknown'} {run.precision}"


def _figures(
    row: Row, split: str, paper: Paper, runs: Runs, tasks: Iterable[str], base: Row | None, machines: Mapping[str, int]
) -> Iterator[dict[str, Any]]:
    """Yield one line per metric of a row; `overall` is the overall score that the paper prints.

    Times and memory are of one machine's runs: of those that ran the row, the machine with most rows of the table.

    Args:
        row: the row.
        split: dev or test.
        paper: its paper.
        runs: all runs.
        tasks: the tasks; the line of each has its main metric.
        base: the row to compare with, or None.
        machines: number of rows of the table that ran on each device and precision.
    """
    row_runs = runs.of(row.run_as)
    reported = _with_overalls(row.reported if split == "dev" else row.reported_test)
    shared = {
        "table": row.table,
        "split": split,
        "row": row.name,
        "run_as": row.run_as,
        "title": row.title,
        "seeds": len(row_runs),
        "literature": row.literature,
        **{f"paper: {name}": reported.get(name) for name in FACTS},
    }
    if row_runs:
        timed_on = max(map(_machine, row_runs), key=lambda name: machines[name])
        timed = [run for run in row_runs if _machine(run) == timed_on]
        shared |= {"timed_on": timed_on, "seconds": mean(run.training_seconds for run in timed)}
        shared |= {"peak_memory_mb": max(run.peak_memory_mb for run in timed)}
        for name, fact in FACTS.items() if split == "dev" else ():
            values = [value for run in (timed if name in TIMES else row_runs) if (value := fact(run)) is not None]
            if values and (name != "seconds_per_epoch" or name in reported):
                shared[name] = mean(values)
    for metric in (*tasks, *OVERALL, "overall"):
        score = _score(row_runs, metric, split, not (paper.own and runs.all))
        if base and base.run_as != row.run_as and "measured" in score:
            score |= _compare(row_runs, base, runs, metric)
        yield {**shared, "metric": metric, "reported": reported.get(metric), **score}


def _compare(row_runs: Sequence[Measured], base: Row, runs: Runs, metric: str) -> dict[str, Any]:
    """Return the columns of a row's difference from its base, or the reason why there is none."""
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
    """Return the reported figures, with both overall scores if all three tasks are reported."""
    if not MAIN_METRICS.keys() <= reported.keys():
        return reported
    figures = {task: (metric, np.array(reported[task])) for task, metric in MAIN_METRICS.items()}
    return {**reported, **{name: float(value) for name, value in overall(figures).items()}}


def _score(runs: Sequence[Measured], metric: str, split: str, beside_paper: bool) -> dict[str, Any]:
    """Return the measured columns of one metric over the runs of a row.

    Several seeds have a mean and a standard deviation, a single seed has a score and its 95 % interval. If the runs
    (or, with `beside_paper`, the runs and the paper) differ in metric or tasks, the only column is the reason. Empty
    if the metric was not measured.
    """
    figures = [figure_of(run, metric) for run in runs]
    if beside_paper:
        figures.append({task: main for task, main in MAIN_METRICS.items() if metric in OVERALL or task == metric})
    values = [value for run in runs if (value := value_of(run, metric, split)) is not None]
    if not values or len(values) < len(runs):
        return {}
    if any(figure != figures[0] for figure in figures):
        return {"not_compared": f"{metric} of {runs[0].row} has other metrics or tasks in some runs, or in the paper"}
    if len(values) > 1:
        return {"measured": mean(values), "deviation": stdev(values)}
    low, high = value_of(runs[0], metric, split, "intervals") or (None, None)
    return {"measured": values[0], "low": low, "high": high}
