"""Pictures of a paper's tables: reported beside measured, and the learning curves of all rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from bertrio.evaluation.canvas import LINES, MUTED, colours_of, picture, titled
from bertrio.experiments.recipes.tables import CONVENTIONS, Line, PaperTables, Part

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bertrio.experiments.recipes.measured import Measured

REPORTED, MEASURED = "#c3c9d3", LINES[0]
HEIGHT = 0.38  # of a bar; a row has two
WHISKERS = "lines: standard deviation over seeds, or 95 % interval over rows for a single seed"


def draw_tables(tables: PaperTables, folder: str | Path) -> dict[str, list[Path]]:
    """Draws, for every table with anything measured, <table>-scores.png and <table>-curves.png.

    Returns:
        The pictures by table; none for tables without a run.
    """
    drawn: dict[str, list[Path]] = {}
    for part in tables.parts:
        if part.split != "dev" or not any(line.scores for line in part.lines):
            continue
        scores, curves = (Path(folder) / f"{part.table.name}-{what}.png" for what in ("scores", "curves"))
        scores_picture(part, tables, scores)
        drawn[part.table.name] = [scores]
        if any(run.curve for line in part.lines for run in line.runs):
            curves_picture(part, tables, curves)
            drawn[part.table.name].append(curves)
    return drawn


def scores_picture(part: Part, tables: PaperTables, path: str | Path) -> None:
    """Draws two bars for each row, reported above measured, in a panel for each metric; one if the row is ours."""
    whole = CONVENTIONS[tables.paper.overall or "normalized"]
    panels = {task: f"{task} {metric}" for task, metric in tables.firsts.items()} | {whole: whole.replace("_", " ")}
    with picture(path, (2.75 * len(panels), 0.42 * len(part.lines) + 1.7)) as figure:
        row_of_axes = figure.subplots(1, len(panels), sharey=True)
        for axes, (metric, name) in zip(row_of_axes, panels.items()):
            _bars(axes, part.lines, metric, tables.paper.own)
            axes.set_title(name)
        names = [_short_name(line) for line in part.lines]
        row_of_axes[0].set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.4, -0.6))
        peer = "" if tables.paper.own else "grey: the paper, bert-base-uncased on its data; blue: "
        under = f"{peer}{tables.runs.setting.title}; {WHISKERS}"
        what = "dev scores" if tables.paper.own else "reported beside measured"
        titled(figure, f"{tables.paper.name} {part.table.name}: {what}", under)


def _bars(axes: Axes, lines: Sequence[Line], metric: str, own: bool) -> None:
    reported = [line.reported.get(metric, np.nan) for line in lines]
    places = np.arange(len(lines))
    axes.barh(places - HEIGHT / 2, reported, HEIGHT, color=REPORTED)
    for place, line in zip(places if own else places + HEIGHT / 2, lines):
        if score := line.scores.get(metric):
            axes.barh(place, score.measured, HEIGHT, color=MEASURED)
            for ends in ((score.low, score.high), (score.measured - score.deviation, score.measured + score.deviation)):
                axes.plot(ends, [place] * 2, color="black", linewidth=1.1)  # of NaN, nothing
    axes.axvline(0, color=MUTED, linewidth=0.8)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)


def curves_picture(part: Part, tables: PaperTables, path: str | Path) -> None:
    """Draws dev overall_normalized over steps of fine-tuning, a line a row, the mean over its seeds.

    Rows of several members have none.
    """
    lines = {line.row.run_as: line for line in reversed(part.lines) if any(run.curve for run in line.runs)}
    lines = dict(reversed(lines.items()))  # of rows that share a run the first is named
    with picture(path, (7.6, max(3.6, 0.24 * len(lines) + 1.2))) as figure:
        axes = figure.add_subplot()
        for line, colour in zip(lines.values(), colours_of(len(lines))):
            curve = mean_curve(line.runs)
            axes.plot(curve.index, curve, "o-", color=colour, markersize=3.5, label=_short_name(line))
        axes.set(xlabel="step", ylabel="dev overall normalized")
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
        under = f"at the end of each epoch of fine-tuning, mean over seeds; {tables.runs.setting.title}"
        titled(figure, f"{tables.paper.name} {part.table.name}: learning curves", under)


def mean_curve(runs: Sequence[Measured]) -> pd.Series:
    """The mean score over runs by step, at the steps that all of them have."""
    curves = [pd.Series(dict(run.curve)) for run in runs if run.curve]
    return pd.concat(curves, axis=1, join="inner").mean(axis=1)


def _short_name(line: Line) -> str:
    return line.row.name.removeprefix(f"{line.row.paper}-")
