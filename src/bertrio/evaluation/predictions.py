"""Prediction tables. Everything after training works on them alone.

A table has one row for each row of each task and split, in the order of the data:

    id             str
    task, split    str; beside train, dev and test, `selection`: the dev rows that an ensemble was chosen on
    label          float64, NaN where the row is unlabelled
    prediction     float64: the class, 0 or 1, the number of a set, or the score clipped to the task's range
    probabilities  list of float64, one a class (binary: no, yes); null for score targets
    score          float64: the raw score, not clipped; NaN for the other targets
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bertrio.core.errors import UserError
from bertrio.core.files import read_parquet, whole_file
from bertrio.core.tasks import Array, MultiLabel, Predicted, Task, indicators, probability_of

RERUN = "run the stage that writes it"
KEYS = ["task", "split", "id"]  # columns that identify a row
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("task", pa.string()),
        ("split", pa.string()),
        ("label", pa.float64()),
        ("prediction", pa.float64()),
        ("probabilities", pa.list_(pa.float64())),
        ("score", pa.float64()),
    ]
)


def prediction_rows(task: Task, split: str, ids: Sequence[str], labels: Array, outputs: Array) -> pd.DataFrame:
    """Turn a head's outputs for one task and split into prediction rows.

    Args:
        task: its target turns outputs into predictions.
        split: name of the split.
        ids: N row ids.
        labels: [N], NaN where unlabelled.
        outputs: [N, size] of the target.

    Raises:
        UserError: if an output is not finite, as after training that diverged.
    """
    ids, outputs = list(ids), np.asarray(outputs, dtype=np.float64)
    broken = np.flatnonzero(~np.isfinite(outputs).all(axis=1))
    if len(broken):
        raise UserError(
            f"task {task.name}, split {split}: the model's outputs are not finite for {len(broken)} of {len(ids)} rows "
            f"(first: id {ids[broken[0]]!r}); training diverged: lower finetune.lr or set optimizer.max_grad_norm"
        )
    return predicted_rows(task, split, ids, labels, task.target.predict(outputs))


def predicted_rows(task: Task, split: str, ids: Sequence[str], labels: Array, predicted: Predicted) -> pd.DataFrame:
    """Return prediction rows of one task and split. Args as `prediction_rows`."""
    names = {"id": list(ids), "task": [task.name] * len(ids), "split": [split] * len(ids)}
    return pd.DataFrame({**names, "label": np.asarray(labels, dtype=np.float64), **predicted_columns(predicted)})


def predicted_columns(predicted: Predicted) -> dict[str, Any]:
    """Return the columns prediction, probabilities and score of a prediction table."""
    values, probabilities, scores = predicted
    return {
        "prediction": values,
        "probabilities": [None] * len(values) if probabilities is None else list(probabilities),
        "score": np.full(len(values), np.nan) if scores is None else scores,
    }


def predicted_of(rows: pd.DataFrame) -> Predicted:
    """Return the predictions in rows of a prediction table, all of one task."""
    values = rows["prediction"].to_numpy(np.float64)
    if len(rows) and rows["probabilities"].iloc[0] is not None:
        return Predicted(values, np.stack(rows["probabilities"].to_list()), None)
    return Predicted(values, None, rows["score"].to_numpy(np.float64))


def write_predictions(frame: pd.DataFrame, path: str | Path) -> None:
    """Write a prediction table as parquet, rows in the given order; equal tables give equal bytes.

    Raises:
        UserError: if the table is not a prediction table, see `check_predictions`.
    """
    check_predictions(frame, str(path))
    numbers = {name: frame[name].to_numpy(np.float64) for name in ("label", "prediction", "score")}
    others = {name: frame[name].to_list() for name in ("id", "task", "split", "probabilities")}
    table = pa.Table.from_pydict({**others, **numbers}, schema=SCHEMA)  # from_pandas would add metadata with versions
    with whole_file(path) as temporary:
        pq.write_table(table, temporary)


def read_predictions(path: str | Path, content: bytes | None = None) -> pd.DataFrame:
    """Read a prediction table.

    Args:
        path: the file.
        content: its bytes, if they come from another revision instead of `path`; errors still name `path`.

    Raises:
        UserError: if the file is missing, not parquet, or not a prediction table.
    """
    try:
        table = read_parquet(path if content is None else pa.BufferReader(content))
        frame = table.select(SCHEMA.names).cast(SCHEMA).to_pandas(use_threads=False)
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:  # ValueError: names that are not UTF-8
        layout = ", ".join(f"{field.name} ({field.type})" for field in SCHEMA)
        message = f"{path}: can't be read as a prediction table ({error}); expected columns {layout}; {RERUN}"
        raise UserError(message) from error
    check_predictions(frame, str(path))
    return frame


def check_predictions(frame: pd.DataFrame, where: str) -> None:
    """Check that `frame` is a prediction table; errors name the file `where`.

    Raises:
        UserError: if a row lacks a part of its key or a finite prediction, or is duplicate.
    """
    named = frame[KEYS].notna().all(axis=1) & np.isfinite(frame["prediction"])
    for wrong, problem in (
        (~named, "lacks a part of its name or a finite prediction"),
        (frame.duplicated(KEYS), "stands twice, expected one prediction a row"),
    ):
        if wrong.any():
            raise UserError(f"{where}: {row_name(frame[wrong].iloc[0])} {problem}; {RERUN}")


def check_tasks(frame: pd.DataFrame, tasks: Mapping[str, Task]) -> None:
    """Check that all predictions are of known tasks.

    Raises:
        UserError: if there are others, naming them.
    """
    unknown = [name for name in frame["task"].unique() if name not in tasks]
    if unknown:
        raise UserError(
            f"predictions of task {', '.join(unknown)}: params.yaml has no such task, only {', '.join(tasks)}; "
            "they are from a run with other tasks: run the finetune stages again"
        )


def row_name(row: Mapping[str, object]) -> str:
    """Return a row's key as error messages show it."""
    return f"task {row['task']}, split {row['split']}, id {row['id']!r}"


@dataclass(frozen=True, eq=False)
class Scored:
    """Predictions and labels of one task: the input of all metrics.

    `labels` [N] and `predictions` [N]: classes, 0 or 1, scores, or numbers of `sets` of classes; `probabilities`
    [N, C], or None for scores.
    """

    labels: Array
    predictions: Array
    probabilities: Any = None
    sets: bool = False

    @classmethod
    def from_rows(cls, rows: pd.DataFrame, task: Task | None = None) -> Scored:
        """Return the labelled rows of a prediction table, all of one task, which must be given if it predicts sets."""
        rows = rows[rows["label"].notna()]
        predicted = predicted_of(rows)
        sets = task is not None and task.target.sets
        return cls(rows["label"].to_numpy(np.float64), predicted.values, predicted.probabilities, sets)

    def take(self, rows: NDArray[Any]) -> Scored:
        """Return some of the rows, by position or by mask."""
        probabilities = None if self.probabilities is None else self.probabilities[rows]
        return Scored(self.labels[rows], self.predictions[rows], probabilities, self.sets)

    @property
    def decisions(self) -> Scored:
        """Sets as one row of no or yes a class, [N * C]; other rows as they are."""
        if not self.sets or self.probabilities is None:
            return self
        yes = self.probabilities
        labels, predictions = (indicators(side, yes.shape[1]).reshape(-1) for side in (self.labels, self.predictions))
        return Scored(labels, predictions, np.stack((1 - yes, yes), axis=-1).reshape(-1, 2))

    @property
    def correct(self) -> Array:
        """Mask of right predictions [N]: 1 where the prediction is the label, else 0."""
        return (self.labels == self.predictions).astype(np.float64)

    @property
    def confidence(self) -> Array:
        """Probability of the predicted class, or set, [N]; after a vote, it may not be the largest."""
        return probability_of(self.predictions, self.probabilities, self.sets)


def best_thresholds(labels: Array, probabilities: Array) -> list[float]:
    """Return the threshold of each class with the highest F1, which also maximizes the macro F1.

    SCut of Yang 2001, "A Study of Thresholding Strategies for Text Categorization", section 2.3. A threshold lies
    midway between two probabilities; the highest of equally good ones is taken, and 0.5 for a class without rows.

    Args:
        labels: [N, C], 0 or 1.
        probabilities: [N, C].
    """
    order = np.argsort(-probabilities, axis=0, kind="stable")
    gold, cuts = (np.take_along_axis(values, order, axis=0) for values in (labels, probabilities))
    cuts, ranks = np.vstack([cuts, np.zeros_like(cuts[:1])]), np.arange(1, len(gold) + 1)[:, None]
    f1 = 2 * np.cumsum(gold, axis=0) / (ranks + gold.sum(axis=0))
    best, classes = np.where(cuts[:-1] > cuts[1:], f1, -1.0).argmax(axis=0), np.arange(labels.shape[1])
    return np.where(labels.any(axis=0), (cuts[best, classes] + cuts[best + 1, classes]) / 2, 0.5).tolist()


def tune(config: Any, tasks: Mapping[str, Task], frame: pd.DataFrame) -> Any:
    """Return params, or a model's description, with thresholds for those of the `tasks` that lack them.

    Args:
        config: has the params of `tasks`.
        tasks: all tasks, by name.
        frame: a prediction table of the rows to choose on; without labels of a task there, its thresholds are 0.5.
    """
    tuned = dict(config.tasks)
    for name, task in tasks.items():
        rows = frame[(frame["task"] == name) & frame["label"].notna()]
        if isinstance(task.target, MultiLabel) and not task.target.thresholds and len(rows):
            labels = task.target.encode(rows["label"].to_numpy(np.float64))
            thresholds = best_thresholds(labels, np.stack(rows["probabilities"].to_list()))
            tuned[name] = tuned[name].model_copy(update={"thresholds": thresholds})
    return config.model_copy(update={"tasks": tuned})


def decide(frame: pd.DataFrame, tasks: Mapping[str, Task]) -> pd.DataFrame:
    """Return a prediction table with the sets that the thresholds of `tasks` choose."""
    frame = frame.copy()
    for name, rows in frame.groupby("task"):
        target = tasks[str(name)].target
        if isinstance(target, MultiLabel):
            frame.loc[rows.index, "prediction"] = target.decide(np.stack(rows["probabilities"].to_list()))
    return frame
