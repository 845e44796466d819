"""The same rows out of several prediction tables, or a message that says why they are not the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from bertrio.core.errors import UserError
from bertrio.evaluation.predictions import Scored

SHOWN = 3  # rows that a message names


class Matched(NamedTuple):
    """The rows of one task: `ids` [N], sorted, and what each table says of them."""

    ids: list[str]
    scored: list[Scored]


def match(tables: Mapping[str, pd.DataFrame], tasks: Sequence[str], split: str) -> dict[str, Matched]:
    """Finds the labelled rows of `split` in every table.

    Rows are sorted by id, so that what follows does not depend on which table comes first.

    Args:
        tables: prediction tables by the name that messages give them; two or more.
        tasks: which tasks to match.
        split: dev, test or another split of the tables.

    Returns:
        The rows by task; tasks that no table has labels for are left out.

    Raises:
        UserError: if no table has labelled rows of the split, or the tables differ in ids or labels; it names all
            tasks that differ, with the first ids of each.
    """
    found: dict[str, Matched] = {}
    problems: list[str] = []
    for task in tasks:
        rows = {name: _rows(table, task, split) for name, table in tables.items()}
        if all(own.empty for own in rows.values()):
            continue
        own = [problem for name in list(rows)[1:] for problem in _differences(next(iter(rows)), name, rows, tables)]
        problems += [f"  {task}: {problem}" for problem in own]
        if not own:
            first = next(iter(rows.values()))
            found[task] = Matched(first["id"].to_list(), [Scored.of(table) for table in rows.values()])
    if problems:
        raise UserError(
            f"split {split}: only predictions of the same rows can be compared, but\n"
            + "\n".join(problems)
            + "\n  Runs on the same rows have the same data.source, data.sample and data.split; use one of them again"
        )
    if not found:
        name, table = next(iter(tables.items()))
        labelled = sorted(table.loc[table["label"].notna(), "split"].unique())
        raise UserError(f"split {split}: {name} has no labelled rows of it, expected one of {', '.join(labelled)}")
    return found


def _rows(table: pd.DataFrame, task: str, split: str) -> pd.DataFrame:
    rows = table[(table["task"] == task) & (table["split"] == split) & table["label"].notna()]
    return rows.sort_values("id", ignore_index=True)


def _differences(
    first: str, second: str, rows: Mapping[str, pd.DataFrame], tables: Mapping[str, pd.DataFrame]
) -> list[str]:
    one, other = rows[first], rows[second]
    if one["id"].equals(other["id"]):
        differ = np.flatnonzero(one["label"].to_numpy() != other["label"].to_numpy())
        named = [
            f"{one['id'][place]}: {one['label'][place]:g} in {first}, {other['label'][place]:g} in {second}"
            for place in differ[:SHOWN]
        ]
        return [f"{len(differ):,} rows have other labels ({_some(named, len(differ), '; ')})"] if named else []
    problems = []
    for name, own, them, missing_in in ((first, one, other, second), (second, other, one, first)):
        only = own["id"][~own["id"].isin(them["id"])]
        if len(only):
            text = f"{len(only):,} of {len(own):,} rows are in {name} and not in {missing_in}"
            elsewhere = _elsewhere(only, tables[missing_in], str(own["task"][0]), missing_in)
            problems.append(f"{text} (ids {_some(list(only[:SHOWN]), len(only))}){elsewhere}")
    return problems


def _some(names: Sequence[str], count: int, separator: str = ", ") -> str:
    return separator.join([*names, *(["..."] if count > len(names) else [])])


def _elsewhere(ids: pd.Series, table: pd.DataFrame, task: str, name: str) -> str:
    """What is to be said of rows that an ensemble set apart to choose its members on."""
    chosen_on = table[(table["task"] == task) & (table["split"] == "selection")]
    there = int(ids.isin(chosen_on["id"]).sum())
    return f"; {there:,} of them are those that {name} chose its ensemble on" if there else ""
