"""File formats of rows: CSV, TSV, JSON Lines and Parquet.

A damaged row costs no other row: it is reported with its line and the reason, and reading goes on with the next line.
In particular a stray quote, which makes the csv module swallow everything up to the next quote, costs its own line.
"""

from __future__ import annotations

import csv
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from bertrio.core.errors import UserError

MAX_LINES = 1000  # of one record; an open quote is a stray one if nothing closes it by then,
MAX_LETTERS = 2**24  # nor by then
csv.field_size_limit(2**31 - 1)  # the default, 128 KiB, is shorter than a long text


class RawRow(NamedTuple):
    """A row as read: its `values` by column, or the `problem` that kept it from being read."""

    number: int  # 1-based line of a text file, 1-based record elsewhere
    values: dict[str, Any]
    raw: str | dict[str, Any] | None = None  # as it stood in the file, or its fields by column; None: as values
    problem: str | None = None


class RawTable(NamedTuple):
    """Rows as a source has them: their column names, the rows with values under these, and how many if known."""

    columns: list[str]
    rows: Iterable[RawRow]
    total: int | None = None


class _Lines:
    """Numbered lines of a UTF-8 file, which can be handed back; line ends are `\\n` or `\\r\\n`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._back: deque[tuple[int, str]] = deque()
        self._numbered = enumerate(self._file, start=1)

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> tuple[int, str]:
        if self._back:
            return self._back.popleft()
        number, line = next(self._numbered)
        # surrogateescape keeps what is no UTF-8 recognisable; a NUL byte never means anything in a text
        return number, line.decode("utf-8-sig" if number == 1 else "utf-8", "surrogateescape").replace("\0", "")

    def hand_back(self, lines: list[tuple[int, str]]) -> None:
        self._back.extendleft(reversed(lines))

    def close(self) -> None:
        self._file.close()


def read_delimited(path: str | Path, delimiter: str, file: BinaryIO | None = None) -> RawTable:
    """The column names and the records of a file with standard quoting; one record is in memory at a time.

    Reads `file` if that is given, such as standard input, which messages then call `path`. It is closed at the end.

    Empty lines are skipped. Problems of a record are `damaged quoting` (a quote that is not closed within
    `MAX_LINES` lines or `MAX_LETTERS` letters, text after a closing quote, or, in a TSV, a quoted field that holds
    both a tab and a line end, which is a stray quote that swallowed the next row), `wrong number of columns` and
    `not UTF-8`.

    Raises:
        UserError: if the file is missing or empty, or its header is no UTF-8.
    """
    try:
        lines = _Lines(open(path, "rb") if file is None else file)  # noqa: SIM115 - closed with the records
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror})") from error
    try:
        header = next(_fields(lines, delimiter), None)
        problem = _header_problem(header)
    except OSError as error:
        problem = f"can't be read ({error.strerror})"
    if problem or header is None:
        lines.close()
        raise UserError(f"{path}: {problem}")
    columns = [name.strip() for name in header[2]]
    return RawTable(columns, _records(lines, delimiter, columns))


def _header_problem(header: tuple[int, str, list[str], str | None] | None) -> str | None:
    """Why the first record can't be column names."""
    if header is None:
        return "found nothing, the file is empty; expected column names as UTF-8 text in its first line"
    number, raw, _, problem = header
    if problem:
        advice = "; save the file as UTF-8" if problem == "not UTF-8" else ""
        return f"found {problem} in line {number}, expected column names as UTF-8 text{advice}"
    if "\r" in raw.split("\n")[0].rstrip("\r"):
        return "found line ends of old Macintosh files (a carriage return alone), expected those of Unix or Windows"
    return None


def _records(lines: _Lines, delimiter: str, columns: list[str]) -> Iterator[RawRow]:
    try:
        for number, raw, fields, problem in _fields(lines, delimiter):
            if problem is None and len(fields) != len(columns):
                problem = "wrong number of columns"
            yield RawRow(number, {} if problem else dict(zip(columns, fields, strict=True)), raw, problem)
    finally:
        lines.close()


def _fields(lines: _Lines, delimiter: str) -> Iterator[tuple[int, str, list[str], str | None]]:
    """First line's number, text, fields, and problem of each record."""
    for number, line in lines:
        raw = line.rstrip("\r\n")
        if not raw:
            continue
        if _is_damaged(raw):
            yield number, _readable(raw), [], "not UTF-8"
        elif '"' not in raw:
            yield number, raw, raw.split(delimiter), None
        else:
            yield _quoted(number, line, lines, delimiter)


def _is_damaged(text: str) -> bool:
    """Whether there are bytes in it that are no UTF-8."""
    return not text.isascii() and any("\udc80" <= letter <= "\udcff" for letter in text)


def _readable(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _quoted(number: int, line: str, lines: _Lines, delimiter: str) -> tuple[int, str, list[str], str | None]:
    taken: list[tuple[int, str]] = []

    def text() -> Iterator[str]:
        yield line
        left = MAX_LETTERS - len(line)
        for item in islice(lines, MAX_LINES - 1):
            taken.append(item)
            left -= len(item[1])
            if left < 0:
                return
            yield item[1]

    try:
        fields = next(csv.reader(text(), delimiter=delimiter, strict=True))
        swallowed = delimiter == "\t" and any("\t" in field and "\n" in field for field in fields)
    except csv.Error:
        fields, swallowed = [], True
    if swallowed:
        lines.hand_back(taken)
        return number, line.rstrip("\r\n"), [], "damaged quoting"
    raw = "".join([line, *(item[1] for item in taken)]).rstrip("\r\n")
    return (number, _readable(raw), [], "not UTF-8") if _is_damaged(raw) else (number, raw, fields, None)


def read_json_lines(file: BinaryIO) -> Iterator[RawRow]:
    """The objects of a file in UTF-8, which may begin with a byte-order mark; empty lines are skipped.

    Problems of a row are `not UTF-8`, `not valid JSON` and `not a JSON object`.
    """
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
    try:
        with open(path, "rb") as file:
            rows = list(read_json_lines(file))
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror})") from error
    columns = dict.fromkeys(name for row in rows for name in row.values)  # a set that keeps its order
    if all(row.problem for row in rows):
        found = f"{rows[0].problem} in line {rows[0].number}, and so for all lines" if rows else "nothing, it is empty"
        raise UserError(f"{path}: found {found}; expected a JSON object a line, as UTF-8")
    return RawTable(list(columns), rows, len(rows))


def _parquet(path: Path) -> RawTable:
    with _parquet_errors(path):
        file = pq.ParquetFile(path)
        return RawTable(file.schema_arrow.names, _parquet_rows(path, file), file.metadata.num_rows)


def _parquet_rows(path: Path, file: pq.ParquetFile) -> Iterator[RawRow]:
    with _parquet_errors(path):
        rows = (values for batch in file.iter_batches() for values in batch.to_pylist())
        for number, values in enumerate(rows, start=1):
            yield RawRow(number, values)


@contextmanager
def _parquet_errors(path: Path) -> Iterator[None]:
    """Damage shows when a file is opened, or only when its pages are read; some values have no equal in Python."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"{path}: can't be read as Parquet ({reason}); write it again") from error


READERS: dict[str, Callable[[Path], RawTable]] = {
    ".csv": partial(read_delimited, delimiter=","),
    ".tsv": partial(read_delimited, delimiter="\t"),
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".parquet": _parquet,
}
