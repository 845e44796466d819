"""CSV and TSV as they are met in the wild: stray quotes, NUL bytes, byte-order marks, lines that are no text.

A stray quote makes the csv module swallow everything up to the next one. Here a record whose quoting can't be right
costs its own line alone: it is reported, and reading goes on with the line after it.
"""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from bertrio.core.errors import UserError
from bertrio.data.reading import Found
from bertrio.data.table import RawRow

MOST_LINES = 1000  # of one record; an open quote is a stray one if nothing closes it by then,
MOST_LETTERS = 2**24  # nor by then
csv.field_size_limit(2**31 - 1)  # the default, 128 KiB, is shorter than a long text


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


def read_delimited(path: str | Path, delimiter: str, file: BinaryIO | None = None) -> Found:
    """The column names and the records of a file with standard quoting; one record is in memory at a time.

    Reads `file` if that is given, such as standard input, which messages then call `path`. It is closed at the end.

    Empty lines are skipped. Problems of a record are `damaged quoting` (a quote that is not closed within
    `MOST_LINES` lines or `MOST_LETTERS` letters, text after a closing quote, or, in a TSV, a quoted field that holds
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
    if problem:
        lines.close()
        raise UserError(f"{path}: {problem}")
    columns = [name.strip() for name in header[2]]
    return Found(columns, _records(lines, delimiter, columns))


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
        left = MOST_LETTERS - len(line)
        for item in islice(lines, MOST_LINES - 1):
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
