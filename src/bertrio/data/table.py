"""The one row layout that every source is brought to, and the rows that can't be.

A table is a DataFrame, parquet on disk: `id: str, text: str, label: float64` for single sentences and
`id: str, text_a: str, text_b: str, label: float64` for pairs. Texts have no outer white space and are not empty; ids
are unique. In an unlabelled table every label is NaN, in all others none is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bertrio.core.errors import UserError, need
from bertrio.core.files import whole_file
from bertrio.core.tasks import Task

SPLITS = ("train", "dev", "test")
MORE = "more"  # rows of data.more, which join train when it is split


class RawRow(NamedTuple):
    """A row as it was found: `values` under the names of the layout, or the `problem` that kept it from being read."""

    number: int  # 1-based line of a text file, 1-based record elsewhere
    values: dict[str, Any]
    raw: str | dict[str, Any] | None = None  # as it stood in the file, or its fields by column; None: as values
    problem: str | None = None


@dataclass(frozen=True)
class Reject:
    """A row that can't be used; `reason` is a short fixed phrase, `row` the number in the file, `raw` its text."""

    task: str
    split: str
    file: str
    row: int
    reason: str
    raw: str


class Unusable(Exception):
    """A row can't be used; the message is the reason, a short fixed phrase."""


def normalise(
    rows: Iterable[RawRow], task: Task, split: str, labelled: bool, file: str
) -> tuple[pd.DataFrame, list[Reject]]:
    """Brings rows to the layout of `task`, and says why each row that is left out can't be used.

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
    if _is_half(name):
        raise Unusable("id is not Unicode")
    return name


def _is_half(text: str) -> bool:
    """Whether half a surrogate pair stands in it, as JSON escapes can make one."""
    return not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text)


def clean_text(value: Any) -> str:
    """A text as tables hold it: without outer white space.

    Raises:
        Unusable: if it is missing, empty, no string, or holds half a character.
    """
    if value is None or value != value:  # NaN is how pandas writes a missing text
        raise Unusable("missing field")
    if not isinstance(value, str):
        raise Unusable("text is not a string")
    text = value.strip()
    if not text:
        raise Unusable("empty text")
    if _is_half(text):
        raise Unusable("text is not Unicode")
    return text


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


def is_labelled(frame: pd.DataFrame) -> bool:
    """Whether the table has rows and labels."""
    return bool(frame["label"].notna().any())


def write_table(frame: pd.DataFrame, path: str | Path) -> None:
    """Writes a table whole or not at all; the same rows give the same bytes.

    Columns are text, but for `label`. The index is dropped, and so is what pandas would add about itself.
    """
    schema = pa.schema([(name, pa.float64() if name == "label" else pa.string()) for name in frame.columns])
    table = pa.Table.from_pandas(frame, schema=schema, preserve_index=False).replace_schema_metadata(None)
    with whole_file(path) as temporary:
        pq.write_table(table, temporary)


def read_table(path: str | Path) -> pd.DataFrame:
    """Reads a table that `write_table` wrote.

    Raises:
        UserError: if there is none, or it is damaged.
    """
    try:
        return pq.read_table(need(path)).to_pandas()
    except (OSError, ValueError, pa.ArrowException) as error:  # damaged names are no UTF-8, a ValueError
        raise UserError(f"{path}: can't be read as a table ({error}); run the stage that writes it again") from error
