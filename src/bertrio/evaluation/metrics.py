"""How good predictions are: one number a metric, and the overall scores of the papers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from bertrio.errors import UserError
from bertrio.evaluation.predictions import check_tasks
from bertrio.tasks import Array, Task


def accuracy(labels: Array, predictions: Array) -> float:
    """Share of rows [N] whose prediction is the label, 0 to 1."""
    return float(np.mean(labels == predictions))


def f1(labels: Array, predictions: Array) -> float:
    """Harmonic mean of precision and recall of class 1, 0 to 1.

    0 where no row is, or is predicted to be, of class 1: nothing was found.
    """
    found = np.sum((labels == 1) & (predictions == 1))
    all_positive = np.sum(labels == 1) + np.sum(predictions == 1)
    return float(2 * found / all_positive) if all_positive else 0.0


def pearson(labels: Array, predictions: Array) -> float:
    """Pearson's correlation of two series [N], -1 to 1.

    Undefined where either is constant (a variance of 0 divides): 0 then, for a constant says nothing about the
    other, and a model that collapsed must not stop a run or leave a NaN in the metrics.
    """
    if np.ptp(labels) == 0 or np.ptp(predictions) == 0:
        return 0.0
    from scipy.stats import pearsonr  # takes a second to import, and most of bertrio does without

    return float(pearsonr(labels, predictions).statistic)


def spearman(labels: Array, predictions: Array) -> float:
    """Spearman's correlation: Pearson's of the ranks, ties sharing their mean rank. Constants as in `pearson`."""
    from scipy.stats import rankdata

    return pearson(rankdata(labels), rankdata(predictions))


METRICS = {"accuracy": accuracy, "f1": f1, "pearson": pearson, "spearman": spearman}
CORRELATIONS = ("pearson", "spearman")  # reach down to -1, where the others begin at 0


def evaluate_predictions(frame: pd.DataFrame, tasks: Mapping[str, Task]) -> dict[str, dict[str, Any]]:
    """Measures a prediction table against its labels.

    Scores are measured by `prediction`, clipped to the task's range: it is what is handed in and ensembled.

    Args:
        frame: a prediction table; unlabelled rows are left out.
        tasks: all tasks, by name; the first metric of each stands for it in the overall scores.

    Returns:
        `{split: {task: {metric: value}, "overall_mean": value, "overall_normalized": value}}`. A split or task
        without labels is absent. The overall scores are there where every task has labels: `overall_mean` is the
        mean over tasks of the first metric ("BERT++", "A Comprehensive Analysis of Fine-Tuning Strategies for
        BERT"), `overall_normalized` the same with a correlation r as (r + 1) / 2 ("SMART Fine-tuning", "BERT and
        Beyond").

    Raises:
        UserError: if there are predictions of an unknown task.
    """
    check_tasks(frame, tasks)
    labelled = frame[frame["label"].notna()]
    return {str(split): _evaluate_split(rows, tasks) for split, rows in labelled.groupby("split")}


def _evaluate_split(rows: pd.DataFrame, tasks: Mapping[str, Task]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name, task in tasks.items():
        own = rows[rows["task"] == name]
        if len(own):
            labels, predictions = own["label"].to_numpy(np.float64), own["prediction"].to_numpy(np.float64)
            results[name] = {metric: METRICS[metric](labels, predictions) for metric in task.target.metrics}
    if len(results) == len(tasks):
        first = [(task.target.metrics[0], results[name][task.target.metrics[0]]) for name, task in tasks.items()]
        results["overall_mean"] = float(np.mean([value for _, value in first]))
        results["overall_normalized"] = float(np.mean([_from_zero_to_one(metric, value) for metric, value in first]))
    return results


def _from_zero_to_one(metric: str, value: float) -> float:
    return (value + 1) / 2 if metric in CORRELATIONS else value


def selection_score(metrics: Mapping[str, Any], select: str, tasks: Mapping[str, Task]) -> float:
    """The number by which `finetune.select` ranks epochs; higher is better.

    Args:
        metrics: one split of what `evaluate_predictions` returns.
        select: `overall_normalized`, `overall_mean`, or the name of a task, whose first metric counts.
        tasks: all tasks, by name.

    Raises:
        UserError: if the rows that were measured have no labels for it.
    """
    if select not in metrics:
        without = [name for name in ([select] if select in tasks else tasks) if name not in metrics]
        raise UserError(
            f"finetune.select: {select} needs labels, and the rows to select on have none for task "
            f"{', '.join(without)}; set finetune.select to a task that has them or to last, "
            "or finetune.select_on to holdout"
        )
    return metrics[select][tasks[select].target.metrics[0]] if select in tasks else metrics[select]
