"""Unlabelled texts for masked-language-model pretraining: local files, and the parquet that they end in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from bertrio.core.errors import UserError
from bertrio.core.files import whole_file
from bertrio.data.formats import RawTable, read_delimited
from bertrio.data.reading import check_columns, track

ROW_GROUP = 1000  # texts that are in memory at a time


class _Layout(NamedTuple):
    texts: tuple[str, ...]
    split: str | None = None  # the rows that are used, of a file with a column `split`


LAYOUTS = {
    "imdb": _Layout(("text",)),
    "multinli": _Layout(("premise", "hypothesis")),
    "sick": _Layout(("sentence_a", "sentence_b"), split="train"),
}


def read_local_corpus(folder: str | None, name: str, rows: int | None, skipped: Counter[str]) -> Iterator[str]:
    """The first `rows` texts (None: all) of `<folder>/<name>.tsv`, one at a time; a pair becomes one text.

    Public TSV files are often written without quoting. A line whose quoting is damaged is therefore taken as it
    stands. Rows without text, and lines that are not UTF-8 or have a wrong number of columns, are counted in `skipped`.

    Raises:
        UserError: if the folder, the file or a column is missing.
    """
    if folder is None:
        raise UserError("data.corpora_path: found null, expected a folder with imdb.tsv, multinli.tsv, sick.tsv")
    layout, path = LAYOUTS[name], Path(folder).expanduser() / f"{name}.tsv"
    if not path.is_file():
        raise UserError(
            f"data.corpora_path: there is no file {path}; relative paths start at the root of the repository. "
            f"To do without this corpus set mlm.rows.{name} to 0"
        )
    found = read_delimited(path, "\t")
    check_columns(str(path), found.columns, (*layout.texts, *(("split",) if layout.split else ())))
    return islice(_texts(found, layout, skipped), rows)


def _texts(found: RawTable, layout: _Layout, skipped: Counter[str]) -> Iterator[str]:
    for row in found.rows:
        values = row.values
        if row.problem == "damaged quoting":
            fields = str(row.raw).split("\t")
            values = dict(zip(found.columns, fields, strict=True)) if len(fields) == len(found.columns) else {}
        if not values:
            skipped[str(row.problem)] += 1
        elif layout.split is None or values["split"] == layout.split:
            yield from joined([values[column] for column in layout.texts], skipped)


def joined(texts: Sequence[Any], skipped: Counter[str]) -> Iterator[str]:
    """The texts of one row as one text, without those that are none; if all are, `skipped` counts the row."""
    text = " ".join(text.strip() for text in texts if isinstance(text, str) and text.strip())
    if text:
        yield text
    elif all(text is None or isinstance(text, str) for text in texts):
        skipped["empty text"] += 1
    else:
        skipped["text is not a string"] += 1


def write_corpus(texts: Iterable[str], path: str | Path, description: str, total: int | None = None) -> int:
    """Writes texts to a parquet file with the one column `text`, a row group at a time; returns how many there were."""
    schema = pa.schema([("text", pa.string())])
    texts, count = track(texts, description, total), 0
    with whole_file(path) as temporary, pq.ParquetWriter(temporary, schema) as writer:
        while group := list(islice(texts, ROW_GROUP)):
            writer.write_table(pa.table({"text": group}, schema=schema))
            count += len(group)
    return count
