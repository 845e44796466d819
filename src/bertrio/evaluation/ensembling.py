"""Several members' predictions into one."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bertrio.core.errors import UserError
from bertrio.core.files import whole_folder, write_json
from bertrio.core.tasks import Array, Predicted, Task
from bertrio.evaluation.metrics import METRICS
from bertrio.evaluation.predictions import (
    KEYS,
    Scored,
    check_tasks,
    predicted_columns,
    predicted_of,
    read_predictions,
    row_name,
    write_predictions,
)

SELECTION = "selection"  # the split name of the dev rows that the ensemble was chosen on
MOST_PICKS = 25
TINY = 1e-12  # probabilities below are lifted to it before their logarithm is taken

Weights = dict[str, dict[str, float]]  # weights[task][member], of sum 1 for each task


# Rules: predictions of several members for a task's rows, and the members' weights [M] of sum 1, into one prediction.
# `members` holds values [M, N], and probabilities [M, N, C] or scores [M, N]; the result has no first axis. The order
# of the members makes no difference to a bit of it.


def vote(members: Predicted, weights: Array) -> Predicted:
    """The most frequent class, or the median score; the probabilities are the mean of the members'.

    Ties between classes go to the larger mean probability, and then to the lowest class.
    """
    if members.probabilities is None:
        return members.map(lambda part: np.median(part, axis=0))
    votes = (members.values[:, :, None] == np.arange(members.probabilities.shape[2])).sum(axis=0)
    most = votes == votes.max(axis=1, keepdims=True)
    probabilities = weighted_mean(members.probabilities, weights)
    values = np.where(most, _comparable(probabilities), -1.0).argmax(axis=1)
    return Predicted(values.astype(np.float64), probabilities, None)


def mean(members: Predicted, weights: Array) -> Predicted:
    """The class of the largest mean probability (binary: yes above 0.5), the lowest of equals; or the mean score."""
    if members.probabilities is None:
        return members.map(lambda part: weighted_mean(part, weights))
    return _likeliest(weighted_mean(members.probabilities, weights))


def mean_logits(members: Predicted, weights: Array) -> Predicted:
    r"""The class of the largest mean logit; or the mean score.

    Logits z and log-probabilities differ by a constant in each row, which softmax takes out again, so that the mean
    of logits is the normalised geometric mean of probabilities:

    .. math:: p_c = \operatorname{softmax}_c \Big( \frac{1}{M} \sum_m z_{mc} \Big)
              = \prod_m p_{mc}^{1/M} \Big/ \sum_{c'} \prod_m p_{mc'}^{1/M}

    Hinton 2002, "Training Products of Experts by Minimizing Contrastive Divergence", eq. 1, with the M-th root taken.
    Probabilities below 1e-12 count as 1e-12, so that no member alone can rule a class out. Scores are as in `mean`.
    """
    if members.probabilities is None:
        return mean(members, weights)
    logits = weighted_mean(np.log(np.maximum(members.probabilities, TINY)), weights)
    odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return _likeliest(odds / odds.sum(axis=-1, keepdims=True))


COMBINE = {"vote": vote, "mean": mean, "mean_logits": mean_logits, "greedy": mean}  # `greedy` has weights of its own
RULES = tuple(COMBINE)


def weighted_mean(values: Array, weights: Array) -> Array:
    """Mean over the first axis, with weights [M] of sum 1, the same to the last bit whatever the order of members.

    Floating-point sums depend on their order, so the summands are sorted first, entry by entry.
    """
    return np.sort(values * weights.reshape(-1, *[1] * (values.ndim - 1)), axis=0).sum(axis=0)


def _comparable(probabilities: Array) -> Array:
    """Rounded so that what is equal on paper (the means of 0.9 and 0.1, and of 0.1 and 0.9) compares equal."""
    return probabilities.round(12)


def _likeliest(probabilities: Array) -> Predicted:
    return Predicted(_comparable(probabilities).argmax(axis=1).astype(np.float64), probabilities, None)


def combine_answers(members: Sequence[Predicted], how: str, weights: Sequence[float] | Array) -> Predicted:
    """Combine several members' predictions for the same rows; one that has all the weight is left as it is.

    Args:
        members: predictions of each member.
        how: as for `combine`.
        weights: of each member, in any unit.
    """
    shares = np.asarray(weights, dtype=np.float64) / np.sum(weights)
    counted = [member for member, share in zip(members, shares) if share > 0]
    if len(counted) == 1:
        return counted[0]
    stacked: list[Any] = [None if parts[0] is None else np.stack(parts) for parts in zip(*counted)]
    return COMBINE[how](Predicted(*stacked), shares[shares > 0])


def pick_members(
    members: Sequence[Predicted], measure: Callable[[Predicted], float], most: int = MOST_PICKS
) -> list[float]:
    """Ensemble selection: picks members one by one, each time the one whose pick makes their `mean` best.

    Caruana et al. 2004, "Ensemble Selection from Libraries of Models", section 2, with replacement (section 2.1): a
    member picked twice counts twice in the mean, which is how members come to weights. It begins with none, and the
    first pick is the best member alone. Departs from the paper: it ends at the first pick that makes nothing better,
    where the paper goes on to the end and then takes the best of the ensembles on the way.

    Args:
        members: predictions of each member for the rows to choose on.
        measure: score of one prediction of them, larger is better; compared to 12 decimals.
        most: the number of picks at most.

    Returns:
        Each member's share of the picks. Of equal members the first is picked.
    """
    picks, best = np.zeros(len(members)), -np.inf
    while picks.sum() < most:
        scores = [round(measure(combine_answers(members, "greedy", picks + one)), 12) for one in np.eye(len(members))]
        if max(scores) <= best:
            break
        best = max(scores)
        picks[scores.index(best)] += 1
    return (picks / picks.sum()).tolist()


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
    """Combine several prediction tables into one.

    Where one member answers a task, its predictions stand as they are. Of several, `how` decides. With `greedy`, the
    weights of the members are chosen for each task by its first metric on half of its dev rows (`pick_members`,
    `in_selection`), and these rows get the split name `selection`.

    Args:
        members: a prediction table for each member, over the same rows in any order. The order of the members
            makes no difference to a prediction, unless `greedy` finds two of them equally good.
        how: `vote`, `mean`, `mean_logits` or `greedy`.
        tasks: all tasks, by name.
        answers: the tasks that each member answers, by member; None, and members that are not named, answer all.

    Returns:
        A prediction table, rows in the order of the first member; and the weight that each member has for each of
        the tasks that it answers.

    Raises:
        UserError: if a task is unknown or answered by none, members cover different rows or labels, or there is
            nothing to choose on.
    """
    frames = _aligned(members)
    first = next(iter(frames.values()))
    check_tasks(first, tasks)
    parts, weights = [], {}
    for task, places in first.groupby("task", sort=False).indices.items():
        rows, names = first.iloc[places], [name for name in members if task in (answers or {}).get(name, tasks)]
        if not names:
            raise UserError(f"ensemble.members: no member answers task {task}; add it to the answers of one")
        predictions = [predicted_of(frames[name].iloc[places]) for name in names]
        shares = [1 / len(names)] * len(names)
        if how == "greedy" and len(names) > 1:  # with one member there is nothing to choose
            rows = mark_selection(rows)
            shares = _greedy_weights(rows, predictions, tasks[task].target.metrics[0])
        combined = combine_answers(predictions, how, shares)
        parts.append(rows.assign(**predicted_columns(combined)).set_index(places))
        weights[task] = dict(zip(names, shares))
    table = pd.concat(parts).sort_index().set_index(first.index)
    return table, {name: weights[name] for name in tasks if name in weights}


def _greedy_weights(rows: pd.DataFrame, predictions: Sequence[Predicted], metric: str) -> list[float]:
    """Weights that `pick_members` finds by a metric on the labelled rows of the selection half."""
    chosen = np.flatnonzero((rows["split"] == SELECTION) & rows["label"].notna())
    labels = rows["label"].to_numpy(np.float64)[chosen]

    def measure(predicted: Predicted) -> float:
        return METRICS[metric](Scored(labels, predicted.values, predicted.probabilities))

    return pick_members([predicted.take(chosen) for predicted in predictions], measure)


def combine_members(
    names: Sequence[str],
    how: str,
    tasks: Mapping[str, Task],
    answers: Mapping[str, Sequence[str]],
    predictions: str | Path,
    path: str | Path,
    folder: str | Path,
) -> None:
    """Write what `combine` makes of `predictions`/<name>/predictions.parquet of each member to `path`.

    `folder` gets ensemble.json, see `record_ensemble`, and holds nothing else then.
    """
    members = {name: read_predictions(Path(predictions) / name / "predictions.parquet") for name in names}
    table, weights = combine(members, how, tasks, answers)
    with whole_folder(folder) as new:
        record_ensemble(new, how, names, weights)
    write_predictions(table, path)


def record_ensemble(folder: str | Path, how: str, members: Sequence[str], weights: Weights) -> None:
    """Write `folder`/ensemble.json: how the ensemble was made, of which members, and their weights in each task."""
    ensemble = {"combine": how, "members": list(members), "weights": weights}
    write_json(Path(folder) / "ensemble.json", ensemble, digits=None)


def _aligned(members: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Return the members' tables, each with its rows in the order of the first member's.

    Raises:
        UserError: if a row is missing in one of them, or has another label.
    """
    (first_name, first), *others = members.items()
    columns = [*KEYS, "label"]
    rows, aligned = pd.MultiIndex.from_frame(first[columns]), {first_name: first}
    for name, frame in others:
        found = pd.MultiIndex.from_frame(frame[columns])
        unlike = rows.symmetric_difference(found)
        if len(unlike):
            row = dict(zip(columns, unlike[0]))
            raise UserError(
                f"ensemble members {first_name} and {name} have {len(unlike)} different rows or labels (first: "
                f"{row_name(row)}, label {row['label']}); expected the same data for all: run the finetune stages again"
            )
        aligned[name] = frame.iloc[found.get_indexer(rows)]
    return aligned
