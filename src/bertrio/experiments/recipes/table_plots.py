"""Plots of a paper's tables: scores as reported and as measured, learning curves, and dot products of gradients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from bertrio.evaluation.canvas import INK, LINES, distinct_colours, picture, titled
from bertrio.experiments.recipes.measured import Measured
from bertrio.experiments.recipes.tables import CONVENTIONS, PaperTables, trains

REPORTED, MEASURED = "#c3c9d3", LINES[0]
HEIGHT = 0.38  # bar height; each row has two bars
WHISKERS = "lines: standard deviation over seeds, or 95 % interval over rows for a single seed; dotted: mean over rows"
KINDS = {"loss": "training loss", "dev": "dev", "train": "training rows"}  # of curves
Curves = dict[tuple[str, str], dict[str, pd.Series]]  # by kind and by task (or overall), then by row


def draw_tables(tables: PaperTables, folder: str | Path) -> dict[str, list[Path]]:
    """Draw <table>-scores.png, <table>-curves.png and <table>-dots.png for every table with measured rows.

    Returns:
        Paths of the plots by table; tables without a run have no entry.
    """
    drawn: dict[str, list[Path]] = {}
    for name, split, part in tables.parts():
        if split != "dev" or part["measured"].isna().all():
            continue
        scores, curves, dots = (Path(folder) / f"{name}-{kind}.png" for kind in ("scores", "curves", "dots"))
        _draw_scores(name, part, tables, scores)
        drawn[name] = [scores]
        if panels := curves_of(tables, name):
            _draw_curves(name, panels, tables, curves)
            drawn[name].append(curves)
        if runs := [run for run_as in part["run_as"].unique() for run in tables.runs.of(run_as)[:1] if run.dots]:
            _draw_dots(name, runs, tables, dots)
            drawn[name].append(dots)
    return drawn


def curves_of(tables: PaperTables, name: str) -> Curves:
    """Return the curves of a table's rows, each run once.

    A row has curves of the tasks that it trains and, if it trains all of them, of the paper's overall score and of the
    sum of the losses. Files without a history have the normalized overall score alone.
    """
    panels: Curves = {}
    overall = CONVENTIONS[tables.paper.overall or "normalized"]
    rows = {row.run_as: row for row in reversed(tables.paper.tables[name].rows.values())}
    for row in reversed(rows.values()):
        if not (runs := tables.runs.of(row.run_as)):
            continue
        mean, trained = mean_curve(runs), runs[0].trained
        lines = {(kind, task): f"{kind}_{task}" for kind in KINDS for task in trained}
        if trains(row, "overall", tables.main_metrics):
            lines["dev", "overall"] = f"dev_{overall}"
            mean["loss_overall"] = mean[[f"loss_{task}" for task in trained]].sum(axis=1, min_count=1)
            lines["loss", "overall"] = "loss_overall"
        for panel, column in lines.items():
            if column in mean and mean[column].notna().any():
                panels.setdefault(panel, {})[row.name.removeprefix(f"{tables.paper.name}-")] = mean[column]
    return panels


def _draw_scores(name: str, part: pd.DataFrame, tables: PaperTables, path: Path) -> None:
    """Draw two bars per row, reported above measured, in one panel per metric.

    What untrained heads score has a bar only beside one that the paper reports.
    """
    overall = CONVENTIONS[tables.paper.overall or "normalized"]
    by_name = {row.name: row for row in tables.paper.tables[name].rows.values()}
    own = [trains(by_name[row], metric, tables.main_metrics) for row, metric in zip(part["row"], part["metric"])]
    part = part.assign(measured=part["measured"].where(np.array(own) | part["reported"].notna()))
    shown = part.dropna(subset=["reported", "measured"], how="all")["metric"].unique()
    panels = {task: f"{task} {metric}" for task, metric in tables.main_metrics.items() if task in shown}
    panels |= {overall: overall.replace("_", " ")} if overall in shown else {}
    rows = part["row"].drop_duplicates().str.removeprefix(f"{tables.paper.name}-")
    positions = np.arange(len(rows))
    with picture(path, (2.75 * len(panels), 0.42 * len(rows) + 1.7)) as figure:
        row_of_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (metric, title) in zip(row_of_axes, panels.items()):
            lines = part[part["metric"] == metric]
            middle = lines["measured"].to_numpy(float)
            low = (middle - lines["deviation"]).fillna(lines["low"])
            high = (middle + lines["deviation"]).fillna(lines["high"])
            axes.barh(positions - HEIGHT / 2, lines["reported"].astype(float), HEIGHT, color=REPORTED)
            axes.barh(positions + HEIGHT / 2, middle, HEIGHT, color=MEASURED)
            axes.hlines(positions + HEIGHT / 2, low, high, color="black", linewidth=1.1)  # NaN draws nothing
            for scores, colour in ((lines["reported"].astype(float), INK), (lines["measured"].astype(float), MEASURED)):
                axes.axvline(scores.mean(), color=colour, linestyle=":", linewidth=1.3)
            axes.grid(axis="y", visible=False)
            axes.set_title(title)
        row_of_axes[0].set(yticks=positions, yticklabels=rows, ylim=(len(rows) - 0.4, -0.6))
        subtitle = f"grey: reported; blue: measured, {tables.runs.setting.title}; {WHISKERS}"
        titled(figure, f"{tables.paper.name} {name}: dev scores", subtitle)


def _draw_curves(name: str, panels: Curves, tables: PaperTables, path: Path) -> None:
    """Draw a panel for each kind of figure and each task, with a line for each row."""
    kinds = [kind for kind in KINDS if any(kind == other for other, _ in panels)]
    tasks = [task for task in (*tables.main_metrics, "overall") if any(task == other for _, other in panels)]
    rows = list(dict.fromkeys(row for lines in panels.values() for row in lines))
    colours = dict(zip(rows, distinct_colours(len(rows))))
    metrics = {**tables.main_metrics, "overall": tables.paper.overall or "normalized"}
    with picture(path, (3.0 * len(tasks) + 2.2, max(2.3 * len(kinds) + 0.9, 0.2 * len(rows) + 1.2))) as figure:
        for line, kind in zip(figure.subplots(len(kinds), len(tasks), squeeze=False), kinds):
            for axes, task in zip(line, tasks):
                axes.set_visible((kind, task) in panels)
                for row, curve in panels.get((kind, task), {}).items():
                    axes.plot(curve.index, curve, "o-", color=colours[row], markersize=3, label=row)
                axes.set_title(f"{task}: {KINDS[kind]}" + ("" if kind == "loss" else f" {metrics[task]}"))
                axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        labelled = {label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels())}
        figure.legend([labelled[row] for row in rows], rows, loc="outside right upper", fontsize=8)
        subtitle = f"against epochs of fine-tuning, mean over seeds; {tables.runs.setting.title}"
        titled(figure, f"{tables.paper.name} {name}: learning curves", subtitle)


def _draw_dots(name: str, runs: Sequence[Measured], tables: PaperTables, path: Path) -> None:
    """Draw the mean dot product of each task's gradient with the others' over the steps: runs below each other."""
    tasks = [task for task in tables.main_metrics if any(task in pair.split() for run in runs for pair in run.dots)]
    pairs = list(dict.fromkeys(pair for run in runs for pair in run.dots))
    colours = dict(zip(pairs, distinct_colours(len(pairs))))
    with picture(path, (3.0 * len(tasks) + 1.5, 2.2 * len(runs) + 0.9)) as figure:
        for line, run in zip(figure.subplots(len(runs), len(tasks), squeeze=False), runs):
            for axes, task in zip(line, tasks):
                for pair, points in run.dots.items():
                    if task in pair.split():
                        axes.plot(*zip(*points), color=colours[pair], label=pair)
                axes.axhline(0, color=INK, linewidth=0.8)
                axes.set(title=f"{run.row.removeprefix(f'{tables.paper.name}-')}: {task}", xlabel="step")
        labelled = {label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels())}
        figure.legend(labelled.values(), labelled, loc="outside right upper", fontsize=8)
        subtitle = f"below 0 two tasks are in conflict; one seed; {tables.runs.setting.title}"
        titled(figure, f"{tables.paper.name} {name}: dot products of gradients", subtitle)


def mean_curve(runs: Sequence[Measured]) -> pd.DataFrame:
    """Return the mean history over runs by epoch, at the epochs that all runs share.

    Empty for ensembles of several members, whose runs have no history.
    """
    tables = [run.epochs for run in runs]
    return (sum(tables[1:], tables[0]) / len(tables)).dropna(how="all")
