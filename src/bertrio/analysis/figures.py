"""Figures of a run as tables, for the model card and the HTML report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from bertrio.evaluation.metrics import LOWER_IS_BETTER, METRICS, OVERALL

WORST = 3  # slices of a task that `weakest` names
FEWEST = 30  # rows of a slice that is named there
SPLITS = ("dev", "selection", "test")
UNBOUNDED = ("mae", "rmse")  # metrics that can be above 1: no line is drawn for them


class Figure(NamedTuple):
    """A value with the ends of its 95 % interval; `mark` is a value to compare it with.

    `drawn` asks for a line from 0 to 1 beside it, where the medium can draw one.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    mark: float | None = None
    drawn: bool = False

    def __str__(self) -> str:
        if self.value is None:
            return "-"
        return f"{self.value:.3f}" + ("" if self.low is None else f" [{self.low:.3f}, {self.high:.3f}]")


def shown(value: Any) -> str:
    """A cell as text: thousands apart, three decimals or digits, a dash for what is missing."""
    if value is None or value != value:  # NaN
        return "-"
    if isinstance(value, (str, Figure)) or not isinstance(value, (int, float)):
        return str(value)
    if float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:,.3f}" if abs(value) >= 0.1 else f"{value:.3g}"


def metric_name(name: str) -> str:
    """The name of a metric, with a note where lower is better."""
    return f"{name} (lower is better)" if name in LOWER_IS_BETTER else name


def splits_of(evaluation: Mapping[str, Any]) -> list[str]:
    """The splits that were measured."""
    return [split for split in SPLITS if split in evaluation]


def figure(evaluation: Mapping[str, Any], split: str, task: str, metric: str | None = None) -> Figure:
    """A task's metric, or an overall score (`metric` None), with its interval."""
    values, ends = (part.get(split, {}).get(task) for part in (evaluation, evaluation.get("intervals", {})))
    if metric is not None:
        values, ends = ((part or {}).get(metric) for part in (values, ends))
    low, high = ends or (None, None)
    return Figure(values, low, high, drawn=metric not in UNBOUNDED)


def metrics(evaluation: Mapping[str, Any]) -> pd.DataFrame:
    """Every metric of every task and the overall scores: task, metric, and a column a split."""
    splits = splits_of(evaluation)
    names = dict.fromkeys(
        (task, metric)
        for split in splits
        for task, values in evaluation[split].items()
        if isinstance(values, Mapping)
        for metric in values
    )
    rows = [
        [task, metric_name(metric), *[figure(evaluation, split, task, metric) for split in splits]]
        for task, metric in names
    ]
    tasks = ", ".join(evaluation.get("overall_tasks", dict.fromkeys(task for task, _ in names)))
    for name in OVERALL:
        if any(name in evaluation[split] for split in splits):
            rows.append([tasks, name, *[figure(evaluation, split, name) for split in splits]])
    return pd.DataFrame(rows, columns=["task", "metric", *splits])


def records(content: Mapping[str, Mapping[str, Any]], first: str) -> pd.DataFrame:
    """A row for each entry, whose name stands in column `first`, and a column for each key."""
    frame = pd.DataFrame.from_dict(dict(content), orient="index").rename(columns=lambda key: key.replace("_", " "))
    return frame.rename_axis(first).reset_index().astype(object)


def slices(content: Mapping[str, Any], evaluation: Mapping[str, Any]) -> pd.DataFrame:
    """The metric of each part of dev; the mark is that of the whole."""
    rows = []
    for task, families in content.items():
        for family, parts in families.items():
            for part, entry in parts.items():
                metric = slice_metric(entry)
                whole = evaluation.get("dev", {}).get(task, {}).get(metric)
                value = Figure(entry.get(metric), entry["low"], entry["high"], whole, metric not in UNBOUNDED)
                rows.append([task, family.replace("_", " "), part, entry["n"], metric, value])
    return pd.DataFrame(rows, columns=["task", "family", "slice", "rows", "metric", "value"])


def slice_metric(entry: Mapping[str, Any]) -> str:
    """The metric of an entry of slices.json."""
    return next(key for key in entry if key not in ("n", "low", "high"))


def robustness(content: Mapping[str, Any]) -> pd.DataFrame:
    """How often changes that should not matter change predictions."""
    rows = [
        [task, name.replace("_", " "), entry["n"], Figure(entry["flips"], entry["low"], entry["high"], drawn=True),
         entry["shift"]]
        for task, changes in content.items()
        for name, entry in changes.items()
        if name != "model"
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["task", "change", "rows", "flips", "mean shift"], dtype=object)


def challenges(content: Mapping[str, Any]) -> pd.DataFrame:
    """The metrics of labelled files beside dev, and the same model's on dev."""
    rows = [
        [
            name,
            entry["task"],
            entry["n"],
            metric_name(metric),
            _challenge(entry, metric),
            Figure(entry.get("dev", {}).get(metric)),
        ]
        for name, entry in content.items()
        for metric in entry
        if metric in METRICS
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["file", "task", "rows", "metric", "value", "dev"])


def _challenge(entry: Mapping[str, Any], metric: str) -> Figure:
    ends = entry.get("intervals", {}).get(metric) or (None, None)
    return Figure(entry[metric], ends[0], ends[1], drawn=metric not in UNBOUNDED)


def asked_models(robustness: Mapping[str, Any], challenges: Mapping[str, Any]) -> dict[str, str]:
    """By task, the model that was asked of texts beside the predictions."""
    models = {task: changes["model"] for task, changes in robustness.items() if "model" in changes}
    return models | {entry["task"]: entry["model"] for entry in challenges.values() if "model" in entry}


def model_caption(models: Mapping[str, str], members: Sequence[str]) -> str:
    """A sentence that says which members were asked, if the ensemble is more than one model; else empty.

    Args:
        models: the name of the model that was asked, by task.
        members: the names of all members.
    """
    alone = {task: name for task, name in models.items() if name != "ensemble"}
    if not alone or len(members) < 2:
        return ""
    tasks = {name: [task for task, asked in alone.items() if asked == name] for name in dict.fromkeys(alone.values())}
    named = "; ".join(f"{name} for {', '.join(asked)}" for name, asked in tasks.items())
    return f"One member was asked for each task, not the ensemble: {named}."


def weakest(task: str, families: Mapping[str, Mapping[str, Any]]) -> str:
    """The slices with the worst figure, of those with rows enough to say so; empty without any."""

    def text(family: str, part: str, entry: Mapping[str, Any]) -> str:
        return (
            f"{family}: {part} ({Figure(entry[slice_metric(entry)], entry['low'], entry['high'])}, {entry['n']:,} rows)"
        )

    lines = [
        (entry, text(family, part, entry))
        for family, parts in families.items()
        for part, entry in parts.items()
        if family != "all" and entry.get(slice_metric(entry)) is not None and entry["n"] >= FEWEST
    ]  # fmt: skip
    if not lines:
        return ""
    metric = slice_metric(lines[0][0])
    highest = metric in LOWER_IS_BETTER
    worst = sorted(lines, key=lambda line: line[0][metric], reverse=highest)[:WORST]
    return f"{task} has its {'highest' if highest else 'lowest'} {metric} in {'; '.join(line for _, line in worst)}."
