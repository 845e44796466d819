"""Figures of a run as tables, for the templates of the model card, the HTML report and its charts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from bertrio.core.tasks import Task
from bertrio.evaluation.evaluate import selection_text
from bertrio.evaluation.metrics import LOWER_IS_BETTER, METRICS
from bertrio.evaluation.plots import sortable

WORST = 3  # slices of a task that `weakest` names
MIN_WEAKEST_ROWS = 30  # it names no smaller slice
SPLITS = ("dev", "selection", "test")
POINTS = 200  # of a curve of running means
UNBOUNDED = ("mae", "rmse")  # metrics that can exceed 1, without a line from 0 to 1


class Figure(NamedTuple):
    """Value with its 95 % interval; `mark` is a value to compare it with, `drawn` requests a line from 0 to 1."""

    value: float | None
    low: float | None = None
    high: float | None = None
    mark: float | None = None
    drawn: bool = False

    def __str__(self) -> str:
        if self.value is None:
            return "-"
        return f"{self.value:.3f}" + ("" if self.low is None else f" [{self.low:.3f}, {self.high:.3f}]")


def format_cell(value: Any) -> str:
    """Return a cell as text: thousands separators, one decimal from 10 on, else three decimals or digits; a dash for
    missing values."""
    if value is None or value != value:  # NaN
        return "-"
    if not isinstance(value, (int, float)):
        return str(value)
    if float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.3f}" if abs(value) >= 0.1 else f"{value:.3g}"


def metric_name(name: str) -> str:
    """Return the name of a metric, with a note where lower is better."""
    return f"{name} (lower is better)" if name in LOWER_IS_BETTER else name


def evaluated_splits(evaluation: Mapping[str, Any]) -> list[str]:
    """Return the splits that have metrics."""
    return [split for split in SPLITS if split in evaluation]


def measured(metric: str, value: float | None, ends: Sequence[float] | None, mark: float | None = None) -> Figure:
    """Return the value of a metric with its interval, if it has one."""
    low, high = ends or (None, None)
    return Figure(value, low, high, mark, drawn=metric not in UNBOUNDED)


def figure(
    evaluation: Mapping[str, Any], split: str, task: str, metric: str | None, mark: float | None = None
) -> Figure:
    """Return a task's metric, or an overall score (`metric` None), with its interval."""
    values, ends = (part.get(split, {}).get(task) for part in (evaluation, evaluation.get("intervals", {})))
    if metric is not None:
        values, ends = ((part or {}).get(metric) for part in (values, ends))
    return measured(metric or task, values, ends, mark)


def metrics(evaluation: Mapping[str, Any]) -> pd.DataFrame:
    """Return all metrics of all tasks and the overall scores: columns task, metric, and one for each split."""
    splits = evaluated_splits(evaluation)
    names = dict.fromkeys(
        (task, metric)
        for split in splits
        for task, values in evaluation[split].items()
        for metric in (values if isinstance(values, Mapping) else [None])  # an overall score
    )
    overall_tasks = ", ".join(evaluation.get("overall_tasks", ()))
    rows = [
        [task if metric else overall_tasks, metric_name(metric or task)]
        + [figure(evaluation, split, task, metric) for split in splits]
        for task, metric in names
    ]
    return pd.DataFrame(rows, columns=["task", "metric", *splits])


def records(content: Mapping[str, Mapping[str, Any]], first: str) -> pd.DataFrame:
    """Return a row for each entry, with its name in column `first`, and a column for each key."""
    frame = pd.DataFrame.from_dict(dict(content), orient="index").rename(columns=lambda key: key.replace("_", " "))
    return frame.rename_axis(first).reset_index().astype(object)


def leaves(content: Mapping[str, Any]) -> pd.DataFrame:
    """Return a row for each value of nested mappings, named by its keys."""
    values = pd.json_normalize(dict(content), sep=", ").iloc[:1].T.reset_index().astype(object)
    return values.set_axis(["name", "value"][: len(values.columns)], axis=1)


def split_facts(data: Mapping[str, Any]) -> pd.DataFrame:
    """Return the facts of data.json about the rows of each split: one row for each fact, one column for each split."""
    splits = {f"{task} {split}": facts for task, parts in data["tasks"].items() for split, facts in parts.items()}
    facts = pd.json_normalize(list(splits.values()), sep=" ").rename(columns=lambda name: name.replace("_", " "))
    return facts.set_axis(list(splits)).T.rename_axis("fact").reset_index().astype(object)


def slices(content: Mapping[str, Any]) -> pd.DataFrame:
    """Return the metric of each slice of dev; the mark is the metric of all rows."""
    rows = []
    for task, families in content.items():
        for family, parts in families.items():
            for part, entry in parts.items():
                metric = next(key for key in entry if key not in ("n", "low", "high"))
                whole = families.get("all", {}).get("all rows", {}).get(metric)
                value = measured(metric, entry.get(metric), (entry["low"], entry["high"]), whole)
                rows.append([task, family.replace("_", " "), part, entry["n"], metric, value])
    return pd.DataFrame(rows, columns=["task", "family", "slice", "rows", "metric", "value"])


def weakest(content: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """Return by task the `WORST` rows of `slices` with the worst values, among those of `MIN_WEAKEST_ROWS` or more."""
    frame = slices(content)
    frame = frame[(frame["family"] != "all") & (frame["rows"] >= MIN_WEAKEST_ROWS)]
    frame = frame.assign(score=[float(value.value) for value in frame["value"]])
    worst = {}
    for task, rows in frame.groupby("task", sort=False):
        highest = rows["metric"].iloc[0] in LOWER_IS_BETTER
        worst[task] = rows.sort_values("score", ascending=not highest, kind="stable").head(WORST)
    return worst


BIAS = ("bias", "bias_low", "bias_high")


def robustness(content: Mapping[str, Any]) -> pd.DataFrame:
    """Return how often each perturbation changes predictions."""
    rows = [
        [task, name.replace("_", " "), entry["n"], Figure(entry["flips"], entry["low"], entry["high"], drawn=True),
         entry["shift"], Figure(*[entry[part] for part in BIAS]) if entry.get("bias") is not None else None]
        for task, changes in content.items()
        for name, entry in changes.items()
        if name != "model"
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["task", "change", "rows", "flips", "mean shift", "bias"], dtype=object)


def challenges(content: Mapping[str, Any]) -> pd.DataFrame:
    """Return the metrics of challenge files, and those of the same model on dev."""
    rows = [
        [name, entry["task"], entry["n"], metric_name(metric),
         measured(metric, entry[metric], entry.get("intervals", {}).get(metric)),
         Figure(entry.get("dev", {}).get(metric))]
        for name, entry in content.items()
        for metric in entry
        if metric in METRICS
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["file", "task", "rows", "metric", "value", "dev"])


def worst_rows(rows: Iterable[Mapping[str, Any]], task: Task) -> pd.DataFrame:
    """Return the worst rows, with one text or neighbour on each line of a cell."""
    return pd.DataFrame(
        {
            "text": "\n".join(row["texts"]),
            "label": label_text(row["label"], task),
            "prediction": label_text(row["prediction"], task),
            "confidence" if task.target.discrete else "error": row.get("confidence", row.get("error")),
            "one word changed": _word_change(row["change"], task),
            "nearest training rows": "\n".join(_neighbour(near, task) for near in row["neighbours"]),
            "id": str(row["id"]),
        }
        for row in rows
    )


def suspects(rows: pd.DataFrame, task: Task) -> pd.DataFrame:
    """Return the suspect labels of a task, with the names of classes."""
    names = {column: [label_text(value, task) for value in rows[column]] for column in ("label", "suggested")}
    return rows.drop(columns="task").dropna(axis=1, how="all").assign(**names)


def label_text(value: float, task: Task) -> str:
    """Return a label or prediction as text: the name or number of a class, or a score with two decimals."""
    return task.target.name_of(value) if task.target.discrete else f"{value:.2f}"


def _neighbour(near: Mapping[str, Any], task: Task) -> str:
    return f"{' / '.join(near['texts'])} (label {label_text(near['label'], task)}, similarity {near['similarity']:.2f})"


def _word_change(change: Mapping[str, Any] | None, task: Task) -> str:
    if not change:
        return "-"
    edit = f"{change['from']} left out" if change["to"] is None else f"{change['from']} → {change['to']}"
    ends = []
    for when in ("before", "after"):
        confidence = change.get(f"confidence_{when}")
        ends.append(label_text(change[when], task) + ("" if confidence is None else f" ({confidence:.2f})"))
    return f"{edit}: {' → '.join(ends)}"


def model_caption(content: Mapping[str, Mapping[str, Any]], members: Sequence[str]) -> str:
    """Return a sentence that names the members whose predictions were measured; empty where it is one model.

    Args:
        content: robustness.json, by task, or challenges.json, whose entries name their task.
        members: names of all members.
    """
    models = {entry.get("task", name): entry["model"] for name, entry in content.items()}
    models = {task: model for task, model in models.items() if model != "ensemble"}
    if len(members) < 2 or not models:
        return ""
    named = ", ".join(f"{model} for {task}" for task, model in models.items())
    return f"One member was asked for each task, not the ensemble: {named}."


def environment(**options: Any) -> Any:
    """Return the Jinja environment of the templates in this folder, with autoescape and errors for unknown names."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **options,
    )
    environment.globals["selection_text"] = selection_text
    return environment


class Scale(NamedTuple):
    """Linear scale from values to pixels: `ticks` are round numbers from `start` to `end`."""

    ticks: list[float]
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        low, high = self.ticks[0], self.ticks[-1]
        return round(self.start + (value - low) / (high - low) * (self.end - self.start), 1)


def scale(values: Iterable[float], start: float, end: float) -> Scale:
    """Return a scale that covers all values but NaN."""
    from matplotlib.ticker import MaxNLocator  # takes half a second

    known = [float(value) for value in values if value is not None and value == value] or [0.0, 1.0]
    widened = 0.01 * (min(known) == max(known))
    ticks = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(min(known) - widened, max(known) + widened)
    return Scale([float(tick) for tick in ticks], start, end)


def curves(tables: Mapping[str, pd.DataFrame], column: str) -> dict[str, pd.DataFrame]:
    """Return the points [x, y] of each table that has any, by name: the values of `column` by step."""
    points = {name: table[["step", column]].dropna().set_axis(["x", "y"], axis=1) for name, table in tables.items()}
    return {name: table for name, table in points.items() if len(table)}


def conflict_curves(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the running means of the cosine of two tasks' gradients, by pair of tasks."""
    means = {}
    for (one, other), rows in table.groupby(["task_a", "task_b"], sort=False):
        mean = rows["cosine"].rolling(max(1, len(rows) // 20), center=True, min_periods=1).mean()
        means[f"{one} and {other}"] = rows.assign(mean=mean).iloc[:: max(1, len(rows) // POINTS)]
    return curves(means, "mean")


def confusion(table: pd.DataFrame, task: Task) -> pd.DataFrame:
    """Return the number of rows by gold (index) and predicted class (columns), in the order of the classes."""
    names = list(task.target.class_names)
    table = table.replace(dict(zip(sortable(names), names)))
    seen = {*table["gold"], *table["predicted"]}
    order = [*(name for name in names if name in seen), *sorted(seen.difference(names))]
    return pd.crosstab(table["gold"], table["predicted"]).reindex(index=order, columns=order, fill_value=0)
