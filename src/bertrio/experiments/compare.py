"""Whether one side of a comparison is better than the other: differences, intervals, tests, and the rows behind them.

A side is one revision, or several that differ in nothing but their seed. Every figure is for the second side minus the
first, and naming them the other way round turns its sign and changes nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bertrio.core.errors import UserError
from bertrio.core.tasks import Array, Target, Task
from bertrio.evaluation.intervals import bootstrap, contributions, generator_for, interval
from bertrio.evaluation.metrics import METRICS, ON_COUNTS, OVERALL
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
    widest,
)
from bertrio.experiments.matching import Matched, match
from bertrio.experiments.recipes.params import ABSENT, leaves
from bertrio.experiments.revision import Revision

OTHERS = 1_000  # resamples for metrics that are shown and not tested
Side = Sequence[Revision]
Figures = dict[str, Any]


def open_side(names: str, root: str | Path = ".") -> list[Revision]:
    """The revisions of one side: `names` with commas between them.

    Raises:
        UserError: if a name is empty or unknown, or two of them are the same revision.
    """
    revisions = [Revision.open(name.strip(), root) for name in names.split(",") if name.strip()]
    if not revisions:
        raise UserError(f"found {names!r}, expected a revision such as workspace or HEAD, or several with commas")
    commits = [revision.short for revision in revisions]
    for revision in revisions:
        if commits.count(revision.short) > 1:
            raise UserError(f"{names}: {revision.title} is named twice; each seed counts once")
    return revisions


def compare(first: Side, second: Side, split: str = "dev", rows: int | None = None) -> Figures:
    """Compares two sides on the same rows.

    For each task, the difference of the first metric has a 95 % interval and a p-value by
    `significance.paired_difference`: over other rows, and over other seeds where both sides have two or more runs.
    Holm's correction allows for the number of tasks. The overall scores are one question each, and are not corrected.
    Other metrics have the interval of the paired bootstrap over rows, and no test.

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
    tasks, notes = _shared_tasks(first, second)
    matched = match(_tables(first, second), list(tasks), split)
    tests = {name: _Test(matched[name], len(first), tasks[name]) for name in matched}
    runs = [
        {name: _task_score(test, place) for name, test in tests.items()} for place in range(len(first) + len(second))
    ]
    sides = runs[: len(first)], runs[len(first) :]
    result: Figures = {
        "split": split,
        "first": _describe(first),
        "second": _describe(second),
        "params": _changed_params(first, second),
        "tasks": {name: _compare_task(test, sides, split) for name, test in tests.items()},
    }
    _correct(result["tasks"])
    unmeasured = [name for name in tasks if name not in matched]
    if not unmeasured and not notes:
        result["overall"] = {name: _figures(sides, name, name) for name in OVERALL}
        for figures in result["overall"].values():
            figures["better"] = _better(figures, figures["p"])
    notes += [f"task {name} has no labels in split {split}, and overall scores need all tasks" for name in unmeasured]
    notes += _other_metrics([*first, *second], tasks)
    result["notes"] = [*notes, *_notes(first, second, split), *_same_runs(first, second, tests)]
    for name, figures in (*result["tasks"].items(), *result.get("overall", {}).items()):
        figures["sentence"] = _sentence(name, figures, label(first), label(second))
    if rows is not None:
        result["rows"] = {name: _changed_rows(test, [*first, *second], split, rows) for name, test in tests.items()}
    return result


def label(side: Side) -> str:
    """What sentences call a side."""
    return side[0].name if len(side) == 1 else f"{side[0].name} and {len(side) - 1} more"


class _Test:
    """The same rows of one task on both sides."""

    def __init__(self, matched: Matched, firsts: int, task: Task) -> None:
        self.ids, self.scored = matched
        self.sides = self.scored[:firsts], self.scored[firsts:]
        self.task = task


def _task_score(test: _Test, run: int) -> TaskScore:
    metric, scored = test.task.target.metrics[0], test.scored[run]
    return TaskScore(metric, METRICS[metric](scored), contributions(scored, metric))


def _compare_task(test: _Test, sides: tuple[Sequence[Run], Sequence[Run]], split: str) -> Figures:
    first, *others = test.task.target.metrics
    fixed, broken = (len(rows) for rows in _fixed_and_broken(test))
    return {
        "rows": len(test.ids),
        **_figures(sides, test.task.name, first),
        "alike": all(_alike(test.scored[0], other, first) for other in test.scored[1:]),
        "fixed": fixed,
        "broken": broken,
        "others": {name: _untested(test, name, split) for name in others},
    }


def _figures(sides: tuple[Sequence[Run], Sequence[Run]], name: str, metric: str) -> Figures:
    """The tested figures of a task or of an overall score."""
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


def _untested(test: _Test, metric: str, split: str) -> Figures:
    """A metric with the percentile interval over rows; for `ece` the basic one, whose resamples are biased."""
    first, second = (float(np.mean([METRICS[metric](run) for run in side])) for side in test.sides)
    samples = bootstrap(test.scored, metric, generator_for(split, test.task.name), OTHERS)
    cut = len(test.sides[0])
    low, high = interval(samples[cut:].mean(axis=0) - samples[:cut].mean(axis=0))
    if metric == "ece":
        low, high = 2 * (second - first) - high, 2 * (second - first) - low
    most = widest(metric)
    return {
        "metric": metric,
        "first": first,
        "second": second,
        "difference": round(second - first, DIGITS),
        "interval": [max(low, -most), min(high, most)],
    }


def _correct(tasks: dict[str, Figures]) -> None:
    """Adds Holm's correction over the tasks, and the verdicts that follow from it."""
    for figures, corrected in zip(tasks.values(), holm([figures["p"] for figures in tasks.values()])):
        figures |= {"p_holm": corrected, "better": _better(figures, corrected)}


def _better(figures: Figures, p: float) -> str | None:
    """Which side is better, or None where luck may be all there is."""
    if p >= ALPHA or not figures["difference"]:
        return None
    return "second" if figures["difference"] > 0 else "first"


def _sentence(name: str, figures: Figures, first: str, second: str) -> str:
    """The verdict in words, the same whichever side comes first."""
    if figures.get("alike"):
        return f"{name}: both predict all {figures['rows']:,} rows alike."
    metric = "" if figures["metric"] == name else f" {figures['metric']}"
    ends = sorted(figures["interval"])
    tests = f"{figures['test']}, p {p_text(figures['p'])}"
    tests += f", {p_text(figures['p_holm'])} after Holm" if "p_holm" in figures else ""
    if not figures["difference"]:
        return f"{name}: both have{metric} {figures['first']:.4f} (+-{max(map(abs, ends)):.4f} at 95 %; {tests})."
    ahead, behind, sign = (second, first, 1) if figures["difference"] > 0 else (first, second, -1)
    low, high = sorted(sign * end for end in ends)
    size = f"{abs(figures['difference']):.4f}{metric} (95 % interval {low:.4f} to {high:.4f})"
    verb = "are" if len(figures["by_seed"][sign > 0]) > 1 else "is"  # several revisions are ahead
    if figures["better"]:
        luck = "luck explains" if min(map(len, figures["by_seed"])) > 1 else "these rows explain"
        return f"{name}: {ahead} {verb} better than {behind} by {size}, more than {luck} ({tests})."
    return (
        f"{name}: neither is shown to be better; {ahead} {verb} ahead by {size}, which luck alone may give ({tests})."
    )


def _errors(runs: Sequence[Scored], target: Target) -> Array:
    """How wrong a side is about each row [N], the mean over its runs: wrong or right, or the error of a score."""
    wrong = [run.predictions != run.labels if target.discrete else np.abs(run.predictions - run.labels) for run in runs]
    return np.mean(wrong, axis=0)


def _fixed_and_broken(test: _Test) -> tuple[NDArray[Any], NDArray[Any]]:
    """Rows that the second side decides better, and worse, by place; those that changed most come first.

    A class is decided better where more than half of the runs more are right, for single runs where only the second is
    right. A score is where the error falls by more than a tenth of the task's range. Among equals those come first
    whose probability of the label moved most.
    """
    target = test.task.target
    margin = target.margin
    first, second = (_errors(side, target) for side in test.sides)
    gain = first - second
    swing = np.zeros(len(gain))
    if test.scored[0].probabilities is not None:
        right = [np.mean([_of_label(run) for run in side], axis=0) for side in test.sides]
        swing = right[1] - right[0]
    order = np.lexsort((-np.abs(swing), -np.abs(gain)))
    return order[gain[order] > margin], order[gain[order] < -margin]


def _of_label(run: Scored) -> Array:
    assert run.probabilities is not None
    return run.probabilities[np.arange(len(run.labels)), run.labels.astype(int)]


def _changed_rows(test: _Test, revisions: Side, split: str, count: int) -> Figures:
    """The rows behind a difference, with their texts."""
    task = test.task
    source = "dev" if split == "selection" else split  # rows of dev that an ensemble was chosen on
    places = {name: found[:count] for name, found in zip(("fixed", "broken"), _fixed_and_broken(test))}
    ids = [test.ids[place] for found in places.values() for place in found]
    texts = _texts(revisions, task.name, source, ids)
    return {
        name: [
            {
                "id": test.ids[place],
                **{column: texts.loc[test.ids[place], column] for column in task.text_columns},
                "label": float(test.scored[0].labels[place]),
                "first": [float(run.predictions[place]) for run in test.sides[0]],
                "second": [float(run.predictions[place]) for run in test.sides[1]],
            }
            for place in chosen
        ]
        for name, chosen in places.items()
    }


def _texts(revisions: Side, task: str, split: str, ids: Sequence[str]) -> pd.DataFrame:
    """The rows of `split` by id, from the first revision that has all `ids`: data may be newer than predictions."""
    if not ids:
        return pd.DataFrame()
    problems = []
    for revision in revisions:
        try:
            rows = revision.rows(task, split).set_index("id")
        except UserError as error:
            problems.append(str(error))
            continue
        absent = [row_id for row_id in ids if row_id not in rows.index]
        if not absent:
            return rows
        problems.append(
            f"{revision.title}: data/splits/{task}/{split}.parquet lacks {len(absent):,} rows that its predictions "
            f"have (ids {', '.join(map(str, absent[:3]))}), so it is of another run; run dvc repro"
        )
    told = "".join(f"\n  {problem}" for problem in dict.fromkeys(problems))
    raise UserError(f"task {task}: no revision has the texts of the rows to list (without --rows none are):{told}")


def _tables(first: Side, second: Side) -> dict[str, Any]:
    """All prediction tables by the names that messages use; a revision may stand on both sides."""
    tables: dict[str, Any] = {}
    for revision in (*first, *second):
        name = revision.title
        while name in tables:
            name += " again"
        tables[name] = revision.predictions()
    return tables


def _shared_tasks(first: Side, second: Side) -> tuple[dict[str, Task], list[str]]:
    """The tasks that all revisions have, and notes about the others."""
    revisions = [*first, *second]
    by_revision = [revision.tasks() for revision in revisions]
    every = sorted({name for tasks in by_revision for name in tasks})  # the same whichever side comes first
    shared, notes = {}, []
    for name in every:
        having = [tasks[name].target for tasks in by_revision if name in tasks]
        if len(having) < len(revisions):
            without = [revision.title for revision, tasks in zip(revisions, by_revision) if name not in tasks]
            has = "has" if len(without) == 1 else "have"
            notes.append(f"{', '.join(without)} {has} no task {name}: it is left out, and so are the overall scores")
        elif any(target != having[0] for target in having):
            kinds = [f"{target} in {revision.title}" for revision, target in zip(revisions, having)]
            raise UserError(f"task {name}: {'; '.join(kinds)}; only predictions of the same target can be compared")
        else:
            shared[name] = _measured_alike(by_revision[0][name], having)
    if not shared:
        raise UserError(f"{', '.join(revision.title for revision in revisions)} have no task in common")
    return shared, notes


def _measured_alike(task: Task, targets: Sequence[Target]) -> Task:
    """The task with the metric that all of `targets` lead with, or else, whichever side comes first, its usual one."""
    if len({target.metrics[0] for target in targets}) == 1:
        return task
    target: Any = task.target  # each kind of target is a dataclass
    return replace(task, target=replace(target, metric=None))


def _other_metrics(revisions: Sequence[Revision], tasks: Mapping[str, Task]) -> list[str]:
    """Notes about tasks that not all revisions measure by the same metric."""
    notes = []
    for name, task in tasks.items():
        used = list(dict.fromkeys(revision.tasks()[name].target.metrics[0] for revision in revisions))
        if len(used) > 1:
            notes.append(f"{name} is measured by {' and by '.join(used)}: compared by {task.target.metrics[0]}")
    return notes


def _describe(side: Side) -> Figures:
    return {
        "name": label(side),
        "revisions": [{"name": revision.name, "commit": revision.commit} for revision in side],
        "selected_on": [_selected_on(revision) for revision in side],
    }


def _selected_on(revision: Revision) -> dict[str, str] | None:
    path = "metrics/evaluation.json"
    return revision.json(path).get("selected_on") if revision.exists(path) else None


def _changed_params(first: Side, second: Side) -> dict[str, list[list[str]]]:
    """Params that differ between the sides: for each the values of the first and of the second, as texts."""
    sides = [[leaves(revision.settings()) for revision in side] for side in (first, second)]
    names = dict.fromkeys(name for side in sides for settings in side for name in settings)
    values = {name: [sorted({own.get(name, ABSENT) for own in side}) for side in sides] for name in names}
    return {name: pair for name, pair in values.items() if pair[0] != pair[1]}


def _notes(first: Side, second: Side, split: str) -> list[str]:
    """What a reader has to know to read the figures rightly."""
    notes = []
    chosen = {revision.title: _selected_on(revision) or {} for revision in (*first, *second)}
    rows = "dev" if split == "selection" else split  # which is a part of dev
    seen = [title for title, of in chosen.items() if rows in of.get("rows", "").split(", ")]
    if seen:
        notes.append(
            f"the epochs of {', '.join(seen)} were chosen on {rows}, which flatters them here; "
            "finetune.select_on: holdout leaves dev unseen"
        )
    seen = [title for title, of in chosen.items() if split == "selection" == of.get("ensemble")]
    if seen:
        notes.append(
            f"the ensembles of {', '.join(seen)} were chosen on these rows, which flatters them here; "
            "--split dev has the other half"
        )
    for side in (first, second):
        settings = [leaves(revision.settings()) for revision in side]
        names = dict.fromkeys(name for own in settings for name in own if not name.endswith("seed"))
        other = [name for name in names if len({own.get(name) for own in settings}) > 1]
        if other:
            notes.append(f"the revisions of {label(side)} differ in {', '.join(other)}, not in their seed alone")
    if min(len(first), len(second)) < 2:
        notes.append(
            "one run on a side says nothing of other seeds, which may move a score by more than its interval; "
            "bertrio compare takes several a side, with commas"
        )
    elif min(len(first), len(second)) == 2:
        notes.append(
            "two seeds on a side leave one degree of freedom for what seeds change, so that only large differences "
            "show; three or more are better"
        )
    return notes


def _same_runs(first: Side, second: Side, tests: Mapping[str, _Test]) -> Iterator[str]:
    """Notes about revisions of one side that predict all rows alike: no other seed, but the same run."""
    for place, side in enumerate((first, second)):
        runs = list(zip(side, *[test.sides[place] for test in tests.values()]))
        for (one, *scored), (other, *others) in combinations(runs, 2):
            if all(_alike(*pair) for pair in zip(scored, others)):
                yield f"{one.title} and {other.title} predict all rows alike: the same run is counted twice"


def _alike(one: Scored, other: Scored, metric: str | None = None) -> bool:
    """Whether the predictions are the same, and the probabilities too, unless `metric` counts predictions alone."""
    same = np.array_equal(one.predictions, other.predictions)
    if metric in ON_COUNTS or one.probabilities is None:
        return same
    return same and other.probabilities is not None and np.array_equal(one.probabilities, other.probabilities)
