"""The row layout that all sources are converted to, and rows that can't be converted.

A table is a DataFrame, parquet on disk: `id: str, text: str, label: float64` for single sentences and
`id: str, text_a: str, text_b: str, label: float64` for pairs. Texts have no outer white space and are not empty; ids
are unique. In an unlabelled table all labels are NaN, in others none is, except for tasks that share rows. Tables of
training rows that come from several files have a column `source: str`: `extra_train`, `unlabelled-<name>`, or null for
rows of the task's own source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bertrio.core.errors import UserError, need
from bertrio.core.files import read_parquet, whole_file

BATCH = 10_000  # rows that are Python objects at a time
SPLITS = ("train", "dev", "test")
EXTRA = "extra_train"  # rows of data.extra_train, which the stage split adds to train
SWAPPED = "swapped-"  # start of the ids of gender-swapped copies
UNLABELLED = "unlabelled"  # rows of data.unlabelled, of all its files; each file's are called unlabelled-<name> before


class Reject(NamedTuple):
    """Rejected row: `reason` is a short fixed phrase, `row` its number in the file, `raw` its text."""

    task: str
    split: str
    file: str
    row: int
    reason: str
    raw: str


class Unusable(Exception):
    """Raised for a row that can't be used; the message is the reason, a short fixed phrase."""


def clean_text(value: Any) -> str:
    """Return a text without outer white space.

    Raises:
        Unusable: if it is missing, empty, not a string, or not valid Unicode.
    """
    if value is None or value != value:  # pandas represents missing texts by NaN
        raise Unusable("missing field")
    if not isinstance(value, str):
        raise Unusable("text is not a string")
    text = value.strip()
    if not text:
        raise Unusable("empty text")
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON escapes can contain
        raise Unusable("text is not Unicode") from None
    return text


def is_labelled(frame: pd.DataFrame) -> bool:
    """Return whether the table has labelled rows."""
    return bool(frame["label"].notna().any())


def in_batches(table: pd.DataFrame | pd.Series, size: int = BATCH) -> Iterator[Any]:
    """Yield the rows of a table or column in batches of `size`, at least one."""
    for start in range(0, max(1, len(table)), size):
        yield table.iloc[start : start + size]


def schema_of(columns: Iterable[str]) -> pa.Schema:
    """Return the types of a table's columns on disk: all columns but `label` are text."""
    return pa.schema([(name, pa.float64() if name == "label" else pa.string()) for name in columns])


def write_table(frame: pd.DataFrame, path: str | Path) -> None:
    """Write a table atomically; the same rows give the same bytes.

    The index and the metadata of pandas are dropped.
    """
    table = pa.Table.from_pandas(frame, schema=schema_of(frame.columns), preserve_index=False, nthreads=1)
    table = table.replace_schema_metadata(None)
    with whole_file(path) as temporary:
        pq.write_table(table, temporary)


def read_table(path: str | Path, columns: list[str] | None = None) -> pd.DataFrame:
    """Read a table that `write_table` wrote, or only those of some columns that it has.

    Raises:
        UserError: if the file is missing or damaged.
    """
    try:
        return read_parquet(need(path), columns).to_pandas(use_threads=False)
    except (OSError, ValueError, pa.ArrowException) as error:  # a ValueError for names that are not UTF-8
        raise UserError(f"{path}: can't be read as a table ({error}); run the stage that writes it again") from error
