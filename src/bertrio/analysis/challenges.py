"""Challenge files: metrics of a model on additional labelled files, such as hard rows."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from bertrio.config import Challenge
from bertrio.core.console import say
from bertrio.core.errors import UserError
from bertrio.core.files import write_json
from bertrio.core.tasks import Task
from bertrio.data.download import write_rejects
from bertrio.data.sources.files import read_file
from bertrio.evaluation.intervals import intervals
from bertrio.evaluation.metrics import evaluate_predictions
from bertrio.evaluation.predictions import predicted_rows, write_predictions
from bertrio.inference.trained_model import TrainedModel


def write_challenges(
    models: Mapping[str, TrainedModel],
    tasks: Mapping[str, Task],
    challenges: Mapping[str, Challenge],
    dev: Mapping[str, pd.DataFrame],
    metrics_path: str | Path,
    predictions_path: str | Path,
) -> None:
    """Evaluate the model on each file of `evaluate.challenges`.

    Args:
        models: the model of each task.
        tasks: all tasks, by name.
        challenges: the files, by name; paths are relative to the repository.
        dev: labelled rows of dev, by task; the same model predicts them for comparison.
        metrics_path: the JSON file to write: `{name: {"task", "model", "n", "rejected", metric: value, "intervals":
            {metric: [low, high]}, "dev": {metric: value}}}` with the name of the model, the number of evaluated and of
            rejected rows, the metrics of the task, their 95 % intervals, and the metrics of the same model on dev
            (empty without labelled rows).
        predictions_path: the folder to replace: <name>.parquet is a prediction table whose split is the name of the
            challenge, <name>-rejects.csv lists the rejected rows and the reasons.

    Raises:
        UserError: if a file or column is missing, or none of a file's rows can be used.
    """
    folder, report = Path(predictions_path), {}
    shutil.rmtree(folder, ignore_errors=True)
    for name, challenge in challenges.items():
        task, model = tasks[challenge.task], models[challenge.task]
        path, param = Path(challenge.path).expanduser(), f"evaluate.challenges.{name}"
        rows, rejects = read_file(path, task, name, challenge.columns, param, "path")
        rejects_path = folder / f"{name}-rejects.csv"
        write_rejects(rejects_path, rejects)
        see = f", see {rejects_path}" if rejects else ""
        say(f"challenge {name}: {len(rows)} rows of task {task.name}; {len(rejects)} rejected{see}")
        if rows.empty:
            raise UserError(f"{param}: {challenge.path}: found no row that can be used{see}")
        table = _predict(model, task, name, rows)
        write_predictions(table, folder / f"{name}.parquet")
        report[name] = {
            "task": task.name,
            "model": model.name,
            "n": len(rows),
            "rejected": len(rejects),
            **evaluate_predictions(table, tasks)[name][task.name],
            "intervals": intervals(table, tasks)[name][task.name],
            "dev": {},
        }
        if len(dev[task.name]):
            on_dev = _predict(model, task, "dev", dev[task.name])
            report[name]["dev"] = evaluate_predictions(on_dev, tasks)["dev"][task.name]
    write_json(metrics_path, report)


def _predict(model: TrainedModel, task: Task, split: str, rows: pd.DataFrame) -> pd.DataFrame:
    return predicted_rows(task, split, rows["id"], rows["label"].to_numpy(), model.predict(task.name, rows))
