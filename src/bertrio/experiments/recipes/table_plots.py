"""Pictures of a paper's tables: reported beside measured, and the learning curves of all rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from bertrio.evaluation.canvas import LINES, MUTED, colours_of, picture, titled
from bertrio.experiments.recipes.tables import CONVENTIONS, PaperTables

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bertrio.experiments.recipes.measured import Measured

REPORTED, MEASURED = "#c3c9d3", LINES[0]
HEIGHT = 0.38  # of a bar; a row has two
WHISKERS = "lines: standard deviation over seeds, or 95 % interval over rows for a single seed"


def draw_tables(tables: PaperTables, folder: str | Path) -> dict[str, list[Path]]:
    """Draw, for every table with anything measured, <table>-scores.png and <table>-curves.png.

    Returns:
        The pictures by table; none for tables without a run.
    """
    drawn: dict[str, list[Path]] = {}
    for name, split, part in tables.parts():
        if split != "dev" or part["measured"].isna().all():
            continue
        scores, curves = (Path(folder) / f"{name}-{what}.png" for what in ("scores", "curves"))
        scores_picture(name, part, tables, scores)
        drawn[name] = [scores]
        runs = {row: tables.runs.of(run) for row, run in part.drop_duplicates("run_as")[["row", "run_as"]].to_numpy()}
        with_curve = {row: found for row, found in runs.items() if any(run.curve for run in found)}
        if with_curve:
            curves_picture(name, with_curve, tables, curves)
            drawn[name].append(curves)
    return drawn


def scores_picture(name: str, part: pd.DataFrame, tables: PaperTables, path: str | Path) -> None:
    """Draw two bars for each row, reported above measured, in a panel for each metric; one if the row is ours."""
    whole = CONVENTIONS[tables.paper.overall or "normalized"]
    panels = {task: f"{task} {metric}" for task, metric in tables.firsts.items()} | {whole: whole.replace("_", " ")}
    rows = part["row"].drop_duplicates().str.removeprefix(f"{tables.paper.name}-")
    with picture(path, (2.75 * len(panels), 0.42 * len(rows) + 1.7)) as figure:
        row_of_axes = figure.subplots(1, len(panels), sharey=True)
        for axes, (metric, title) in zip(row_of_axes, panels.items()):
            _bars(axes, part[part["metric"] == metric], tables.paper.own)
            axes.set_title(title)
        row_of_axes[0].set(yticks=range(len(rows)), yticklabels=rows, ylim=(len(rows) - 0.4, -0.6))
        peer = "" if tables.paper.own else "grey: the paper, bert-base-uncased on its data; blue: "
        under = f"{peer}{tables.runs.setting.title}; {WHISKERS}"
        what = "dev scores" if tables.paper.own else "reported beside measured"
        titled(figure, f"{tables.paper.name} {name}: {what}", under)


def _bars(axes: Axes, lines: pd.DataFrame, own: bool) -> None:
    places = np.arange(len(lines))
    at = places if own else places + HEIGHT / 2
    reported, measured, deviation, low, high = (
        lines[column].to_numpy(float) for column in ("reported", "measured", "deviation", "low", "high")
    )
    axes.barh(places - HEIGHT / 2, reported, HEIGHT, color=REPORTED)
    axes.barh(at, measured, HEIGHT, color=MEASURED)
    for left, right in ((low, high), (measured - deviation, measured + deviation)):  # NaN draws nothing
        axes.hlines(at, left, right, color="black", linewidth=1.1)
    axes.axvline(0, color=MUTED, linewidth=0.8)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)


def curves_picture(name: str, rows: Mapping[str, Sequence[Measured]], tables: PaperTables, path: str | Path) -> None:
    """Draw dev overall_normalized over steps of fine-tuning, a line a row, the mean over its seeds.

    Rows of several members have none.
    """
    with picture(path, (7.6, max(3.6, 0.24 * len(rows) + 1.2))) as figure:
        axes = figure.add_subplot()
        for (row, runs), colour in zip(rows.items(), colours_of(len(rows))):
            curve, label = mean_curve(runs), row.removeprefix(f"{tables.paper.name}-")
            axes.plot(curve.index, curve, "o-", color=colour, markersize=3.5, label=label)
        axes.set(xlabel="step", ylabel="dev overall normalized")
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
        under = f"at the end of each epoch of fine-tuning, mean over seeds; {tables.runs.setting.title}"
        titled(figure, f"{tables.paper.name} {name}: learning curves", under)


def mean_curve(runs: Sequence[Measured]) -> pd.Series:
    """The mean score over runs by step, at the steps that all of them have."""
    curves = [pd.Series(dict(run.curve)) for run in runs if run.curve]
    return pd.concat(curves, axis=1, join="inner").mean(axis=1)
