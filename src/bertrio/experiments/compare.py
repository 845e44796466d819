"""Paired comparison of two sides: differences of metrics, intervals, tests, and the rows that changed.

A side is one revision, or several that differ only in their seed. Differences are second side minus first side, so
swapping the sides only changes their sign.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from bertrio.core.errors import UserError
from bertrio.core.tasks import Array, Task, probability_of
from bertrio.evaluation.intervals import contributions
from bertrio.evaluation.metrics import METRICS, OVERALL
from bertrio.evaluation.predictions import Scored
from bertrio.evaluation.significance import ALPHA, DIGITS, Run, TaskScore, holm, p_text, paired_difference, score_of
from bertrio.experiments.recipes.params import ABSENT, leaves
from bertrio.experiments.revision import Revision

FEW = 10  # degrees of freedom, below which Student's t widens an interval by more than an eighth
Side = Sequence[Revision]
Figures = dict[str, Any]
MAX_IDS = 3  # ids in a message


class Matched(NamedTuple):
    """Rows of one task: sorted `ids` [N], and labels and predictions of each table in this order."""

    ids: list[str]
    scored: list[Scored]


def open_side(names: str) -> list[Revision]:
    """Return the revisions of one side: `names` with commas between them.

    Raises:
        UserError: if a name is empty or unknown, or two of them are the same revision.
    """
    revisions = [Revision.open(name.strip()) for name in names.split(",") if name.strip()]
    if not revisions:
        raise UserError(f"found {names!r}, expected a revision such as workspace or HEAD, or several with commas")
    if len({revision.commit for revision in revisions}) < len(revisions):
        raise UserError(f"{names}: two of these are the same revision; each seed counts once")
    return revisions


def compare(first: Side, second: Side, split: str = "dev", rows: int | None = None) -> Figures:
    """Compare two sides on the same rows.

    For each task, the difference of the main metric has a 95 % interval and a p-value by
    `significance.paired_difference`: over other rows, and over other seeds where both sides have two or more runs.
    Holm's correction allows for the number of tasks. The overall scores are not corrected: each is a single test. Other
    metrics are not tested.

    Args:
        first: the side to compare with, such as a baseline.
        second: the side to evaluate.
        split: dev, test, or another split with labels.
        rows: maximum number of fixed and of broken rows to list for each task; None lists none.

    Returns:
        The content of `--json`.

    Raises:
        UserError: if a task has different targets in the revisions, or the predictions are for different rows.
    """
    revisions = [*first, *second]
    tasks, missing, notes = _shared_tasks(revisions)
    matched = match([(revision.title, revision.predictions()) for revision in revisions], tasks, split)
    missing += [name for name in tasks if name not in matched]
    runs = [
        {name: _task_score(tasks[name], pair, index) for name, pair in matched.items()}
        for index in range(len(revisions))
    ]
    sides = runs[: len(first)], runs[len(first) :]
    changed = {name: _changed_rows(tasks[name], pair, len(first)) for name, pair in matched.items()}
    result: Figures = {
        "split": split,
        "first": _describe(first),
        "second": _describe(second),
        "params": changed_params(first, second),
        "tasks": {
            name: {
                "rows": len(pair.ids),
                **_test(sides, name, tasks[name].target.metrics[0]),
                "fixed": int((changed[name]["gain"] > 0).sum()),
                "broken": int((changed[name]["gain"] < 0).sum()),
                "others": _other_metrics(tasks[name], pair, len(first)),
            }
            for name, pair in matched.items()
        },
    }
    for figures, corrected in zip(result["tasks"].values(), holm([task["p"] for task in result["tasks"].values()])):
        figures["p_holm"] = corrected
    if missing:
        left_out = f"{', '.join(missing)} (not in all revisions, or without labels of {split})"
        notes.append(f"the overall scores need all tasks; left out: {left_out}")
    else:
        result["overall"] = {name: _test(sides, name, name) for name in OVERALL}
    result["notes"] = [*notes, *_notes(first, second, split), *_same_runs(revisions, matched.values(), len(first))]
    tested = {**result["tasks"], **result.get("overall", {})}
    if wide := [name for name, figures in tested.items() if figures.pop("wide")]:
        result["notes"].append(
            f"few rows or seeds decide on {', '.join(wide)}, so that Student's t has less than {FEW} degrees of "
            "freedom (Satterthwaite), which makes the interval wider"
        )
    for name, figures in tested.items():
        figures["better"] = _better(figures)
        figures["sentence"] = _sentence(name, figures, label(first), label(second))
    if rows is not None:
        result["rows"] = {
            name: _examples(frame, tasks[name], revisions, split, rows) for name, frame in changed.items()
        }
    return result


def label(side: Side) -> str:
    """Return the name of a side in sentences."""
    return side[0].name if len(side) == 1 else f"{side[0].name} (mean of {len(side)})"


def changed_params(first: Side, second: Side) -> dict[str, list[list[str]]]:
    """Return the params of the runs that differ between the sides, with the values of first and second side as text."""
    sides = [[leaves(revision.run_params) for revision in side] for side in (first, second)]
    names = list(dict.fromkeys(name for side in sides for settings in side for name in settings))
    names = [name for name in names if not any(other.startswith(f"{name}.") for other in names)]  # else {} on one side
    values = {name: [sorted({settings.get(name, ABSENT) for settings in side}) for side in sides] for name in names}
    return {name: pair for name, pair in values.items() if pair[0] != pair[1]}


def _shared_tasks(revisions: Side) -> tuple[dict[str, Task], list[str], list[str]]:
    """Return the tasks that all revisions have, the names of the other tasks, and notes.

    A task with different main metrics is compared by the default metric of its target.
    """
    by_revision = [revision.tasks() for revision in revisions]
    shared, missing, notes = {}, [], []
    for name in dict.fromkeys(name for tasks in by_revision for name in tasks):
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


def _task_score(task: Task, matched: Matched, run: int) -> TaskScore:
    metric, scored = task.target.metrics[0], matched.scored[run]
    return TaskScore(metric, METRICS[metric](scored), contributions(scored, metric), tuple(matched.ids))


def _test(sides: tuple[Sequence[Run], Sequence[Run]], name: str, metric: str) -> Figures:
    """Return the figures of a task's main metric or of an overall score."""
    result = paired_difference(*sides, name)
    return {
        "metric": metric,
        "first": result.first,
        "second": result.second,
        "difference": result.difference,
        "interval": [result.low, result.high],
        "by_seed": [[score_of(run, name) for run in side] for side in sides],
        "test": "paired t-test over rows" + ("" if result.rows_alone else " and seeds"),
        "wide": result.freedom < FEW,
        "p": result.p,
    }


def _other_metrics(task: Task, matched: Matched, firsts: int) -> dict[str, Figures]:
    """Return the figures of a task's other metrics."""
    figures = {}
    for metric in task.target.metrics[1:]:
        values = [METRICS[metric](run) for run in matched.scored]
        first, second = float(np.mean(values[:firsts])), float(np.mean(values[firsts:]))
        figures[metric] = {"first": first, "second": second, "difference": round(second - first, DIGITS)}
    return figures


def _better(figures: Figures) -> str | None:
    """Return the side that is significantly better; None without one."""
    p = figures["p_holm"] if "p_holm" in figures else figures["p"]
    if p >= ALPHA or not figures["difference"]:
        return None
    return "second" if figures["difference"] > 0 else "first"


def _sentence(name: str, figures: Figures, first: str, second: str) -> str:
    """Return the result as a sentence, which does not depend on the order of the sides."""
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


def _errors(runs: Sequence[Scored]) -> tuple[Array, Array]:
    """Return the error [N] of each row, and 1 minus the probability of its label [N], both as means over runs.

    For classes the error is the share of runs that are wrong; for scores both values are the absolute error.
    """
    if runs[0].probabilities is None:
        errors = np.mean([np.abs(run.predictions - run.labels) for run in runs], axis=0)
        return errors, errors
    doubts = [1 - probability_of(run.labels, run.probabilities, run.sets) for run in runs]
    return np.mean([1 - run.correct for run in runs], axis=0), np.mean(doubts, axis=0)


def _changed_rows(task: Task, matched: Matched, firsts: int) -> pd.DataFrame:
    """Return the rows that the second side predicts better (`gain` above 0) or worse, the largest change first.

    For classes, a row counts if the share of correct runs changes by more than half; with single runs, if only one side
    is correct. For scores, it counts if the error changes by more than a tenth of the task's range. Ties are ordered by
    the change of the probability of the label.
    """
    sides = matched.scored[:firsts], matched.scored[firsts:]
    (error, doubt), (new_error, new_doubt) = (_errors(side) for side in sides)
    frame = pd.DataFrame({"id": matched.ids, "label": matched.scored[0].labels})
    for name, side in zip(("first", "second"), sides):
        frame[name] = np.stack([run.predictions for run in side], axis=1).tolist()
    frame = frame.assign(gain=error - new_error, size=abs(error - new_error), moved=abs(doubt - new_doubt))
    changed = frame[frame["size"] > task.target.margin]
    return changed.sort_values(["size", "moved"], ascending=False, kind="stable").drop(columns=["size", "moved"])


def _examples(changed: pd.DataFrame, task: Task, revisions: Side, split: str, count: int) -> Figures:
    """Return the first `count` fixed and broken rows, with texts from the first revision whose data has all of them."""
    parts = {"fixed": changed[changed["gain"] > 0].head(count), "broken": changed[changed["gain"] < 0].head(count)}
    ids = pd.concat([part["id"] for part in parts.values()])
    source = "dev" if split == "selection" else split  # dev rows that the ensemble was chosen on
    for revision in revisions:
        try:
            texts = revision.rows(task.name, source)[["id", *task.text_columns]]
        except UserError:
            continue
        if ids.isin(texts["id"]).all():
            columns = ["id", *task.text_columns, "label", "first", "second"]
            named = {name: part.merge(texts, on="id")[columns] for name, part in parts.items()}
            for part in named.values() if task.target.discrete else ():
                part["label"] = part["label"].map(task.target.name_of)
                for side in ("first", "second"):
                    part[side] = [[*map(task.target.name_of, values)] for values in part[side]]
            return {name: part.to_dict("records") for name, part in named.items()}
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
    """Yield notes on how to interpret the figures."""
    rows = "dev" if split == "selection" else split  # selection is part of dev
    selected_on = {revision.title: _selected_on(revision) for revision in (*first, *second)}
    choices = (("epochs", "rows", rows), ("thresholds", "thresholds", rows), ("ensemble members", "ensemble", split))
    for what, key, on in choices:
        if titles := [title for title, how in selected_on.items() if on in how.get(key, "").split(", ")]:
            yield f"the {what} of {', '.join(titles)} were chosen on {on}, which flatters them here"
    for side in (first, second):
        settings = [leaves(revision.run_params) for revision in side]
        names = dict.fromkeys(name for params in settings for name in params if not name.endswith("seed"))
        other = [name for name in names if len({params.get(name) for params in settings}) > 1]
        if other:
            yield f"the revisions of {label(side)} differ in {', '.join(other)}, not in their seed alone"
    if min(len(first), len(second)) < 3:
        yield (
            "fewer than three runs on a side say little of other seeds, which may move a score by more than its "
            "interval; bertrio compare takes several a side, with commas"
        )


def _same_runs(revisions: Side, tasks: Iterable[Matched], firsts: int) -> Iterator[str]:
    """Yield notes on revisions of one side with equal predictions: they are the same run, not another seed."""
    for indices in (range(firsts), range(firsts, len(revisions))):
        for one, other in combinations(indices, 2):
            pairs = [(task.scored[one], task.scored[other]) for task in tasks]
            if all(
                np.array_equal(a.predictions, b.predictions) and np.array_equal(a.probabilities, b.probabilities)
                for a, b in pairs
            ):
                titles = f"{revisions[one].title} and {revisions[other].title}"
                yield f"{titles} predict all rows alike: the same run is counted twice"


def match(tables: Sequence[tuple[str, pd.DataFrame]], tasks: Mapping[str, Task], split: str) -> dict[str, Matched]:
    """Find the labelled rows of `split` in every table.

    Rows are sorted by id, so results do not depend on the order of the tables.

    Args:
        tables: names, for messages, and prediction tables; two or more.
        tasks: tasks to match, by name.
        split: dev, test or another split of the tables.

    Returns:
        Rows by task; tasks without labels in any table are left out.

    Raises:
        UserError: if no table has labelled rows of the split, or the tables differ in ids or labels. The message lists
            all tasks that differ, with the first ids of each.
    """
    matched: dict[str, Matched] = {}
    problems: list[str] = []
    labelled = [(name, table[table["label"].notna()]) for name, table in tables]
    for task, spec in tasks.items():
        (name, first), *others = [
            (name, table[(table["task"] == task) & (table["split"] == split)].sort_values("id"))
            for name, table in labelled
        ]
        if not first.empty or any(not rows.empty for _, rows in others):
            matched[task] = Matched(
                first["id"].to_list(), [Scored.from_rows(rows, spec) for rows in (first, *(rows for _, rows in others))]
            )
        for other, rows in others:
            problems += [f"\n  {task}: {problem}" for problem in _differences(first, rows, name, other)]
    if problems:
        raise UserError(
            f"split {split}: only predictions of the same rows can be compared, but{''.join(problems)}\n"
            "  Runs on the same rows have the same data.source, data.sample and data.split, and the same "
            "ensemble.combine: greedy ones set half of dev apart"
        )
    if not matched:
        name, table = labelled[0]
        splits = ", ".join(sorted(table["split"].unique()))
        raise UserError(f"split {split}: {name} has no labelled rows of it, expected one of {splits}")
    return matched


def _differences(first: pd.DataFrame, second: pd.DataFrame, name: str, other: str) -> Iterator[str]:
    """Yield a text for each kind of difference between the ids and labels of two tables."""
    both = first.merge(second, on="id", how="outer", suffixes=("", "_other"), indicator=True)
    for side, one, missing_in in (("left_only", name, other), ("right_only", other, name)):
        ids = both.loc[both["_merge"] == side, "id"]
        if len(ids):
            listed = ", ".join(ids.head(MAX_IDS)) + (", ..." if len(ids) > MAX_IDS else "")
            yield f"{len(ids):,} rows are in {one} and not in {missing_in} (ids {listed})"
    changed = both[(both["_merge"] == "both") & (both["label"] != both["label_other"])]
    if len(changed):
        row = changed.iloc[0]
        yield (
            f"{len(changed):,} rows have other labels "
            f"(the first, {row['id']}: {row['label']:g} in {name}, {row['label_other']:g} in {other})"
        )
