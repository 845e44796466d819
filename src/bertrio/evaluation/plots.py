"""Tables for DVC's plots, and PNGs of slices with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from bertrio.core.files import write_csv
from bertrio.core.tasks import Task
from bertrio.evaluation.calibration import reliability
from bertrio.evaluation.canvas import INK, LINES, MUTED, RED, picture, titled
from bertrio.evaluation.metrics import LOWER_IS_BETTER
from bertrio.evaluation.predictions import Scored

PLOTTED = 5000  # rows in a table of scores: DVC's page holds every row of every revision


def write_plots(
    frame: pd.DataFrame,
    tasks: Mapping[str, Task],
    folder: str | Path,
    members: Sequence[str],
) -> None:
    """Write tables of the labelled dev rows and of training for DVC's plots.

    Into `folder`: confusion/<task>.csv, reliability/<task>.csv, scores/<task>.csv, learning/loss/<task>.csv and
    learning/score/<task>.csv (training loss and first metric on dev, means over members).
    Files without data are left out; the folders always exist, as DVC expects.

    Args:
        frame: a prediction table.
        tasks: all tasks, by name.
        folder: the folder to write into, which holds history/<member>.csv, one row for each epoch.
        members: members whose files are read; DVC leaves the files of dropped members in place.
    """
    folder = Path(folder)
    for name in ("confusion", "reliability", "scores", "learning/loss", "learning/score"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    training = _member_tables(folder / "history", members)
    for name, task in tasks.items():
        rows = frame[(frame["task"] == name) & (frame["split"] == "dev") & frame["label"].notna()]
        if len(rows):
            (_write_classes if task.target.discrete else _write_scores)(rows, task, folder)
        for what, column in (("loss", f"train_loss_{name}"), ("score", f"dev_{name}_{task.target.metrics[0]}")):
            write_csv(_mean_curve(training, column, what), folder / "learning" / what / f"{name}.csv")


def _write_classes(rows: pd.DataFrame, task: Task, folder: Path) -> None:
    scored, names = Scored.from_rows(rows), list(task.target.class_names)
    if names != sorted(names):  # DVC sorts the classes of a confusion matrix by their names
        names = [f"{number} {name}" for number, name in enumerate(names)]
    columns = {"gold": scored.labels, "predicted": scored.predictions}
    table = pd.DataFrame({name: [names[int(value)] for value in values] for name, values in columns.items()})
    write_csv(table, folder / "confusion" / f"{task.name}.csv")
    write_csv(reliability(scored), folder / "reliability" / f"{task.name}.csv")


def _write_scores(rows: pd.DataFrame, task: Task, folder: Path) -> None:
    plotted = rows.sample(min(len(rows), PLOTTED), random_state=0).sort_index()
    table = plotted[["id", "label", "prediction"]].set_axis(["id", "gold", "predicted"], axis=1)
    write_csv(table, folder / "scores" / f"{task.name}.csv")


def _mean_curve(training: Mapping[str, pd.DataFrame], column: str, name: str) -> pd.DataFrame:
    """Return the mean over members by step: [step, `name`]. Steps of one member alone have its value."""
    parts = [table.reindex(columns=["step", column]) for table in training.values()]
    rows = pd.concat(parts or [pd.DataFrame(columns=["step", column])]).dropna()
    return rows.rename(columns={column: name}).groupby("step", as_index=False).mean()


def slices_picture(slices: pd.DataFrame, task: str, path: str | Path, metric: str) -> None:
    """Draw a task's metric with its 95 % interval on each slice of the rows.

    Slices whose whole interval is worse than the value for all rows are red, better ones blue.

    Args:
        slices: [family, slice, n, value, low, high], one row for each slice; family `all` has the value for all rows.
        task: name of the task.
        path: PNG to write.
        metric: name of the metric.
    """
    known = slices[slices["value"].notna()]
    whole = known.loc[known["family"] == "all", "value"].iloc[0]
    rows = known[known["family"] != "all"]
    below, above = (LINES[0], RED) if metric in LOWER_IS_BETTER else (RED, LINES[0])
    with picture(path, (7.2, 0.23 * len(rows) + 1.5)) as figure:
        axes = figure.add_subplot()
        axes.axvline(whole, color=MUTED, linestyle="--", linewidth=1)
        for position, row in enumerate(rows.itertuples()):
            colour = below if row.high < whole else above if row.low > whole else INK
            axes.plot([row.low, row.high], [position, position], color=colour, linewidth=1.5, alpha=0.6)
            axes.plot(row.value, position, "o", color=colour, markersize=5)
        names = [f"{_short(f'{row.family}: {row.slice}')}  (n = {row.n:,})" for row in rows.itertuples()]
        axes.set(yticks=range(len(rows)), yticklabels=names, ylim=(len(rows) - 0.4, -0.6), xlabel=metric)
        axes.grid(axis="y", visible=False)
        note = f"95 % intervals; dashed: all rows, {whole:.3f}; red: wholly worse, blue: wholly better"
        titled(figure, f"{task}: {metric} by slice", note)


def _short(text: str, width: int = 40) -> str:
    """Return `text` on one line, cut to `width` characters, with dollar signs escaped, which would start a formula."""
    text = " ".join(text.split())
    return (text if len(text) <= width else text[: width - 1] + "…").replace("$", r"\$")


def _member_tables(folder: str | Path, members: Sequence[str]) -> dict[str, pd.DataFrame]:
    """Return the tables of members that have rows, in the order of the members."""
    paths = {name: Path(folder) / f"{name}.csv" for name in members}
    tables = {name: pd.read_csv(path) for name, path in paths.items() if path.exists()}
    return {name: table for name, table in tables.items() if len(table)}
