"""Labelled files beside dev: what a model is worth on rows that were made to be hard."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from bertrio.console import say
from bertrio.data.download import write_rejects
from bertrio.data.sources.files import read_file
from bertrio.data.table import Reject
from bertrio.errors import UserError, missing_path
from bertrio.evaluation.bootstrap import intervals
from bertrio.evaluation.metrics import evaluate_predictions
from bertrio.evaluation.predictions import predicted_rows, write_predictions
from bertrio.files import write_json
from bertrio.params import Challenge
from bertrio.tasks import Task

if TYPE_CHECKING:
    from bertrio.analysis.scorer import Scorer


def write_challenges(
    scorer: Scorer,
    tasks: Mapping[str, Task],
    challenges: Mapping[str, Challenge],
    metrics_path: str | Path,
    predictions_path: str | Path,
) -> None:
    """Measures the model on each file of `evaluate.challenges`.

    Args:
        scorer: the model.
        tasks: all tasks, by name.
        challenges: the files, by name; paths are relative to the repository.
        metrics_path: a JSON file that gets `{name: {"task", "n", "rejected", metric: value, "intervals": {metric:
            [low, high]}}}`: rows measured, rows that could not be, the metrics of the task, and their 95 % intervals.
        predictions_path: a folder, made anew, that gets <name>.parquet, a prediction table whose split is the name of
            the challenge, and <name>-rejects.csv with each row that could not be used and why.

    Raises:
        UserError: if a file or column is missing, or none of a file's rows can be used.
    """
    folder, report = Path(predictions_path), {}
    shutil.rmtree(folder, ignore_errors=True)
    for name, challenge in challenges.items():
        task = tasks[challenge.task]
        rows, rejects = read_challenge(name, challenge, task)
        write_rejects(folder / f"{name}-rejects.csv", rejects)
        say(f"challenge {name}: {len(rows)} rows of task {task.name}; {_rejected(rejects, folder, name)}")
        if rows.empty:
            raise UserError(f"evaluate.challenges.{name}: {challenge.path}: found no row that can be used, see above")
        table = predicted_rows(task, name, rows["id"], rows["label"].to_numpy(), scorer.predict(task.name, rows))
        write_predictions(table, folder / f"{name}.parquet")
        report[name] = {
            "task": task.name,
            "n": len(rows),
            "rejected": len(rejects),
            **evaluate_predictions(table, tasks)[name][task.name],
            "intervals": intervals(table, tasks)[name][task.name],
        }
    write_json(metrics_path, report)


def read_challenge(name: str, challenge: Challenge, task: Task) -> tuple[pd.DataFrame, list[Reject]]:
    """The rows of a challenge in the layout of its task, and those that can't be used.

    Raises:
        UserError: if the file or a column is missing, or there are no labels.
    """
    param, path = f"evaluate.challenges.{name}", Path(challenge.path).expanduser()
    if not path.is_file():
        raise missing_path(f"{param}.path", challenge.path)
    return read_file(path, task, name, challenge.columns, param, "path", challenge.delimiter)


def _rejected(rejects: list[Reject], folder: Path, name: str) -> str:
    if not rejects:
        return "none rejected"
    reasons = sorted(Counter(reject.reason for reject in rejects).items())
    listed = ", ".join(f"{count} {reason}" for reason, count in reasons)
    return f"rejected {len(rejects)} ({listed}), see {folder / name}-rejects.csv"
