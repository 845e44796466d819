"""File formats of rows: CSV, TSV, JSON Lines and Parquet.

A damaged row does not affect other rows: it is reported with its line and the reason, and reading continues with the
next line. pandas skips such rows without reporting their lines, and an open quote swallows the rest of the file.
"""

from __future__ import annotations

import csv
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from bertrio.core.errors import UserError
from bertrio.core.files import parquet_batches
from bertrio.data.table import BATCH

MAX_LINES = 1000  # of one record; a quote that is still open after them is a stray quote
csv.field_size_limit(2**31 - 1)  # the default, 128 KiB, is shorter than a long text


class RawRow(NamedTuple):
    """Row of a file: its `values` by column, or the `problem` that made it unreadable."""

    number: int  # 1-based line of a text file, 1-based record elsewhere
    values: dict[str, Any]
    raw: str | dict[str, Any] | None = None  # the row's text in the file, or its fields by column; None: same as values
    problem: str | None = None


class RawTable(NamedTuple):
    """Rows of a source: its column names, and a function that reads the rows, with their values by column.

    Each call reads them anew, so that they need not stay in memory; a stream, such as standard input, is read once.
    """

    columns: list[str]
    rows: Callable[[], Iterator[RawRow]]


class _Record(NamedTuple):
    number: int
    raw: str
    fields: list[str]
    problem: str | None = None


def read_delimited(path: str | Path, delimiter: str, file: BinaryIO | None = None) -> RawTable:
    """Return the column names and the records of a file with standard quoting; one record is in memory at a time.

    If `file` is given, such as standard input, it is read instead, and messages call it `path`.

    Empty lines are skipped. Problems of a record are `damaged quoting` (a quote that is not closed within `MAX_LINES`
    lines, text after a closing quote, or, in a TSV, a quoted field that holds both a tab and a line end, which is a
    stray quote that swallowed the next row), `wrong number of columns` and `not UTF-8`.

    Raises:
        UserError: if the file is missing or empty, or its header is damaged.
    """
    records = _records(_open(path) if file is None else file, delimiter)
    header = next(records, None)
    if header is None or header.problem:
        cause = "nothing, the file is empty" if header is None else f"{header.problem} in line {header.number}"
        raise UserError(f"{path}: found {cause}; expected column names in its first line; save the file as UTF-8")
    if "\r" in header.raw.replace("\r\n", "\n"):
        raise UserError(f"{path}: found line ends of old Macintosh files, expected those of Unix or Windows")
    columns = [name.strip() for name in header.fields]
    if file is None:
        return RawTable(columns, lambda: islice(_rows(_records(_open(path), delimiter), columns), 1, None))
    return RawTable(columns, lambda: _rows(records, columns))


def _open(path: str | Path) -> BinaryIO:
    try:
        return open(path, "rb")
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror})") from error


def _rows(records: Iterable[_Record], columns: list[str]) -> Iterator[RawRow]:
    for number, raw, fields, problem in records:
        if problem is None and len(fields) != len(columns):
            problem = "wrong number of columns"
        yield RawRow(number, {} if problem else dict(zip(columns, fields, strict=True)), raw, problem)


def _records(file: BinaryIO, delimiter: str) -> Iterator[_Record]:
    with closing(file):
        lines = map(_decoded, enumerate(file, start=1))
        ahead: deque[tuple[int, str]] = deque()  # lines read ahead by the search for a closing quote
        while item := ahead.popleft() if ahead else next(lines, None):
            number, line = item
            if '"' in line and line == _readable(line):
                yield _quoted(number, line, lines, ahead, delimiter)
            elif raw := line.rstrip("\r\n"):
                yield _checked(number, raw, raw.split(delimiter))


def _decoded(item: tuple[int, bytes]) -> tuple[int, str]:
    """Decode a numbered line; bytes that are not UTF-8 become lone surrogates, and NUL bytes are dropped."""
    number, line = item
    encoding = "utf-8-sig" if number == 1 else "utf-8"
    return number, line.decode(encoding, "surrogateescape").replace("\0", "")


def _quoted(
    number: int, line: str, lines: Iterator[tuple[int, str]], ahead: deque[tuple[int, str]], delimiter: str
) -> _Record:
    """Parse the record that begins with `line`; lines of later records that were read stay in `ahead`."""

    def following() -> Iterator[str]:
        yield from (text for _, text in ahead)
        for item in islice(lines, MAX_LINES - 1 - len(ahead)):
            ahead.append(item)
            yield item[1]

    reader = csv.reader(chain([line], following()), delimiter=delimiter, strict=True)
    try:
        fields = next(reader)
        if delimiter == "\t" and any("\t" in field and "\n" in field for field in fields):
            raise csv.Error("a stray quote swallowed the next row")
    except csv.Error:
        return _checked(number, line.rstrip("\r\n"), [], "damaged quoting")
    rest = [ahead.popleft()[1] for _ in range(reader.line_num - 1)]
    return _checked(number, "".join([line, *rest]).rstrip("\r\n"), fields)


def _checked(number: int, raw: str, fields: list[str], problem: str | None = None) -> _Record:
    """Make a record; bytes that are not UTF-8 are replaced by U+FFFD in its text."""
    readable = _readable(raw)
    return _Record(number, readable, fields, problem if readable == raw else "not UTF-8")


def _readable(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def read_json_lines(file: BinaryIO) -> Iterator[RawRow]:
    """Yield the objects of a file in UTF-8, which may begin with a byte-order mark; empty lines are skipped.

    Problems of a row are `not UTF-8`, `not valid JSON` and `not a JSON object`.
    """
    with closing(file):
        for number, line in enumerate(file, start=1):
            encoding = "utf-8-sig" if number == 1 else "utf-8"
            text = line.decode(encoding, "replace").strip()
            if not text:
                continue
            try:
                values = json.loads(line.decode(encoding))
                problem = None if isinstance(values, dict) else "not a JSON object"
            except UnicodeDecodeError:
                problem = "not UTF-8"
            except (ValueError, RecursionError):
                problem = "not valid JSON"
            yield RawRow(number, {} if problem else values, text, problem)


def _json_lines(path: Path) -> RawTable:
    def rows() -> Iterator[RawRow]:
        return read_json_lines(_open(path))

    columns, first = list(dict.fromkeys(name for row in rows() for name in row.values)), next(rows(), None)
    if not columns and (first is None or first.problem):
        cause = f"{first.problem} in line {first.number}, and so for all lines" if first else "nothing, it is empty"
        raise UserError(f"{path}: found {cause}; expected a JSON object a line, as UTF-8")
    return RawTable(columns, rows)


def _parquet(path: Path) -> RawTable:
    @contextmanager
    def reading() -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, ValueError, OverflowError) as error:  # not all values exist in Python
            reason = " ".join(str(error).split())[:300]
            raise UserError(f"{path}: can't be read as Parquet ({reason}); write it again") from error

    def rows() -> Iterator[RawRow]:
        with reading():
            batches = (batch.to_pylist() for batch in parquet_batches(path, BATCH))
            yield from map(RawRow, count(1), chain.from_iterable(batches))

    with reading():
        return RawTable(pq.read_schema(path).names, rows)


READERS: dict[str, Callable[[Path], RawTable]] = {
    ".csv": partial(read_delimited, delimiter=","),
    ".tsv": partial(read_delimited, delimiter="\t"),
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".parquet": _parquet,
}
