"""Batch prediction for files of any length: each row is written with its prediction in additional columns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

from bertrio.core.console import progress, say
from bertrio.core.errors import UserError
from bertrio.core.tasks import Target
from bertrio.data.formats import RawRow, RawTable, read_delimited, read_json_lines
from bertrio.data.reading import check_columns
from bertrio.data.table import Unusable, clean_text
from bertrio.inference.predictor import Prediction, Predictor, Row

CHUNK_ROWS, CHUNK_LETTERS = 8192, 2**24  # held in memory and sorted by length together
DIGITS = 6  # decimals of scores and probabilities

Fields = dict[str, Any]


class Delimited:
    """Text with a header and standard quoting."""

    def __init__(self, delimiter: str) -> None:
        self._delimiter = delimiter

    def read(self, file: BinaryIO, name: str) -> RawTable:
        """Return column names and rows; one row is in memory at a time."""
        return read_delimited(name, self._delimiter, file)

    def line(self, values: Iterable[Any]) -> str:
        """Return one line of the file; floats get `DIGITS` decimals."""
        return self._delimiter.join(map(self._field, values)) + "\n"

    def write(self, row: Fields) -> str:
        """Return a row as a line."""
        return self.line(row.values())

    def _field(self, value: Any) -> str:
        # csv.writer leaves a carriage return unquoted, which many readers take for the end of a line
        text = f"{value:.{DIGITS}f}" if isinstance(value, float) else str(value)
        if any(letter in text for letter in (self._delimiter, '"', "\n", "\r")):
            return '"' + text.replace('"', '""') + '"'
        return text


class JsonLines:
    """One JSON object a line."""

    def read(self, file: BinaryIO, name: str) -> RawTable:
        """Return the rows, each with its own fields; one row is in memory at a time."""
        return RawTable([], map(_check_numbers, read_json_lines(file)))

    def write(self, row: Fields) -> str:
        """Return a row as a line."""
        text = json.dumps(row, ensure_ascii=False)
        if any("\ud800" <= letter <= "\udfff" for letter in text):  # half a surrogate pair has no UTF-8
            text = json.dumps(row)
        return text + "\n"


def _check_numbers(row: RawRow) -> RawRow:
    """Mark a row as unusable if it has a number that JSON cannot hold: Python reads NaN, Infinity and 1e999."""
    try:
        json.dumps(row.values, allow_nan=False)
    except ValueError:
        return RawRow(row.number, {}, row.raw, "a number is NaN, infinite or too large; JSON has null")
    return row


TSV = Delimited("\t")
FORMATS: dict[str, Delimited | JsonLines] = {"tsv": TSV, "csv": Delimited(","), "jsonl": JsonLines()}


def predict_file(
    predictor: Predictor,
    task: str,
    format: str,
    source: BinaryIO,
    target: BinaryIO,
    columns: Mapping[str, str] | None = None,
    name: str = "standard input",
    strict: bool = False,
) -> tuple[int, int]:
    """Predict all rows of a file in their order, a few thousand at a time.

    Each row is written with all its fields, then `prediction` (the class's name or number, or the score within its
    range), then the probability of each class as `p_<class>`, or the raw `score`. Unusable rows are reported on
    standard error and left out.

    Args:
        predictor: the model or ensemble.
        task: one of its tasks.
        format: name in `FORMATS`.
        source: file to read, in UTF-8.
        target: file to write, in the same format.
        columns: name in the file of each of the task's text columns (`text`, or `text_a` and `text_b`) that is
            called otherwise there.
        name: name of the source in messages.
        strict: stop at the first unusable row.

    Returns:
        Numbers of rows that were predicted, and that were left out.

    Raises:
        UserError: if the task or a column is unknown or duplicate, a column has the name of one that is added, or,
            with `strict`, for the first unusable row.
    """
    spec, form = predictor.task(task), FORMATS[format]
    columns, known = columns or {}, spec.text_columns
    if unknown := [name for name in columns if name not in known]:
        raise UserError(f"--columns: found {unknown[0]!r}, expected {' or '.join(known)}, as in {known[0]}=NAME")
    names, added = [columns.get(name, name) for name in known], added_columns(spec.target)
    found = form.read(source, name)
    if isinstance(form, Delimited):
        check_columns(name, found.columns, dict.fromkeys([*names, *found.columns]), "; see --columns")
        if clash := [column for column in added if column in found.columns]:
            raise UserError(f"{name}: found a column {clash[0]!r}, which is to be added; call yours otherwise")
        target.write(form.line([*found.columns, *added]).encode())
    predicted = read = 0
    with progress(f"{task}: predicting") as bar:
        for chunk in _chunks(found.rows):
            rows: list[tuple[Fields, Row]] = []
            for row in chunk:
                try:
                    rows.append((row.values, _texts(row, names, added)))
                except Unusable as reason:
                    where = f"{name}: line {row.number}: {reason}"
                    if strict:
                        raise UserError(f"{where}; without --strict such rows are left out") from None
                    say(f"{where}; left out")
            predictions = predictor.predict(task, [texts for _, texts in rows])
            for (values, _), prediction in zip(rows, predictions):
                target.write(form.write({**values, **_added_values(spec.target, added, prediction)}).encode())
            target.flush()
            predicted, read = predicted + len(rows), read + len(chunk)
            bar.advance(len(chunk))
    return predicted, read - predicted


def added_columns(target: Target) -> list[str]:
    """Return the names of the columns that are added to each row."""
    return ["prediction", *[f"p_{outcome}" for outcome in target.outcomes], *([] if target.discrete else ["score"])]


def _added_values(target: Target, added: list[str], prediction: Prediction) -> Fields:
    label = target.name_of(int(prediction.label)) if target.labels else prediction.label
    rest = (prediction.score,) if prediction.probabilities is None else prediction.probabilities
    return dict(
        zip(added, [value if isinstance(value, (str, int)) else round(value, DIGITS) for value in (label, *rest)])
    )


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


def _texts(row: RawRow, names: list[str], added: list[str]) -> Row:
    """Return the text, or the pair of texts, of a row.

    Raises:
        Unusable: with the reason.
    """
    if row.problem:
        raise Unusable(row.problem)
    texts = []
    for name in names:
        try:
            texts.append(clean_text(row.values.get(name)))
        except Unusable as reason:
            raise Unusable(f"{name}: {reason}") from None
    for name in added:
        if name in row.values:
            raise Unusable(f"it has a field {name!r} already; call it otherwise")
    return texts[0] if len(texts) == 1 else (texts[0], texts[1])
