"""Several members' predictions into one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from bertrio.errors import UserError
from bertrio.evaluation.predictions import (
    KEYS,
    check_predictions,
    check_tasks,
    object_column,
    read_predictions,
    row_name,
    write_predictions,
)
from bertrio.tasks import Array, Task


def vote(values: Array, probabilities: Array | None) -> Array:
    """The most frequent class, or the median score.

    Ties between classes go to the larger summed probability, and then to the lowest class.

    Args:
        values: [M, N], the members' predictions.
        probabilities: [M, N, C], or None for scores.

    Returns:
        [N].
    """
    if probabilities is None:
        return np.median(values, axis=0)
    votes = (values[:, :, None] == np.arange(probabilities.shape[2])).sum(axis=0)
    most = votes == votes.max(axis=1, keepdims=True)
    return np.where(most, _comparable(probabilities), -1.0).argmax(axis=1).astype(np.float64)


def mean(values: Array, probabilities: Array | None) -> Array:
    """The class of the largest mean probability (binary: yes above 0.5), the lowest of equals; or the mean score.

    Shapes as in `vote`.
    """
    if probabilities is None:
        return mean_of_members(values)
    return _comparable(probabilities).argmax(axis=1).astype(np.float64)


COMBINE = {"vote": vote, "mean": mean}


def mean_of_members(values: Array) -> Array:
    """The mean over the first axis, the same to the last bit whatever the order of members.

    Floating-point sums depend on their order, so the members are sorted first, entry by entry.
    """
    return np.sort(values, axis=0).mean(axis=0)


def _comparable(probabilities: Array) -> Array:
    """Mean probabilities [N, C], rounded so that what is equal on paper (0.9 + 0.1 and 0.1 + 0.9) compares equal."""
    return mean_of_members(probabilities).round(12)


def combine(members: Mapping[str, pd.DataFrame], how: str, tasks: Mapping[str, Task]) -> pd.DataFrame:
    """Makes one prediction table of several.

    One member is the identity. Of several, `prediction` is combined from the members' predictions and
    probabilities as `how` says, `score` from their scores likewise, and `probabilities` is always the mean.

    Args:
        members: a prediction table for each member, over the same rows in any order. The order of the members
            makes no difference to what is said about a row.
        how: `vote` or `mean`.
        tasks: all tasks, by name.

    Returns:
        A prediction table, rows in the order of the first member.

    Raises:
        UserError: if `how` or a task is unknown, or members cover different rows, labels or classes.
    """
    if how not in COMBINE:
        raise UserError(f"ensemble.combine: found {how!r}, expected one of {', '.join(COMBINE)}")
    if not members:
        raise UserError("ensemble.members: found none, expected at least one")
    frames = _aligned(members)
    first = next(iter(frames.values()))
    check_tasks(first, tasks)
    result = first.copy()
    if len(frames) == 1:
        return result
    predictions, scores = np.full(len(first), np.nan), np.full(len(first), np.nan)
    probabilities: list[Array | None] = [None] * len(first)
    for name, places in first.groupby("task").indices.items():
        values = _column(frames, "prediction", places)
        if tasks[name].target.discrete:
            stacked = _probabilities(frames, name, places)
            predictions[places] = COMBINE[how](values, stacked)
            for place, row in zip(places, mean_of_members(stacked)):
                probabilities[place] = row
        else:
            predictions[places] = COMBINE[how](values, None)
            scores[places] = COMBINE[how](_column(frames, "score", places), None)
    return result.assign(prediction=predictions, probabilities=object_column(probabilities), score=scores)


def combine_members(
    names: Sequence[str], how: str, tasks: Mapping[str, Task], folder: str | Path, path: str | Path
) -> None:
    """Reads `folder`/<name>/predictions.parquet of each member and writes what `combine` makes of them to `path`."""
    members = {name: read_predictions(Path(folder) / name / "predictions.parquet") for name in names}
    write_predictions(combine(members, how, tasks), path)


def _column(frames: Mapping[str, pd.DataFrame], column: str, places: np.ndarray) -> Array:
    """[M, N] values of one column at `places`."""
    return np.stack([frame[column].to_numpy(np.float64)[places] for frame in frames.values()])


def _probabilities(frames: Mapping[str, pd.DataFrame], task: str, places: np.ndarray) -> Array:
    """[M, N, C] probabilities at `places`."""
    rows = {member: frame["probabilities"].iloc[places].to_list() for member, frame in frames.items()}
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
