"""Unlabelled texts for masked-language-model pretraining, from local files."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bertrio.config import DataParams
from bertrio.core.errors import UserError
from bertrio.data.formats import RawTable, read_delimited
from bertrio.data.reading import check_columns

SEED = 0  # of the drawn rows: they are the same in every run
PAIRS = {"multinli": ("premise", "hypothesis"), "sick": ("sentence_a", "sentence_b")}  # columns of corpora of pairs


def load_corpus(params: DataParams, name: str, rows: int, skipped: Counter[str]) -> Iterator[str]:
    """Yield at most `rows` texts of `<data.corpora_path>/<name>.tsv`, drawn from all; a pair becomes one text.

    Corpora other than those in `PAIRS` have a column `text`.

    Public TSV files are often written without quoting. A line with damaged quoting is therefore read without quoting.
    Rows without text, and lines that are not UTF-8 or have a wrong number of columns, are counted in `skipped`. If a
    file has a column `split`, only the rows of `train` are used.

    Raises:
        UserError: if the file or a column is missing.
    """
    path = Path(params.corpora_path or "").expanduser() / f"{name}.tsv"
    if not path.is_file():
        raise UserError(
            f"data.corpora_path: there is no file {path}; relative paths start at the root of the repository. "
            f"To do without this corpus set mlm.rows.{name} to 0"
        )
    table = read_delimited(path, "\t")
    columns = PAIRS.get(name, ("text",))
    check_columns(str(path), table.columns, columns)
    texts = list(_texts(table, columns, skipped))
    drawn = random.Random(SEED).sample(range(len(texts)), min(len(texts), rows))
    yield from (texts[place] for place in sorted(drawn))


def _texts(table: RawTable, columns: Sequence[str], skipped: Counter[str]) -> Iterator[str]:
    for row in table.rows():
        values = row.values
        if row.problem == "damaged quoting":
            fields = str(row.raw).split("\t")
            values = dict(zip(table.columns, fields, strict=True)) if len(fields) == len(table.columns) else {}
        if not values:
            skipped[str(row.problem)] += 1
        elif values.get("split", "train") == "train":
            yield from join_texts([values[column] for column in columns], skipped)


def join_texts(texts: Sequence[Any], skipped: Counter[str]) -> Iterator[str]:
    """Yield the texts of a row as one text; if all are missing or empty, count the row in `skipped` instead."""
    text = " ".join(text.strip() for text in texts if isinstance(text, str) and text.strip())
    if text:
        yield text
    else:
        skipped["empty text"] += 1
