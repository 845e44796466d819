"""Several members' predictions into one."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd

from bertrio.core.errors import UserError
from bertrio.core.files import whole_folder, write_json
from bertrio.core.tasks import Array, Predicted, Task
from bertrio.evaluation.metrics import METRICS
from bertrio.evaluation.predictions import (
    KEYS,
    Scored,
    check_predictions,
    check_tasks,
    object_column,
    read_predictions,
    row_name,
    write_predictions,
)

SELECTION = "selection"  # the split name of the dev rows that the ensemble was chosen on
MOST_PICKS = 25
TINY = 1e-12  # probabilities below are lifted to it before their logarithm is taken

Weights = dict[str, dict[str, float]]  # weights[task][member], of sum 1 for each task


# Rules: what all members say of a task's rows into one. `said` holds values [M, N], and probabilities [M, N, C] or
# scores [M, N]; the result has no first axis. The order of the members makes no difference to a bit of it.


def vote(said: Predicted) -> Predicted:
    """The most frequent class, or the median score; the probabilities are the mean of the members'.

    Ties between classes go to the larger summed probability, and then to the lowest class.
    """
    if said.probabilities is None:
        scores = None if said.scores is None else np.median(said.scores, axis=0)
        return Predicted(np.median(said.values, axis=0), None, scores)
    votes = (said.values[:, :, None] == np.arange(said.probabilities.shape[2])).sum(axis=0)
    most = votes == votes.max(axis=1, keepdims=True)
    probabilities = mean_of_members(said.probabilities)
    values = np.where(most, _comparable(probabilities), -1.0).argmax(axis=1)
    return Predicted(values.astype(np.float64), probabilities, None)


def mean(said: Predicted) -> Predicted:
    """The class of the largest mean probability (binary: yes above 0.5), the lowest of equals; or the mean score."""
    if said.probabilities is None:
        scores = None if said.scores is None else mean_of_members(said.scores)
        return Predicted(mean_of_members(said.values), None, scores)
    return _likeliest(mean_of_members(said.probabilities))


def mean_logits(said: Predicted) -> Predicted:
    r"""The class of the largest mean logit; or the mean score.

    Logits z and log-probabilities differ by a constant in each row, which softmax takes out again, so that the mean
    of logits is the normalised geometric mean of probabilities:

    .. math:: p_c = \operatorname{softmax}_c \Big( \frac{1}{M} \sum_m z_{mc} \Big)
              = \prod_m p_{mc}^{1/M} \Big/ \sum_{c'} \prod_m p_{mc'}^{1/M}

    Hinton 2002, "Training Products of Experts by Minimizing Contrastive Divergence", eq. 1, with the M-th root taken.
    Probabilities below 1e-12 count as 1e-12, so that no member alone can rule a class out. Scores are as in `mean`.
    """
    if said.probabilities is None:
        return mean(said)
    logits = mean_of_members(np.log(np.maximum(said.probabilities, TINY)))
    odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return _likeliest(odds / odds.sum(axis=-1, keepdims=True))


COMBINE = {"vote": vote, "mean": mean, "mean_logits": mean_logits}
RULES = (*COMBINE, "greedy")


def mean_of_members(values: Array) -> Array:
    """The mean over the first axis, the same to the last bit whatever the order of members.

    Floating-point sums depend on their order, so the members are sorted first, entry by entry.
    """
    return np.sort(values, axis=0).mean(axis=0)


def _comparable(probabilities: Array) -> Array:
    """Rounded so that what is equal on paper (the means of 0.9 and 0.1, and of 0.1 and 0.9) compares equal."""
    return probabilities.round(12)


def _likeliest(probabilities: Array) -> Predicted:
    return Predicted(_comparable(probabilities).argmax(axis=1).astype(np.float64), probabilities, None)


def pick_members(said: Predicted, measure: Callable[[Predicted], float], most: int = MOST_PICKS) -> list[int]:
    """Ensemble selection: picks members one by one, each time the one whose pick makes their `mean` best.

    Caruana et al. 2004, "Ensemble Selection from Libraries of Models", section 2, with replacement (section 2.1): a
    member picked twice counts twice in the mean, which is how members come to weights. It begins with none, and the
    first pick is the best member alone. Departs from the paper: it ends at the first pick that makes nothing better,
    where the paper goes on to the end and then takes the best of the ensembles on the way.

    Args:
        said: what the members say of the rows to choose on.
        measure: what one prediction is worth on them, larger is better; looked at to 12 decimals.
        most: the number of picks at most.

    Returns:
        Positions of the members in the order in which they were picked. Of equal members the first is picked.
    """
    picked: list[int] = []
    best = -np.inf
    while len(picked) < most:
        worth = [round(measure(_blend(mean, said, [*picked, member])), 12) for member in range(len(said.values))]
        if max(worth) <= best:
            break
        best = max(worth)
        picked.append(worth.index(best))
    return picked


def in_selection(task: str, ids: Iterable[str]) -> np.ndarray:
    """Which rows of a task's dev split an ensemble is chosen on: bool [N], about half of them.

    It is a matter of task and row id alone (whether the CRC-32 of both is odd), so a row stays in its half whatever
    else changes.
    """
    return np.array([zlib.crc32(f"{task} {row_id}".encode()) % 2 == 1 for row_id in ids], dtype=bool)


def mark_selection(frame: pd.DataFrame) -> pd.DataFrame:
    """The prediction table with the dev rows that `in_selection` names in a split of their own, in the same order.

    Raises:
        UserError: if a task has no labelled rows in one of the two halves.
    """
    splits = frame["split"].to_numpy(object, copy=True)
    for task, places in frame.groupby("task").indices.items():
        dev = places[splits[places] == "dev"]
        splits[dev[in_selection(str(task), frame["id"].iloc[dev])]] = SELECTION
        labelled = frame["label"].iloc[dev].notna().to_numpy()
        counts = [int((labelled & (splits[dev] == half)).sum()) for half in (SELECTION, "dev")]
        if 0 in counts:
            raise UserError(
                f"ensemble.combine: greedy rules choose on one half of the dev rows and are measured on the other; "
                f"found {counts[0]} and {counts[1]} labelled rows of task {task}, expected at least 1 in each; "
                "use vote or mean, or more dev rows"
            )
    return frame.assign(split=splits)


def combine(
    members: Mapping[str, pd.DataFrame],
    how: str,
    tasks: Mapping[str, Task],
    answers: Mapping[str, Sequence[str]] | None = None,
) -> tuple[pd.DataFrame, Weights]:
    """Makes one prediction table of several.

    Where one member answers a task, what it says stands as it is. Of several, `how` decides. With `greedy`, the
    weights of the members are chosen for each task by its first metric on half of its dev rows (`pick_members`,
    `in_selection`), and these rows get the split name `selection`.

    Args:
        members: a prediction table for each member, over the same rows in any order. The order of the members
            makes no difference to what is said about a row, unless `greedy` finds two of them equally good.
        how: `vote`, `mean`, `mean_logits` or `greedy`.
        tasks: all tasks, by name.
        answers: the tasks that each member answers, by member; None, and members that are not named, answer all.

    Returns:
        A prediction table, rows in the order of the first member; and the weight that each member has for each of
        the tasks that it answers.

    Raises:
        UserError: if `how` or a task is unknown, a task is answered by none, members cover different rows, labels or
            classes, or there is nothing to choose on.
    """
    if how not in RULES:
        raise UserError(f"ensemble.combine: found {how!r}, expected one of {', '.join(RULES)}")
    if not members:
        raise UserError("ensemble.members: found none, expected at least one")
    answering = who_answers(members, tasks, answers or {})
    frames = _aligned(members)
    first = next(iter(frames.values()))
    check_tasks(first, tasks)
    parts, weights = [], {}
    for name, places in first.groupby("task", sort=False).indices.items():
        own = {member: frames[member].iloc[places] for member in answering[name]}
        part, shares = _combine_task(own, how, tasks[name])
        parts.append(part.set_index(places))
        weights[name] = dict(zip(own, shares))
    table = pd.concat(parts).sort_index().set_index(first.index)
    return table, {name: weights[name] for name in tasks if name in weights}


def combine_members(
    names: Sequence[str],
    how: str,
    tasks: Mapping[str, Task],
    answers: Mapping[str, Sequence[str]],
    predictions: str | Path,
    path: str | Path,
    folder: str | Path,
) -> None:
    """Writes what `combine` makes of `predictions`/<name>/predictions.parquet of each member to `path`.

    `folder` gets ensemble.json, see `record_ensemble`, and holds nothing else then.
    """
    members = {name: read_predictions(Path(predictions) / name / "predictions.parquet") for name in names}
    table, weights = combine(members, how, tasks, answers)
    with whole_folder(folder) as new:
        record_ensemble(new, how, names, weights)
    write_predictions(table, path)


def record_ensemble(folder: str | Path, how: str, members: Sequence[str], weights: Weights) -> None:
    """Writes `folder`/ensemble.json: how the ensemble was made, of which members, and what each weighs in each task."""
    write_json(Path(folder) / "ensemble.json", {"combine": how, "members": list(members), "weights": weights})


def combine_answers(said: Sequence[Predicted], how: str, weights: Sequence[float]) -> Predicted:
    """What several members say of any rows into one, as `combine` did it for the rows of the run.

    Args:
        said: what each member says of the same rows.
        how: as for `combine`.
        weights: what each of them weighs, as `record_ensemble` wrote it; only `greedy` looks at them.

    Raises:
        ValueError: if `how` is unknown, or no `greedy` picks come to these weights.
    """
    if how not in RULES:
        raise ValueError(f"combine: found {how!r}, expected one of {', '.join(RULES)}")
    picked = picks_of(weights) if how == "greedy" else list(range(len(said)))
    probabilities, scores = (None if parts[0] is None else np.stack(parts) for parts in list(zip(*said))[1:])
    stacked = Predicted(np.stack([one.values for one in said]), probabilities, scores)
    return _blend(COMBINE.get(how, mean), stacked, picked)


def picks_of(weights: Sequence[float]) -> list[int]:
    """Picks of members, in their order, that give them these weights, which files hold with six decimals.

    Raises:
        ValueError: if there are none.
    """
    shares = [Fraction(weight).limit_denominator(MOST_PICKS) for weight in weights]
    exact = all(abs(share - weight) < 2e-6 for share, weight in zip(shares, weights))
    if sum(shares) != 1 or min(shares) < 0 or not exact:
        raise ValueError(f"weights: found {list(weights)}, expected shares of at most {MOST_PICKS} picks, of sum 1")
    whole = math.lcm(*[share.denominator for share in shares])
    return [member for member, share in enumerate(shares) for _ in range(int(share * whole))]


def who_answers(
    members: Iterable[str], tasks: Iterable[str], answers: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    """The members that answer each task; those that `answers` does not name answer all.

    Raises:
        UserError: if no member answers a task.
    """
    members, tasks = list(members), list(tasks)
    answering = {task: [name for name in members if task in answers.get(name, tasks)] for task in tasks}
    missing = [task for task, own in answering.items() if not own]
    if missing:
        raise UserError(
            f"ensemble.members: none of {', '.join(members)} answers task {', '.join(missing)}; "
            "add it to the answers of one, or add a member that does"
        )
    return answering


def _combine_task(frames: Mapping[str, pd.DataFrame], how: str, task: Task) -> tuple[pd.DataFrame, list[float]]:
    """The table of one task, and the weights of the members that answer it."""
    first, said = next(iter(frames.values())), _said(frames, task)
    picked = list(range(len(frames)))
    if how == "greedy" and len(frames) > 1:  # with one member there is nothing to choose
        first = mark_selection(first)
        rows = np.flatnonzero((first["split"] == SELECTION) & first["label"].notna())
        labels, metric = first["label"].to_numpy(np.float64)[rows], METRICS[task.target.metrics[0]]
        chosen_on = _each(said, lambda part: part[:, rows])
        picked = pick_members(chosen_on, lambda result: metric(Scored(labels, result.values, result.probabilities)))
    result = _blend(COMBINE.get(how, mean), said, picked)
    nothing = [None] * len(first)
    part = first.assign(
        prediction=result.values,
        probabilities=object_column(nothing if result.probabilities is None else result.probabilities),
        score=np.nan if result.scores is None else result.scores,
    )
    return part, [picked.count(member) / len(picked) for member in range(len(frames))]


def _blend(rule: Callable[[Predicted], Predicted], said: Predicted, picked: Sequence[int]) -> Predicted:
    """What the picked members say together; one alone is left as it is, down to its rounding errors."""
    if len(picked) == 1:
        return _each(said, lambda part: part[picked[0]])
    return rule(_each(said, lambda part: part[picked]))


def _each(said: Predicted, change: Callable[[Array], Array]) -> Predicted:
    """Apply `change` to the values, and to the probabilities or scores."""
    probabilities, scores = (None if part is None else change(part) for part in said[1:])
    return Predicted(change(said.values), probabilities, scores)


def _said(frames: Mapping[str, pd.DataFrame], task: Task) -> Predicted:
    """What all members say of one task's rows, the members along the first axis."""
    values = _column(frames, "prediction")
    if task.target.discrete:
        return Predicted(values, _probabilities(frames, task.name), None)
    return Predicted(values, None, _column(frames, "score"))


def _column(frames: Mapping[str, pd.DataFrame], column: str) -> Array:
    """[M, N] values of one column."""
    return np.stack([frame[column].to_numpy(np.float64) for frame in frames.values()])


def _probabilities(frames: Mapping[str, pd.DataFrame], task: str) -> Array:
    """[M, N, C] probabilities."""
    rows = {member: frame["probabilities"].to_list() for member, frame in frames.items()}
    widths = {member: {0 if row is None else len(row) for row in own} for member, own in rows.items()}
    if len(set.union(*widths.values())) > 1 or {0} in widths.values():
        found = "; ".join(f"{member}: {', '.join(map(str, sorted(own)))}" for member, own in widths.items())
        raise UserError(
            f"task {task}: the ensemble's members have different numbers of probabilities a row ({found}), "
            "expected one a class; run the finetune stages again with the same tasks"
        )
    return np.stack([np.stack(own) for own in rows.values()])


def _aligned(members: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The members' tables, each with its rows in the order of the first member's."""
    (first_name, first), *others = members.items()
    check_predictions(first, f"ensemble member {first_name}")
    aligned = {first_name: first}
    for name, frame in others:
        check_predictions(frame, f"ensemble member {name}")
        aligned[name] = frame if _same_order(first, frame) else _reordered(first_name, first, name, frame)
        _check_labels(first_name, first, name, aligned[name])
    return aligned


def _same_order(one: pd.DataFrame, other: pd.DataFrame) -> bool:
    return all(np.array_equal(one[key].to_numpy(object), other[key].to_numpy(object)) for key in KEYS)


def _reordered(first_name: str, first: pd.DataFrame, name: str, frame: pd.DataFrame) -> pd.DataFrame:
    wanted, found = pd.MultiIndex.from_frame(first[KEYS]), pd.MultiIndex.from_frame(frame[KEYS])
    missing, extra = first[~wanted.isin(found)], frame[~found.isin(wanted)]
    differences = [
        f"{len(rows)} only in {owner} (first: {row_name(rows.iloc[0])})"
        for owner, rows in ((first_name, missing), (name, extra))
        if len(rows)
    ]
    if differences:
        raise UserError(
            f"ensemble members {first_name} and {name} predict different rows: {'; '.join(differences)}; "
            "expected the same data for all members: run the finetune stages again"
        )
    return frame.iloc[found.get_indexer(wanted)]


def _check_labels(first_name: str, first: pd.DataFrame, name: str, frame: pd.DataFrame) -> None:
    one, other = first["label"].to_numpy(np.float64), frame["label"].to_numpy(np.float64)
    differ = np.flatnonzero((one != other) & ~(np.isnan(one) & np.isnan(other)))
    if len(differ):
        place = differ[0]
        raise UserError(
            f"ensemble members {first_name} and {name} have different labels for {row_name(first.iloc[place])}: "
            f"{one[place]} and {other[place]}; expected the same data for all members: run the finetune stages again"
        )
