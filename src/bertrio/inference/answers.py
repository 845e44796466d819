"""Answers for files of any length: rows come in, and go out with what is predicted for each of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple, Protocol

from bertrio.core.console import progress, say
from bertrio.core.errors import UserError
from bertrio.core.tasks import Target
from bertrio.data.delimited import read_delimited
from bertrio.data.json_lines import read_json_lines
from bertrio.data.reading import Found, check_columns
from bertrio.data.table import RawRow, Unusable, clean_text
from bertrio.inference.predictor import Prediction, Predictor

CHUNK_ROWS, CHUNK_LETTERS = 8192, 2**24  # that are in memory and sorted by length together
DIGITS = 6  # decimals of scores and probabilities

Fields = dict[str, Any]


class Count(NamedTuple):
    """How many rows were answered, and how many were left out."""

    answered: int
    left_out: int


class Format(Protocol):
    """A kind of file that is read and written."""

    def read(self, file: BinaryIO, name: str) -> Found:
        """Column names, none where each row has its own, and rows, one in memory at a time."""

    def header(self, columns: Iterable[str]) -> str:
        """What the file begins with."""

    def line(self, values: Fields) -> str:
        """A row."""


class Delimited:
    """Text with a header and standard quoting."""

    def __init__(self, delimiter: str) -> None:
        self._delimiter = delimiter

    def read(self, file: BinaryIO, name: str) -> Found:
        return read_delimited(name, self._delimiter, file)

    def header(self, columns: Iterable[str]) -> str:
        return self._delimiter.join(map(self._field, columns)) + "\n"

    def line(self, values: Fields) -> str:
        return self.header(values.values())

    def _field(self, value: Any) -> str:
        """Quoted where it must be; Python's csv writer leaves a carriage return bare, which many take for a line's
        end."""
        text = f"{value:.{DIGITS}f}" if isinstance(value, float) else str(value)
        if any(letter in text for letter in (self._delimiter, '"', "\n", "\r")):
            return '"' + text.replace('"', '""') + '"'
        return text


class JsonLines:
    """An object a line."""

    def read(self, file: BinaryIO, name: str) -> Found:
        return Found([], map(_as_json_has_it, read_json_lines(file)))

    def header(self, columns: Iterable[str]) -> str:
        return ""

    def line(self, values: Fields) -> str:
        text = json.dumps(values, ensure_ascii=False)
        if any("\ud800" <= letter <= "\udfff" for letter in text):  # half a character, which only an escape can hold
            text = json.dumps(values)
        return text + "\n"


def _as_json_has_it(row: RawRow) -> RawRow:
    """The row, which is a bad one if it has a number that could not go out again: Python reads NaN and Infinity, which
    no JSON has, and takes 1e999 for the latter."""
    try:
        json.dumps(row.values, allow_nan=False)
    except ValueError:
        return RawRow(row.number, {}, row.raw, "a number is NaN, infinite or too large; JSON has null")
    return row


FORMATS: dict[str, Format] = {"tsv": Delimited("\t"), "csv": Delimited(","), "jsonl": JsonLines()}


def answer_file(
    predictor: Predictor,
    task: str,
    kind: str,
    source: BinaryIO,
    target: BinaryIO,
    columns: Mapping[str, str] | None = None,
    name: str = "standard input",
    strict: bool = False,
) -> Count:
    """Answers all rows of a file, in their order, a few thousand at a time.

    A row goes out with all the fields that it came with, and after them `prediction` (the class's name or number, or
    the score within its range), the probability of each class as `p_<class>`, or the raw `score`, see `added_fields`.
    A row that can't be answered is told of on standard error and goes nowhere.

    Args:
        predictor: what answers.
        task: one of its tasks.
        kind: name in `FORMATS`.
        source: what to read, in UTF-8.
        target: what to write, in the same format.
        columns: name of the column for each of the task's text columns; those left out are called as in the layout
            (`text`, or `text_a` and `text_b`).
        name: what messages call the source.
        strict: whether the first row that can't be answered ends it all.

    Raises:
        UserError: if the task or a column is unknown or stands twice, a column is called like one that would be added,
            or, with `strict`, for the first row that can't be answered.
    """
    of = predictor.task(task)
    names = _text_columns(of.text_columns, columns or {})
    added = added_fields(of.target)
    form = FORMATS[kind]
    found = form.read(source, name)
    if found.columns:
        check_columns(name, found.columns, dict.fromkeys([*names, *found.columns]), "; see --columns")
        _check_added(found.columns, added, name)
        target.write(form.header([*found.columns, *added]).encode())

    def left_out(number: int, reason: str) -> None:
        if strict:
            raise UserError(f"{name}: line {number}: {reason}; without --strict such rows are left out")
        say(f"{name}: line {number}: {reason}; left out")

    answered = read = 0
    with progress(f"{task}: predicting") as bar:
        for chunk in _chunks(found.rows):
            rows = list(_usable(chunk, names, added, left_out))
            answers = predictor.predict(task, [texts for _, texts in rows])
            for (values, _), answer in zip(rows, answers):
                target.write(form.line({**values, **_fields(of.target, added, answer)}).encode())
            target.flush()
            answered, read = answered + len(rows), read + len(chunk)
            bar.advance(len(chunk))
    return Count(answered, read - answered)


def added_fields(target: Target) -> list[str]:
    """The names of what is added to each row."""
    return ["prediction", *[f"p_{outcome}" for outcome in target.outcomes], *([] if target.discrete else ["score"])]


def _fields(target: Target, added: list[str], answer: Prediction) -> Fields:
    said = target.name_of(answer.label) if target.labels else answer.label
    rest = [answer.score] if answer.probabilities is None else answer.probabilities
    return dict(zip(added, [said if isinstance(said, (str, int)) else round(said, DIGITS), *_rounded(rest)]))


def _rounded(values: Iterable[float]) -> list[float]:
    return [round(value, DIGITS) for value in values]


def _text_columns(ours: tuple[str, ...], columns: Mapping[str, str]) -> list[str]:
    """The columns that hold the task's texts."""
    for name in columns:
        if name not in ours:
            raise UserError(f"--columns: found {name!r}, expected {' or '.join(ours)}, as in {ours[0]}=NAME")
    return [columns.get(name, name) for name in ours]


def _chunks(rows: Iterable[RawRow]) -> Iterator[list[RawRow]]:
    chunk: list[RawRow] = []
    letters = 0
    for row in rows:
        chunk.append(row)
        letters += len(row.raw or "")
        if len(chunk) == CHUNK_ROWS or letters >= CHUNK_LETTERS:
            yield chunk
            chunk, letters = [], 0
    if chunk:
        yield chunk


def _usable(
    chunk: list[RawRow], names: list[str], added: list[str], left_out: Callable[[int, str], None]
) -> Iterator[tuple[Fields, Any]]:
    """The fields of each row that can be answered, and its text or texts; the others go to `left_out`."""
    for row in chunk:
        try:
            if row.problem:
                raise Unusable(row.problem)
            texts = tuple(_text(row.values, name) for name in names)
            for name in added:
                if name in row.values:
                    raise Unusable(f"it has a field {name!r} already; call it otherwise")
            yield row.values, texts if len(texts) > 1 else texts[0]
        except Unusable as reason:
            left_out(row.number, str(reason))


def _text(values: Fields, name: str) -> str:
    try:
        return clean_text(values.get(name))
    except Unusable as reason:
        raise Unusable(f"{name}: {reason}") from None


def _check_added(columns: list[str], added: list[str], name: str) -> None:
    there = [column for column in added if column in columns]
    if there:
        raise UserError(f"{name}: found a column {there[0]!r}, which is to be added; call yours otherwise")
