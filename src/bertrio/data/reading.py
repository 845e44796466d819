"""What the sources share: from rows as found, under the columns' own names, to a table."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple, TypeVar

import pandas as pd

from bertrio.core.console import progress
from bertrio.core.errors import UserError
from bertrio.core.tasks import Task
from bertrio.data.table import RawRow, Reject, normalise

T = TypeVar("T")
CHUNK = 1000  # rows between two moves of a progress bar
DELIMITERS = ("\t", ";", ",", "|")
MOST_COLUMNS, LONGEST_NAME = 50, 100  # that a message lists, and characters of each


class Found(NamedTuple):
    """Rows as a source finds them: their column names, the rows with values under these, and how many if known."""

    columns: list[str]
    rows: Iterable[RawRow]
    total: int | None = None


def build_table(
    found: Found, columns: Mapping[str, str], task: Task, split: str, file: str, place: str, hint: str = ""
) -> tuple[pd.DataFrame, list[Reject]]:
    """The table and the rejects of one task and split, with a progress bar while rows are read.

    Args:
        found: what there is.
        columns: name of the column for each of `id`, the task's text columns and `label`; what it does not name is
            called as in the layout. Ids are made up of split and row number if no column is named and none is `id`.
        task: what the rows belong to.
        split: train, dev or test; only test may be without labels.
        file: short name, for rejects and progress.
        place: param and file, for messages.
        hint: what to do about a missing column.

    Raises:
        UserError: if a column is missing.
    """
    names = {ours: columns.get(ours, ours) for ours in ("id", *task.text_columns, "label")}
    optional = ({"label"} if split == "test" else set()) | ({"id"} - set(columns))
    wanted = [theirs for ours, theirs in names.items() if ours not in optional or theirs in found.columns]
    check_columns(place, found.columns, wanted, hint)
    made_up = names["id"] not in found.columns
    rows = (_renamed(row, names, split, made_up) for row in watched(found.rows, f"reading {file}", found.total))
    return normalise(rows, task, split, names["label"] in found.columns, file)


def _renamed(row: RawRow, names: dict[str, str], split: str, made_up: bool) -> RawRow:
    values = {ours: row.values.get(theirs) for ours, theirs in names.items()}
    if made_up:
        values["id"] = f"{split}-{row.number}"
    return row._replace(values=values, raw=row.values if row.raw is None else row.raw)


def watched(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """The same items, with a progress bar while they pass."""
    items = iter(items)
    with progress(description, total) as bar:
        while chunk := list(islice(items, CHUNK)):
            yield from chunk
            bar.advance(len(chunk))


def check_columns(place: str, found: Iterable[str], expected: Iterable[str], hint: str = "") -> None:
    """Raises a UserError that lists the columns `found` at `place`, if one of those `expected` is not there once."""
    found, expected = list(found), list(expected)
    twice = [name for name in expected if found.count(name) > 1]
    if twice:
        raise UserError(f"{place}: found {found.count(twice[0])} columns {twice[0]!r}, expected one; rename the others")
    missing = [name for name in expected if name not in found]
    if not missing:
        return
    close = difflib.get_close_matches(missing[0], found, n=1, cutoff=0.5)
    guess = f"; did you mean {close[0]!r}?" if close else ""
    between = [other for other in DELIMITERS if len(found) == 1 and other in found[0]]
    if between:
        guess = (
            f"; it looks as if {between[0]!r} stood between the columns: .csv files have ',' there, .tsv files a tab"
        )
    listed = ", ".join(_shown(name) for name in found[:MOST_COLUMNS]) or "none"
    listed += f" and {len(found) - MOST_COLUMNS} more" if len(found) > MOST_COLUMNS else ""
    wanted = ", ".join(repr(name) for name in missing)
    raise UserError(f"{place}: found columns {listed}, expected {wanted}{guess}{hint}")


def _shown(name: str) -> str:
    text = repr(name)
    return text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]}..."
