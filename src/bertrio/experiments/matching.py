"""Matching of the rows of several prediction tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from bertrio.core.errors import UserError
from bertrio.core.tasks import Task
from bertrio.evaluation.predictions import Scored

MAX_IDS = 3  # ids in a message


class Matched(NamedTuple):
    """Rows of one task: sorted `ids` [N], and labels and predictions of each table in this order."""

    ids: list[str]
    scored: list[Scored]


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
