"""Ensembles: several members' predictions combined into one."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bertrio.core.errors import UserError
from bertrio.core.files import write_json
from bertrio.core.tasks import Array, Predicted, Task, indicators, set_numbers
from bertrio.evaluation.metrics import METRICS
from bertrio.evaluation.predictions import KEYS, Scored, predicted_columns, predicted_of

SELECTION = "selection"  # the split name of the dev rows that the ensemble was chosen on
MAX_PICKS = 25
TINY = 1e-12  # lower bound of probabilities before their logarithm is taken

Weights = dict[str, dict[str, float]]  # weights[task][member], of sum 1 for each task


# Rules: combine several members' predictions for a task's rows with weights [M] of sum 1. `members` holds values
# [M, N], and probabilities [M, N, C] or scores [M, N]; the result has no first axis. Its bits do not depend on the
# order of the members.


def vote(members: Predicted, weights: Array) -> Predicted:
    """The most frequent class, or the median score; the probabilities are the mean of the members'.

    Ties between classes go to the larger mean probability, and then to the lowest class.
    """
    if members.probabilities is None:
        return members.map(lambda part: np.median(part, axis=0))
    votes = (members.values[:, :, None] == np.arange(members.probabilities.shape[2])).sum(axis=0)
    most_frequent = votes == votes.max(axis=1, keepdims=True)
    probabilities = weighted_mean(members.probabilities, weights)
    values = np.where(most_frequent, _comparable(probabilities), -1.0).argmax(axis=1)
    return Predicted(values.astype(np.float64), probabilities, None)


def mean(members: Predicted, weights: Array) -> Predicted:
    """The class of the largest mean probability (binary: yes above 0.5), the lowest of equals; or the mean score."""
    if members.probabilities is None:
        return members.map(lambda part: weighted_mean(part, weights))
    return _likeliest(weighted_mean(members.probabilities, weights))


def mean_logits(members: Predicted, weights: Array) -> Predicted:
    r"""The class of the largest mean logit; or the mean score.

    Logits z and log-probabilities differ by a constant in each row, which softmax cancels, so the mean of logits is the
    normalised geometric mean of probabilities:

    .. math:: p_c = \operatorname{softmax}_c \Big( \frac{1}{M} \sum_m z_{mc} \Big)
              = \prod_m p_{mc}^{1/M} \Big/ \sum_{c'} \prod_m p_{mc'}^{1/M}

    Hinton 2002, "Training Products of Experts by Minimizing Contrastive Divergence", eq. 1, with the M-th root taken.
    Probabilities below 1e-12 count as 1e-12, so no single member can rule a class out. Scores are as in `mean`.
    """
    if members.probabilities is None:
        return mean(members, weights)
    logits = weighted_mean(np.log(np.maximum(members.probabilities, TINY)), weights)
    odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return _likeliest(odds / odds.sum(axis=-1, keepdims=True))


COMBINE = {"vote": vote, "mean": mean, "mean_logits": mean_logits, "greedy": mean}  # `greedy` chooses the weights
RULES = tuple(COMBINE)


def weighted_mean(values: Array, weights: Array) -> Array:
    """Mean over the first axis, with weights [M] of sum 1, the same to the last bit whatever the order of members.

    Floating-point sums depend on their order, so the summands are sorted first, entry by entry.
    """
    return np.sort(values * weights.reshape(-1, *[1] * (values.ndim - 1)), axis=0).sum(axis=0)


def _comparable(probabilities: Array) -> Array:
    """Round values, so that those equal in exact arithmetic (the means of 0.9, 0.1 and of 0.1, 0.9) compare equal."""
    return probabilities.round(12)


def _likeliest(probabilities: Array) -> Predicted:
    return Predicted(_comparable(probabilities).argmax(axis=1).astype(np.float64), probabilities, None)


def _combine_sets(members: Predicted, rule: str, weights: Array) -> Predicted:
    """Combine sets: each class by `vote`, since members differ in thresholds, and its probability by the rule."""
    assert members.probabilities is not None
    shape = members.probabilities.shape
    yes = members.probabilities.reshape(len(members.values), -1)
    values = indicators(members.values, shape[-1]).reshape(yes.shape)
    decisions = Predicted(values, np.stack((1 - yes, yes), axis=-1), None)
    probabilities: Any = COMBINE[rule](decisions, weights).probabilities
    votes = _comparable(weighted_mean(values, weights))
    likely = _comparable(weighted_mean(yes, weights)) > 0.5
    chosen = np.where(votes == 0.5, likely, votes > 0.5).reshape(shape[1:])
    return Predicted(set_numbers(chosen), probabilities[:, 1].reshape(shape[1:]), None)


def combine_predictions(
    members: Sequence[Predicted], rule: str, weights: Sequence[float] | Array, sets: bool = False
) -> Predicted:
    """Combine several members' predictions for the same rows; those of a member with all the weight stay as they are.

    Args:
        members: predictions of each member.
        rule: as for `combine`.
        weights: weight of each member, of any sum.
        sets: whether they predict sets of classes.
    """
    shares = np.asarray(weights, dtype=np.float64) / np.sum(weights)
    weighted = [member for member, share in zip(members, shares) if share > 0]
    if len(weighted) == 1:
        return weighted[0]
    stacked: list[Any] = [None if parts[0] is None else np.stack(parts) for parts in zip(*weighted)]
    combined = partial(_combine_sets, rule=rule) if sets else COMBINE[rule]
    return combined(Predicted(*stacked), weights=shares[shares > 0])


def pick_members(members: Sequence[Predicted], score: Callable[[Predicted], float], sets: bool = False) -> list[float]:
    """Return weights by ensemble selection: pick members one by one, each time the one that makes the `mean` best.

    Caruana et al. 2004, "Ensemble Selection from Libraries of Models", section 2, with replacement (section 2.1): a
    member picked twice counts twice in the mean. The first pick is the best single member. Unlike the paper, which
    takes the best ensemble of all steps, the selection stops at the first pick that does not improve the score.

    Args:
        members: predictions of each member for the rows to choose on.
        score: score of a prediction of these rows; higher is better. Compared to 12 decimals.
        sets: as in `combine_predictions`.

    Returns:
        Each member's share of the picks. Ties go to the first member.
    """
    picks, best = np.zeros(len(members)), -np.inf
    while picks.sum() < MAX_PICKS:
        tried = (combine_predictions(members, "greedy", picks + one, sets) for one in np.eye(len(members)))
        scores = [round(score(predicted), 12) for predicted in tried]
        if max(scores) <= best:
            break
        best = max(scores)
        picks[scores.index(best)] += 1
    return (picks / picks.sum()).tolist()


def in_selection(task: str, ids: Iterable[str]) -> np.ndarray:
    """Mask of the dev rows that an ensemble is chosen on: bool [N], about half of them.

    It depends on task and row id alone (whether the CRC-32 of both is odd), so a row always stays in the same half.
    """
    return np.array([zlib.crc32(f"{task} {row_id}".encode()) % 2 == 1 for row_id in ids], dtype=bool)


def mark_selection(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the prediction table with the dev rows of `in_selection` as split `selection`, in the same order.

    Raises:
        UserError: if a task has no labelled rows in one of the two halves.
    """
    splits = frame["split"].to_numpy(object, copy=True)
    for task, positions in frame.groupby("task").indices.items():
        dev = positions[splits[positions] == "dev"]
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
    rule: str,
    tasks: Mapping[str, Task],
    answers: Mapping[str, Sequence[str]] | None = None,
) -> tuple[pd.DataFrame, Weights]:
    """Combine several prediction tables into one.

    If one member alone predicts a task, its predictions stay as they are. Otherwise `rule` combines them. `greedy`
    chooses the members' weights for each task by its main metric on half of its dev rows (`pick_members`,
    `in_selection`), and these rows get the split name `selection`.

    Args:
        members: a prediction table for each member, over the same rows in the same order. Predictions do not depend on
            the order of the members, unless `greedy` finds two of them equally good.
        rule: `vote`, `mean`, `mean_logits` or `greedy`.
        tasks: all tasks, by name.
        answers: names of the tasks that each member predicts, each task by one or more; None, and members that are
            not named, predict all.

    Returns:
        A prediction table, rows in the order of the first member; and the weights of each task's members.

    Raises:
        UserError: if members have different rows or labels, or `greedy` lacks labelled rows.
    """
    (first_name, first), *_ = members.items()
    for name, frame in members.items():
        if not frame[[*KEYS, "label"]].equals(first[[*KEYS, "label"]]):
            raise UserError(
                f"ensemble members {first_name} and {name} have different rows or labels; run the finetune stages again"
            )
    parts, weights = [], {}
    for task, positions in first.groupby("task", sort=False).indices.items():
        rows, names = first.iloc[positions], [name for name in members if task in (answers or {}).get(name, tasks)]
        predictions = [predicted_of(members[name].iloc[positions]) for name in names]
        shares = [1 / len(names)] * len(names)
        if rule == "greedy" and len(names) > 1:
            rows = mark_selection(rows)
            shares = _greedy_weights(rows, predictions, tasks[task])
        combined = combine_predictions(predictions, rule, shares, tasks[task].target.sets)
        parts.append(rows.assign(**predicted_columns(combined)).set_index(positions))
        weights[task] = dict(zip(names, shares))
    table = pd.concat(parts).sort_index().set_index(first.index)
    return table, {name: weights[name] for name in tasks if name in weights}


def _greedy_weights(rows: pd.DataFrame, predictions: Sequence[Predicted], task: Task) -> list[float]:
    """Return the weights by `pick_members` for the task's metric on the labelled rows of the selection half."""
    chosen = np.flatnonzero((rows["split"] == SELECTION) & rows["label"].notna())
    labels = rows["label"].to_numpy(np.float64)[chosen]

    def score(predicted: Predicted) -> float:
        scored = Scored(labels, predicted.values, predicted.probabilities, task.target.sets)
        return METRICS[task.target.metrics[0]](scored)

    return pick_members([predicted.take(chosen) for predicted in predictions], score, sets=task.target.sets)


def record_ensemble(folder: str | Path, rule: str, members: Sequence[str], weights: Weights) -> None:
    """Write `folder`/ensemble.json: the rule, the members and their weights in each task."""
    ensemble = {"combine": rule, "members": list(members), "weights": weights}
    write_json(Path(folder) / "ensemble.json", ensemble, digits=None)
