"""Figures of a run as tables, for the model card and the HTML report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from bertrio.evaluation.metrics import LOWER_IS_BETTER, METRICS

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


def measured(metric: str, value: float | None, ends: Sequence[float] | None, mark: float | None = None) -> Figure:
    """The value of a metric with the ends of its interval, if there are any."""
    low, high = ends or (None, None)
    return Figure(value, low, high, mark, drawn=metric not in UNBOUNDED)


def figure(evaluation: Mapping[str, Any], split: str, task: str, metric: str | None = None) -> Figure:
    """A task's metric, or an overall score (`metric` None), with its interval."""
    values, ends = (part.get(split, {}).get(task) for part in (evaluation, evaluation.get("intervals", {})))
    if metric is not None:
        values, ends = ((part or {}).get(metric) for part in (values, ends))
    return measured(metric or task, values, ends)


def metrics(evaluation: Mapping[str, Any]) -> pd.DataFrame:
    """Every metric of every task and the overall scores: task, metric, and a column a split."""
    splits = splits_of(evaluation)
    names = dict.fromkeys(
        (task, metric)
        for split in splits
        for task, values in evaluation[split].items()
        for metric in (values if isinstance(values, Mapping) else [None])  # an overall score
    )
    covered = ", ".join(evaluation.get("overall_tasks", dict.fromkeys(task for task, metric in names if metric)))
    rows = [
        [task if metric else covered, metric_name(metric or task)]
        + [figure(evaluation, split, task, metric) for split in splits]
        for task, metric in names
    ]
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
                metric = next(key for key in entry if key not in ("n", "low", "high"))
                whole = evaluation.get("dev", {}).get(task, {}).get(metric)
                value = measured(metric, entry.get(metric), (entry["low"], entry["high"]), whole)
                rows.append([task, family.replace("_", " "), part, entry["n"], metric, value])
    return pd.DataFrame(rows, columns=["task", "family", "slice", "rows", "metric", "value"])


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
        [name, entry["task"], entry["n"], metric_name(metric),
         measured(metric, entry[metric], entry.get("intervals", {}).get(metric)),
         Figure(entry.get("dev", {}).get(metric))]
        for name, entry in content.items()
        for metric in entry
        if metric in METRICS
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["file", "task", "rows", "metric", "value", "dev"])


def model_caption(content: Mapping[str, Mapping[str, Any]], members: Sequence[str]) -> str:
    """A sentence that says which members were asked, if the ensemble is more than one model; else empty.

    Args:
        content: of robustness.json, by task, or of challenges.json, whose entries name their task.
        members: the names of all members.
    """
    models = {entry.get("task", name): entry.get("model", "ensemble") for name, entry in content.items()}
    tasks: dict[str, list[str]] = {}
    for task, model in models.items():
        if model != "ensemble" and len(members) > 1:
            tasks.setdefault(model, []).append(task)
    named = "; ".join(f"{model} for {', '.join(asked)}" for model, asked in tasks.items())
    return f"One member was asked for each task, not the ensemble: {named}." if named else ""


def weakest(content: Mapping[str, Any]) -> list[tuple[str, list[Any]]]:
    """By task, the rows of `slices` with the worst figure, of those with rows enough to say so."""
    frame = slices(content, {})
    known = frame.assign(at=[value.value for value in frame["value"]]).dropna(subset="at")
    known = known[(known["family"] != "all") & (known["rows"] >= FEWEST)]
    worst = {
        str(task): rows.sort_values("at", ascending=rows["metric"].iloc[0] not in LOWER_IS_BETTER, kind="stable")
        for task, rows in known.groupby("task", sort=False)
    }
    return [(task, list(rows.head(WORST).itertuples())) for task, rows in worst.items()]


def environment(**options: Any) -> Any:
    """The jinja2 environment of the templates beside this file: it escapes what they print, and knows no typos."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **options,
    )
