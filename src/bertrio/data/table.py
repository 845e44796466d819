"""The one row layout that every source is brought to, and the rows that can't be.

A table is a DataFrame, parquet on disk: `id: str, text: str, label: float64` for single sentences and
`id: str, text_a: str, text_b: str, label: float64` for pairs. Texts have no outer white space and are not empty; ids
are unique. In an unlabelled table every label is NaN, in all others none is.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bertrio.core.errors import UserError, need
from bertrio.core.files import whole_file

SPLITS = ("train", "dev", "test")
EXTRA = "extra_train"  # rows of data.extra_train, which join train when it is split


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
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair, as JSON escapes can make one
        raise Unusable("text is not Unicode") from None
    return text


def is_labelled(frame: pd.DataFrame) -> bool:
    """Whether the table has rows and labels."""
    return bool(frame["label"].notna().any())


def write_table(frame: pd.DataFrame, path: str | Path) -> None:
    """Write a table whole or not at all; the same rows give the same bytes.

    Columns are text, but for `label`. The index is dropped, and so is what pandas would add about itself.
    """
    schema = pa.schema([(name, pa.float64() if name == "label" else pa.string()) for name in frame.columns])
    table = pa.Table.from_pandas(frame, schema=schema, preserve_index=False).replace_schema_metadata(None)
    with whole_file(path) as temporary:
        pq.write_table(table, temporary)


def read_table(path: str | Path) -> pd.DataFrame:
    """Read a table that `write_table` wrote.

    Raises:
        UserError: if there is none, or it is damaged.
    """
    try:
        return pq.read_table(need(path)).to_pandas()
    except (OSError, ValueError, pa.ArrowException) as error:  # damaged names are no UTF-8, a ValueError
        raise UserError(f"{path}: can't be read as a table ({error}); run the stage that writes it again") from error
