"""Tables for DVC's plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from bertrio.core.files import write_csv
from bertrio.core.tasks import Task, indicators
from bertrio.evaluation.calibration import reliability
from bertrio.evaluation.predictions import Scored

PLOTTED = 5000  # rows in a table of scores: DVC's page holds every row of every revision


def write_plots(frame: pd.DataFrame, tasks: Mapping[str, Task], folder: str | Path, members: Sequence[str]) -> None:
    """Write tables of the labelled dev rows and of training for DVC's plots.

    Into `folder`: confusion/<task>.csv, reliability/<task>.csv, scores/<task>.csv, learning/loss/<task>.csv and
    learning/score/<task>.csv (training loss and main metric on dev, means over members).
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
    histories = [folder / "history" / f"{name}.csv" for name in members]
    training = [pd.read_csv(path) for path in histories if path.exists()]
    for name, task in tasks.items():
        rows = frame[(frame["task"] == name) & (frame["split"] == "dev") & frame["label"].notna()]
        if len(rows):
            (_write_classes if task.target.discrete else _write_scores)(rows, task, folder)
        for what, column in (("loss", f"train_loss_{name}"), ("score", f"dev_{name}_{task.target.metrics[0]}")):
            write_csv(_mean_curve(training, column, what), folder / "learning" / what / f"{name}.csv")


def _write_classes(rows: pd.DataFrame, task: Task, folder: Path) -> None:
    scored, names = Scored.from_rows(rows, task), sortable(task.target.class_names)
    columns = {"gold": scored.labels, "predicted": scored.predictions}
    if scored.sets:  # a line for each class of a row; one that is in one of the sets alone meets none in the other
        sides = {name: indicators(values, len(names)) for name, values in columns.items()}
        kept = np.nonzero(sides["gold"] + sides["predicted"])
        columns = {name: np.where(side[kept] > 0, kept[1], len(names)) for name, side in sides.items()}
        names = [*names, "(none)"]
    table = pd.DataFrame({name: [names[int(value)] for value in values] for name, values in columns.items()})
    write_csv(table, folder / "confusion" / f"{task.name}.csv")
    write_csv(reliability(scored.decisions), folder / "reliability" / f"{task.name}.csv")


def sortable(names: Sequence[str]) -> list[str]:
    """Return names of classes, numbered unless they are sorted: DVC sorts those of a confusion matrix."""
    digits = len(str(len(names) - 1))
    return list(names) if list(names) == sorted(names) else [f"{i:0{digits}} {name}" for i, name in enumerate(names)]


def _write_scores(rows: pd.DataFrame, task: Task, folder: Path) -> None:
    plotted = rows.sample(min(len(rows), PLOTTED), random_state=0).sort_index()
    table = plotted[["id", "label", "prediction"]].set_axis(["id", "gold", "predicted"], axis=1)
    write_csv(table, folder / "scores" / f"{task.name}.csv")


def _mean_curve(training: Sequence[pd.DataFrame], column: str, name: str) -> pd.DataFrame:
    """Return the mean over members by step: [step, `name`]. Steps of one member alone have its value."""
    parts = [table.reindex(columns=["step", column]) for table in training if len(table)]
    rows = pd.concat(parts or [pd.DataFrame(columns=["step", column])]).dropna()
    return rows.rename(columns={column: name}).groupby("step", as_index=False).mean()
