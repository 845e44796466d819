"""From the rows of a source, under their own column names, to a clean table and the rejected rows."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from bertrio.core.console import progress
from bertrio.core.errors import UserError
from bertrio.core.tasks import Task
from bertrio.data.formats import RawRow, RawTable
from bertrio.data.table import Reject, Unusable, clean_text, has_lone_surrogate

T = TypeVar("T")
CHUNK = 1000  # rows between two moves of a progress bar
DELIMITERS = ("\t", ";", ",", "|")
MAX_COLUMNS, MAX_NAME = 50, 100  # that a message lists, and characters of each


def build_table(
    source: RawTable, columns: Mapping[Any, str], task: Task, split: str, file: str, place: str, hint: str = ""
) -> tuple[pd.DataFrame, list[Reject]]:
    """Return the table and the rejects of one task and split; a progress bar runs while rows are read.

    Args:
        source: the rows and their columns.
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
    wanted = [theirs for ours, theirs in names.items() if ours not in optional or theirs in source.columns]
    check_columns(place, source.columns, wanted, hint)
    made_up = names["id"] not in source.columns
    rows = (_renamed(row, names, split, made_up) for row in track(source.rows, f"reading {file}", source.total))
    return normalise(rows, task, split, names["label"] in source.columns, file)


def _renamed(row: RawRow, names: dict[str, str], split: str, made_up: bool) -> RawRow:
    values = {ours: row.values.get(theirs) for ours, theirs in names.items()}
    if made_up:
        values["id"] = f"{split}-{row.number}"
    return row._replace(values=values, raw=row.values if row.raw is None else row.raw)


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Yield `items` and show a progress bar meanwhile."""
    items = iter(items)
    with progress(description, total) as bar:
        while chunk := list(islice(items, CHUNK)):
            yield from chunk
            bar.advance(len(chunk))


def check_columns(place: str, found: Iterable[str], expected: Iterable[str], hint: str = "") -> None:
    """Raise a UserError that lists the columns `found` at `place` unless each of `expected` is there exactly once."""
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
    listed = ", ".join(_shown(name) for name in found[:MAX_COLUMNS]) or "none"
    listed += f" and {len(found) - MAX_COLUMNS} more" if len(found) > MAX_COLUMNS else ""
    wanted = ", ".join(repr(name) for name in missing)
    raise UserError(f"{place}: found columns {listed}, expected {wanted}{guess}{hint}")


def _shown(name: str) -> str:
    text = repr(name)
    return text if len(text) <= MAX_NAME else f"{text[:MAX_NAME]}..."


def normalise(
    rows: Iterable[RawRow], task: Task, split: str, labelled: bool, file: str
) -> tuple[pd.DataFrame, list[Reject]]:
    """Convert rows to the layout of `task`, and give the reason for each row that can't be used.

    Args:
        rows: what a source found, with values under `id`, the task's text columns and `label`.
        task: what the rows belong to.
        split: train, dev, test or more.
        labelled: whether the file has labels at all.
        file: name of the file, for messages.

    Returns:
        The table and the rejected rows, each in the order of the file. A test file whose labels are all hidden
        (empty or -1, where -1 is no label of the task) is taken as unlabelled.

    Raises:
        UserError: if train or dev has no labels.
    """
    rows = list(rows)
    labelled = labelled and not _all_hidden([row.values.get("label") for row in rows if not row.problem], task)
    if not labelled and split != "test":
        raise UserError(f"{task.name}: {file}: found no labels, expected them in {split}; only test may be without")
    columns = ("id", *task.text_columns, "label")
    clean: list[tuple[Any, ...]] = []
    rejects: list[Reject] = []
    ids: set[str] = set()
    for row in rows:
        try:
            if row.problem:
                raise Unusable(row.problem)
            clean.append(_clean(row.values, task, labelled, ids))
        except Unusable as reason:
            rejects.append(Reject(task.name, split, file, row.number, str(reason), _raw_text(row)))
    lists = list(zip(*clean, strict=True)) or [()] * len(columns)
    return pd.DataFrame({name: _column(name, values) for name, values in zip(columns, lists, strict=True)}), rejects


def _clean(values: dict[str, Any], task: Task, labelled: bool, ids: set[str]) -> tuple[Any, ...]:
    """The row as a tuple in the order of the layout's columns; its id is added to `ids`."""
    name = _name(values.get("id"))
    texts = [clean_text(values.get(column)) for column in task.text_columns]
    label = _label(values.get("label"), task) if labelled else np.nan
    if name in ids:
        raise Unusable("duplicate id")
    ids.add(name)
    return (name, *texts, label)


def _name(value: Any) -> str:
    if value is None or value != value or not str(value).strip():
        raise Unusable("missing id")
    name = str(value).strip()
    if has_lone_surrogate(name):
        raise Unusable("id is not Unicode")
    return name


def _label(value: Any, task: Task) -> float:
    if value is None or value != value or (isinstance(value, str) and not value.strip()):
        raise Unusable("missing label")
    try:
        label = task.target.number_of(value)
    except (TypeError, ValueError, OverflowError):
        raise Unusable("unknown label" if task.target.labels else "label is not a number") from None
    problem = task.target.label_problem(label)
    if problem:
        raise Unusable(problem)
    return label


def _all_hidden(labels: list[Any], task: Task) -> bool:
    """Whether no row has a label: all empty, or all -1 where that is none of the task's labels."""
    texts = {"" if label is None or label != label else str(label).strip() for label in labels}
    is_label = task.target.label_problem(-1.0) is None or "-1" in task.target.labels
    return bool(labels) and texts <= ({""} if is_label else {"", "-1", "-1.0"})


def _raw_text(row: RawRow) -> str:
    if isinstance(row.raw, str):
        return row.raw
    return json.dumps(row.values if row.raw is None else row.raw, ensure_ascii=True, default=str)


def _column(name: str, values: Iterable[Any]) -> pd.Series:
    return pd.Series(list(values), dtype="float64" if name == "label" else "str")
