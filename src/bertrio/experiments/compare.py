"""Whether one side of a comparison is better than the other: differences, intervals, tests, and the rows behind them.

A side is one revision, or several that differ in nothing but their seed. Every figure is for the second side minus the
first, and naming them the other way round turns its sign and changes nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bertrio.core.errors import UserError
from bertrio.core.tasks import Array, Task
from bertrio.evaluation.intervals import contributions
from bertrio.evaluation.metrics import METRICS, OVERALL
from bertrio.evaluation.predictions import Scored
from bertrio.evaluation.significance import (
    ALPHA,
    DIGITS,
    Run,
    TaskScore,
    holm,
    p_text,
    paired_difference,
    score_of,
)
from bertrio.experiments.matching import Matched, match
from bertrio.experiments.recipes.params import ABSENT, leaves
from bertrio.experiments.revision import Revision

Side = Sequence[Revision]
Figures = dict[str, Any]


def open_side(names: str, root: str | Path = ".") -> list[Revision]:
    """Return the revisions of one side: `names` with commas between them.

    Raises:
        UserError: if a name is empty or unknown, or two of them are the same revision.
    """
    revisions = [Revision.open(name.strip(), root) for name in names.split(",") if name.strip()]
    if not revisions:
        raise UserError(f"found {names!r}, expected a revision such as workspace or HEAD, or several with commas")
    if len({revision.commit for revision in revisions}) < len(revisions):
        raise UserError(f"{names}: two of these are the same revision; each seed counts once")
    return revisions


def compare(first: Side, second: Side, split: str = "dev", rows: int | None = None) -> Figures:
    """Compare two sides on the same rows.

    For each task, the difference of the first metric has a 95 % interval and a p-value by
    `significance.paired_difference`: over other rows, and over other seeds where both sides have two or more runs.
    Holm's correction allows for the number of tasks. The overall scores are one question each, and are not corrected.
    Other metrics are not tested.

    Args:
        first: what is compared with, such as a baseline.
        second: what is to be judged.
        split: dev, test, or another split with labels.
        rows: how many of the rows that the sides decide differently to list, fixed and broken each; None for none.

    Returns:
        What --json writes; docs/evaluation.md describes it.

    Raises:
        UserError: if the sides have different tasks of one name, or predictions for different rows.
    """
    revisions = [*first, *second]
    tasks, missing, notes = _shared_tasks(revisions)
    matched = match([(revision.title, revision.predictions()) for revision in revisions], list(tasks), split)
    missing += [name for name in tasks if name not in matched]
    runs = [
        {name: _task_score(tasks[name], both.scored[place]) for name, both in matched.items()}
        for place in range(len(revisions))
    ]
    sides = runs[: len(first)], runs[len(first) :]
    changed = {name: _changed_rows(tasks[name], both, len(first)) for name, both in matched.items()}
    result: Figures = {
        "split": split,
        "first": _describe(first),
        "second": _describe(second),
        "params": changed_params(first, second),
        "tasks": {
            name: {
                "rows": len(both.ids),
                **_tested(sides, name, tasks[name].target.metrics[0]),
                "fixed": int((changed[name]["gain"] > 0).sum()),
                "broken": int((changed[name]["gain"] < 0).sum()),
                "others": _untested(tasks[name], both, len(first)),
            }
            for name, both in matched.items()
        },
    }
    for figures, corrected in zip(result["tasks"].values(), holm([task["p"] for task in result["tasks"].values()])):
        figures |= {"p_holm": corrected, "better": _better(figures, corrected)}
    if missing:
        left_out = f"{', '.join(missing)} (not in all revisions, or without labels of {split})"
        notes.append(f"the overall scores need all tasks; left out: {left_out}")
    else:
        result["overall"] = {name: _tested(sides, name, name) for name in OVERALL}
        for figures in result["overall"].values():
            figures["better"] = _better(figures, figures["p"])
    result["notes"] = [*notes, *_notes(first, second, split), *_same_runs(revisions, runs, len(first))]
    for name, figures in (*result["tasks"].items(), *result.get("overall", {}).items()):
        figures["sentence"] = _sentence(name, figures, label(first), label(second))
    if rows is not None:
        result["rows"] = {name: _listed(frame, tasks[name], revisions, split, rows) for name, frame in changed.items()}
    return result


def label(side: Side) -> str:
    """Return what sentences call a side."""
    return side[0].name if len(side) == 1 else f"{side[0].name} (mean of {len(side)})"


def changed_params(first: Side, second: Side) -> dict[str, list[list[str]]]:
    """Return the params that differ between the sides: for each the values of the first and of the second, as text."""
    sides = [[leaves(revision.settings()) for revision in side] for side in (first, second)]
    names = dict.fromkeys(name for side in sides for settings in side for name in settings)
    values = {name: [sorted({settings.get(name, ABSENT) for settings in side}) for side in sides] for name in names}
    return {name: pair for name, pair in values.items() if pair[0] != pair[1]}


def _shared_tasks(revisions: Side) -> tuple[dict[str, Task], list[str], list[str]]:
    """The tasks that all revisions have, by the usual metric where they lead with different ones; names of the others;
    and notes."""
    by_revision = [revision.tasks() for revision in revisions]
    shared, missing, notes = {}, [], []
    for name in sorted({name for tasks in by_revision for name in tasks}):  # the same whichever side comes first
        if not all(name in tasks for tasks in by_revision):
            missing.append(name)
            continue
        targets: list[Any] = [tasks[name].target for tasks in by_revision]
        if any(target != targets[0] for target in targets):
            kinds = [f"{target} in {revision.title}" for revision, target in zip(revisions, targets)]
            raise UserError(f"task {name}: {'; '.join(kinds)}; only predictions of the same target can be compared")
        shared[name] = by_revision[0][name]
        metrics = list(dict.fromkeys(target.metrics[0] for target in targets))
        if len(metrics) > 1:
            shared[name] = replace(shared[name], target=replace(targets[0], metric=None))
            usual = shared[name].target.metrics[0]
            notes.append(f"{name} is measured by {' and by '.join(metrics)}: compared by {usual}")
    if not shared:
        raise UserError(f"{', '.join(revision.title for revision in revisions)} have no task in common")
    return shared, missing, notes


def _task_score(task: Task, scored: Scored) -> TaskScore:
    metric = task.target.metrics[0]
    return TaskScore(metric, METRICS[metric](scored), contributions(scored, metric))


def _tested(sides: tuple[Sequence[Run], Sequence[Run]], name: str, metric: str) -> Figures:
    """The figures of a task's first metric or of an overall score."""
    tested = paired_difference(*sides, name)
    return {
        "metric": metric,
        "first": tested.first,
        "second": tested.second,
        "difference": tested.difference,
        "interval": [tested.low, tested.high],
        "by_seed": [[score_of(run, name) for run in side] for side in sides],
        "test": "paired t-test over rows" + ("" if tested.rows_alone else " and seeds"),
        "p": tested.p,
    }


def _untested(task: Task, matched: Matched, firsts: int) -> dict[str, Figures]:
    """The figures of a task's other metrics."""
    figures = {}
    for metric in task.target.metrics[1:]:
        values = [METRICS[metric](run) for run in matched.scored]
        first, second = float(np.mean(values[:firsts])), float(np.mean(values[firsts:]))
        figures[metric] = {"first": first, "second": second, "difference": round(second - first, DIGITS)}
    return figures


def _better(figures: Figures, p: float) -> str | None:
    """Which side is better, or None where luck may be all there is."""
    if p >= ALPHA or not figures["difference"]:
        return None
    return "second" if figures["difference"] > 0 else "first"


def _sentence(name: str, figures: Figures, first: str, second: str) -> str:
    """The verdict in words, the same whichever side comes first."""
    metric = "" if figures["metric"] == name else f" {figures['metric']}"
    tests = f"{figures['test']}, p {p_text(figures['p'])}"
    tests += f", {p_text(figures['p_holm'])} after Holm" if "p_holm" in figures else ""
    if not figures["difference"]:
        return f"{name}: both have{metric} {figures['first']:.4f} ({tests})."
    sign = 1 if figures["difference"] > 0 else -1
    ahead, behind = (second, first) if sign > 0 else (first, second)
    low, high = sorted(sign * end for end in figures["interval"])
    size = f"{abs(figures['difference']):.4f}{metric} (95 % interval {low:.4f} to {high:.4f}; {tests})"
    if figures["better"]:
        return f"{name}: {ahead} is better than {behind} by {size}."
    return f"{name}: neither is shown to be better; {ahead} is ahead by {size}, which luck alone may give."


def _errors(runs: Sequence[Scored], task: Task) -> tuple[Array, Array]:
    """How wrong a side is about each row [N], and how far its probability of the label is from 1 [N]; means over runs.

    Of classes the first is the share of wrong ones; of scores both are the error.
    """
    if runs[0].probabilities is None:
        errors = np.mean([np.abs(run.predictions - run.labels) for run in runs], axis=0)
        return errors, errors
    rows = np.arange(len(runs[0].labels))
    doubts = [1 - run.probabilities[rows, run.labels.astype(int)] for run in runs]
    return np.mean([1 - run.correct for run in runs], axis=0), np.mean(doubts, axis=0)


def _changed_rows(task: Task, matched: Matched, firsts: int) -> pd.DataFrame:
    """Rows that the second side decides better (`gain` above 0) or worse; those that changed most come first.

    A class is decided better where more than half of the runs more are right, for single runs where only the second is
    right. A score is where the error falls by more than a tenth of the task's range. Among equals those come first
    whose probability of the label moved most.
    """
    sides = matched.scored[:firsts], matched.scored[firsts:]
    (wrong, doubt), (wrong_then, doubt_then) = (_errors(side, task) for side in sides)
    frame = pd.DataFrame({"id": matched.ids, "label": matched.scored[0].labels})
    for name, side in zip(("first", "second"), sides):
        frame[name] = np.stack([run.predictions for run in side], axis=1).tolist()
    frame = frame.assign(gain=wrong - wrong_then, size=abs(wrong - wrong_then), moved=abs(doubt - doubt_then))
    changed = frame[frame["size"] > task.target.margin]
    return changed.sort_values(["size", "moved"], ascending=False, kind="stable").drop(columns=["size", "moved"])


def _listed(changed: pd.DataFrame, task: Task, revisions: Side, split: str, count: int) -> Figures:
    """The first `count` fixed and broken rows with their texts, from the first revision whose data has them all."""
    parts = {"fixed": changed[changed["gain"] > 0].head(count), "broken": changed[changed["gain"] < 0].head(count)}
    ids = pd.concat([part["id"] for part in parts.values()])
    source = "dev" if split == "selection" else split  # rows of dev that an ensemble was chosen on
    for revision in revisions:
        try:
            texts = revision.rows(task.name, source)[["id", *task.text_columns]]
        except UserError:
            continue
        if ids.isin(texts["id"]).all():
            columns = ["id", *task.text_columns, "label", "first", "second"]
            return {name: part.merge(texts, on="id")[columns].to_dict("records") for name, part in parts.items()}
    raise UserError(
        f"task {task.name}: in no revision does data/splits/{task.name}/{source}.parquet have the rows that were "
        "predicted; run dvc repro, or compare without --rows"
    )


def _describe(side: Side) -> Figures:
    return {
        "name": label(side),
        "revisions": [{"name": revision.name, "commit": revision.commit} for revision in side],
        "selected_on": [_selected_on(revision) for revision in side],
    }


def _selected_on(revision: Revision) -> dict[str, str]:
    path = "metrics/evaluation.json"
    return revision.json(path).get("selected_on", {}) if revision.exists(path) else {}


def _notes(first: Side, second: Side, split: str) -> Iterator[str]:
    """What a reader has to know to read the figures rightly."""
    rows = "dev" if split == "selection" else split  # which is a part of dev
    chosen = {revision.title: _selected_on(revision) for revision in (*first, *second)}
    epochs = [title for title, how in chosen.items() if rows in how.get("rows", "").split(", ")]
    members = [title for title, how in chosen.items() if how.get("ensemble") == split]
    for what, titles, on in (("epochs", epochs, rows), ("ensemble members", members, split)):
        if titles:
            yield f"the {what} of {', '.join(titles)} were chosen on {on}, which flatters them here"
    for side in (first, second):
        settings = [leaves(revision.settings()) for revision in side]
        names = dict.fromkeys(name for params in settings for name in params if not name.endswith("seed"))
        other = [name for name in names if len({params.get(name) for params in settings}) > 1]
        if other:
            yield f"the revisions of {label(side)} differ in {', '.join(other)}, not in their seed alone"
    if min(len(first), len(second)) < 3:
        yield (
            "fewer than three runs on a side say little of other seeds, which may move a score by more than its "
            "interval; bertrio compare takes several a side, with commas"
        )


def _same_runs(revisions: Side, runs: Sequence[Run], firsts: int) -> Iterator[str]:
    """Notes about revisions of one side that are equally good on every row: no other seed, but the same run."""
    pairs = list(zip(revisions, runs))
    for side in (pairs[:firsts], pairs[firsts:]):
        for (one, scores), (other, others) in combinations(side, 2):
            if all(np.array_equal(scores[task].rows, others[task].rows) for task in scores):
                yield f"{one.title} and {other.title} predict all rows alike: the same run is counted twice"
