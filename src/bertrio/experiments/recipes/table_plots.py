"""Plots of a paper's tables: reported and measured scores, and the learning curves of all rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from bertrio.evaluation.canvas import LINES, distinct_colours, picture, titled
from bertrio.experiments.recipes.tables import CONVENTIONS, PaperTables

if TYPE_CHECKING:
    from bertrio.experiments.recipes.measured import Measured

REPORTED, MEASURED = "#c3c9d3", LINES[0]
HEIGHT = 0.38  # bar height; each row has two bars
WHISKERS = "lines: standard deviation over seeds, or 95 % interval over rows for a single seed"


def draw_tables(tables: PaperTables, folder: str | Path) -> dict[str, list[Path]]:
    """Draw <table>-scores.png and <table>-curves.png for every table with measured rows.

    Returns:
        Paths of the plots by table; tables without a run have no entry.
    """
    drawn: dict[str, list[Path]] = {}
    for name, split, part in tables.parts():
        if split != "dev" or part["measured"].isna().all():
            continue
        scores, curves = (Path(folder) / f"{name}-{kind}.png" for kind in ("scores", "curves"))
        _draw_scores(name, part, tables, scores)
        drawn[name] = [scores]
        rows = part.drop_duplicates("run_as").set_index("row")["run_as"]
        by_row = {row: mean_curve(tables.runs.of(run_as)) for row, run_as in rows.items()}
        if by_row := {row: curve for row, curve in by_row.items() if len(curve)}:
            _draw_curves(name, by_row, tables, curves)
            drawn[name].append(curves)
    return drawn


def _draw_scores(name: str, part: pd.DataFrame, tables: PaperTables, path: Path) -> None:
    """Draw two bars per row, reported above measured, in one panel per metric."""
    overall = CONVENTIONS[tables.paper.overall or "normalized"]
    panels = {task: f"{task} {metric}" for task, metric in tables.firsts.items()} | {overall: overall.replace("_", " ")}
    rows = part["row"].drop_duplicates().str.removeprefix(f"{tables.paper.name}-")
    positions = np.arange(len(rows))
    with picture(path, (2.75 * len(panels), 0.42 * len(rows) + 1.7)) as figure:
        row_of_axes = figure.subplots(1, len(panels), sharey=True)
        for axes, (metric, title) in zip(row_of_axes, panels.items()):
            lines = part[part["metric"] == metric]
            middle = lines["measured"].to_numpy(float)
            low = (middle - lines["deviation"]).fillna(lines["low"])
            high = (middle + lines["deviation"]).fillna(lines["high"])
            axes.barh(positions - HEIGHT / 2, lines["reported"].astype(float), HEIGHT, color=REPORTED)
            axes.barh(positions + HEIGHT / 2, middle, HEIGHT, color=MEASURED)
            axes.hlines(positions + HEIGHT / 2, low, high, color="black", linewidth=1.1)  # NaN draws nothing
            axes.grid(axis="y", visible=False)
            axes.set_title(title)
        row_of_axes[0].set(yticks=positions, yticklabels=rows, ylim=(len(rows) - 0.4, -0.6))
        subtitle = f"grey: reported; blue: measured, {tables.runs.setting.title}; {WHISKERS}"
        titled(figure, f"{tables.paper.name} {name}: dev scores", subtitle)


def _draw_curves(name: str, curves: Mapping[str, pd.Series], tables: PaperTables, path: Path) -> None:
    """Draw dev overall_normalized over fine-tuning steps, one line per row."""
    with picture(path, (7.6, max(3.6, 0.24 * len(curves) + 1.2))) as figure:
        axes = figure.add_subplot()
        for (row, curve), colour in zip(curves.items(), distinct_colours(len(curves))):
            label = row.removeprefix(f"{tables.paper.name}-")
            axes.plot(curve.index, curve, "o-", color=colour, markersize=3.5, label=label)
        axes.set(xlabel="step", ylabel="dev overall normalized")
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
        subtitle = f"at the end of each epoch of fine-tuning, mean over seeds; {tables.runs.setting.title}"
        titled(figure, f"{tables.paper.name} {name}: learning curves", subtitle)


def mean_curve(runs: Sequence[Measured]) -> pd.Series:
    """Return the mean score over runs by step, at the steps that all runs share.

    Empty for ensembles of several members, whose runs have no curve.
    """
    curves = pd.DataFrame([dict(run.curve) for run in runs if run.curve])
    return curves.dropna(axis="columns").mean()
