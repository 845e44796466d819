"""Conversion of a source's rows, under their own column names, to a clean table and the rejected rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa

from bertrio.core.console import progress
from bertrio.core.errors import UserError, did_you_mean
from bertrio.core.tasks import Task
from bertrio.data.formats import RawRow, RawTable
from bertrio.data.table import BATCH, UNLABELLED, Reject, Unusable, clean_text, schema_of

T = TypeVar("T")
CHUNK = 1000  # rows between two updates of a progress bar
DELIMITERS = ("\t", ";", ",", "|")
MAX_LISTED = 2000  # characters of column names in a message


def build_table(
    source: RawTable, columns: Mapping[Any, str], task: Task, split: str, file: str, place: str, hint: str = ""
) -> tuple[pd.DataFrame, list[Reject]]:
    """Bring the rows of one task and split to the layout of data/table.py.

    Args:
        source: the rows and their columns.
        columns: name in the source for each of `id`, the task's text columns and `label`; by default their names in the
            layout. Without an id column, ids are made of the split and the row number.
        task: task of the rows.
        split: train, dev, test, extra_train or unlabelled-<name>; test may have no labels, and those of the last are
            not read.
        file: short name, for rejects and progress.
        place: param and file, for messages.
        hint: advice about a missing column, for messages.

    Returns:
        The table and the rejected rows, each in the order of the file. A test file whose labels are all hidden
        (empty, or -1 if that is no label of the task) counts as unlabelled.

    Raises:
        UserError: if a column is missing, or train or dev has no labels.
    """
    names = {ours: columns.get(ours, ours) for ours in ("id", *task.text_columns, "label")}
    unlabelled = split.startswith(UNLABELLED)
    optional = ({"label"} if unlabelled or split == "test" else set()) | ({"id"} - set(columns))
    wanted = [theirs for ours, theirs in names.items() if ours not in optional or theirs in source.columns]
    check_columns(place, source.columns, wanted, hint)
    generate_ids = names["id"] not in source.columns
    labels = (row.values.get(names["label"]) for row in source.rows() if not row.problem)
    labelled = not unlabelled and names["label"] in source.columns and not _all_hidden(labels, task)
    if not labelled and not unlabelled and split != "test":
        raise UserError(f"{task.name}: {file}: found no labels, expected them in {split}; only test may be without")
    rejects: list[Reject] = []
    ids: set[str] = set()

    def clean(rows: Iterable[RawRow]) -> Iterator[tuple[Any, ...]]:
        for row in rows:
            values = {ours: row.values.get(theirs) for ours, theirs in names.items()}
            if generate_ids:
                values["id"] = f"{split}-{row.number}"
            try:
                yield _clean(row._replace(values=values), task, labelled, ids)
            except Unusable as reason:
                rejects.append(Reject(task.name, split, file, row.number, str(reason), _raw_text(row)))

    rows, batches, schema = clean(track(source.rows(), f"reading {file}")), [], schema_of(names)
    while batch := list(islice(rows, BATCH)):
        batches.append(pa.record_batch(list(map(list, zip(*batch, strict=True))), schema))
    return pa.Table.from_batches(batches, schema).to_pandas(), rejects


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Yield `items` with a progress bar."""
    items = iter(items)
    with progress(description, total) as bar:
        while chunk := list(islice(items, CHUNK)):
            yield from chunk
            bar.advance(len(chunk))


def check_columns(
    place: str, columns: Iterable[str], expected: Iterable[str], hint: str = "", delimiter_hint: str = ""
) -> None:
    """Check that each of `expected` occurs exactly once among the `columns` of `place`.

    Raises:
        UserError: if it does not; the message lists the columns.
    """
    counts, expected = Counter(list(columns)), list(expected)  # of a mapping, Counter takes the values
    for name in expected:
        if counts[name] > 1:
            raise UserError(f"{place}: found {counts[name]} columns {name!r}, expected one; rename the others")
    columns, missing = list(counts), [name for name in expected if name not in counts]
    if not missing:
        return
    guess = did_you_mean(repr(missing[0]), map(repr, columns))
    if between := [delimiter for delimiter in DELIMITERS if len(columns) == 1 and delimiter in columns[0]]:
        guess = (
            f"; it looks as if {between[0]!r} stood between the columns: .csv files have ',' there, .tsv files a tab"
        )
        hint = delimiter_hint
    listed = ", ".join(map(repr, columns))[:MAX_LISTED] or "none"
    raise UserError(f"{place}: found columns {listed}, expected {', '.join(map(repr, missing))}{guess}{hint}")


def _clean(row: RawRow, task: Task, labelled: bool, ids: set[str]) -> tuple[Any, ...]:
    """Return the row as a tuple in the order of the layout's columns, and add its id to `ids`."""
    if row.problem:
        raise Unusable(row.problem)
    if _is_missing(row.values["id"]):
        raise Unusable("missing id")
    name = clean_text(str(row.values["id"]))
    texts = [clean_text(row.values[column]) for column in task.text_columns]
    known = labelled and not (task.partial and _is_missing(row.values["label"]))
    label = _label(row.values["label"], task) if known else np.nan
    if name in ids:
        raise Unusable("duplicate id")
    ids.add(name)
    return (name, *texts, label)


def _is_missing(value: Any) -> bool:
    return value is None or value != value or not str(value).strip()


def _label(value: Any, task: Task) -> float:
    if _is_missing(value):
        raise Unusable("missing label")
    try:
        label = task.target.number_of(value)
    except (TypeError, ValueError, OverflowError):
        raise Unusable("unknown label" if task.target.labels else "label is not a number") from None
    problem = task.target.label_problem(label)
    if problem:
        raise Unusable(problem)
    return label


def _all_hidden(labels: Iterable[Any], task: Task) -> bool:
    """Return whether no row has a label: all are empty, or -1 if that is no label of the task."""
    is_label = task.target.label_problem(-1.0) is None or "-1" in task.target.labels
    hidden = {""} if is_label else {"", "-1", "-1.0"}
    texts = ("" if _is_missing(label) else str(label).strip() for label in labels)
    return next(texts, None) in hidden and all(text in hidden for text in texts)


def _raw_text(row: RawRow) -> str:
    return row.raw if isinstance(row.raw, str) else json.dumps(row.raw or row.values, default=str)
