"""Batch prediction for files of any length: each row is written with its prediction in additional columns."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from io import BytesIO
from itertools import islice, zip_longest
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from bertrio.core.console import progress, say
from bertrio.core.errors import UserError
from bertrio.core.files import read_parquet
from bertrio.core.tasks import Binary, Target
from bertrio.data.formats import RawRow, RawTable, read_delimited, read_json_lines
from bertrio.data.reading import check_columns
from bertrio.data.table import Unusable, clean_text
from bertrio.inference.predictor import Prediction, Predictor, Row

CHUNK_ROWS = 8192  # held in memory and sorted by length together
DIGITS = 6  # decimals of scores and probabilities
DELIMITERS = {"tsv": "\t", "csv": ","}
ROW = "\0"  # a field of Parquet rows on their way, the number of the row


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

    Each row is written with all its fields, then `prediction` (the number of the class, or the score within its range),
    then the class's name as `prediction_label` and the probability of each class as `p_<number>` (binary: `p_no` and
    `p_yes`), or the raw `score`. Classes of multi-label tasks have | between them, and are lists in JSON. Unusable rows
    are reported on standard error and left out.

    Args:
        predictor: the model or ensemble.
        task: one of its tasks.
        format: tsv, csv or jsonl; parquet, of which the whole file is in memory.
        source: file to read, in UTF-8.
        target: file to write, in the same format.
        columns: name in the file of each of the task's text columns (`text`, or `text_a` and `text_b`) that is
            named differently there.
        name: name of the source in messages.
        strict: stop at the first unusable row.

    Returns:
        Numbers of rows that were predicted, and that were left out.

    Raises:
        UserError: if the task or a column is unknown or duplicate, a column has the name of an added one, or, with
            `strict`, a row is unusable.
    """
    spec, columns = predictor.task(task), columns or {}
    if unknown := [key for key in columns if key not in spec.text_columns]:
        expected = " or ".join(spec.text_columns)
        raise UserError(f"--columns: found {unknown[0]!r}, expected {expected}, as in {spec.text_columns[0]}=NAME")
    names, added = {key: columns.get(key, key) for key in spec.text_columns}, added_columns(spec.target)
    if format == "parquet":
        return _predict_parquet(predictor, task, source, target, names, name, strict)
    delimiter = DELIMITERS.get(format)
    table = read_delimited(name, delimiter, source) if delimiter else RawTable([], lambda: read_json_lines(source))
    if delimiter:
        _check_names(name, table.columns, names, added)
        target.write(delimited_line([*table.columns, *added], delimiter))
    predicted, left_out, unread = 0, 0, table.rows()
    with progress(f"{task}: predicting") as bar:
        while chunk := list(islice(unread, CHUNK_ROWS)):
            fields_of_rows = {field: None for row in chunk for field in row.values}
            if not delimiter and not predicted + left_out and fields_of_rows:
                _check_names(name, fields_of_rows, names, added)
            usable: list[tuple[dict[str, Any], Row]] = []
            for row in chunk:
                where = f"{name}: {'row' if ROW in row.values else 'line'} {row.number}"
                try:
                    usable.append((row.values, _texts(row, names.values())))
                except Unusable as reason:
                    if strict:
                        raise UserError(f"{where}: {reason}; without --strict such rows are left out") from None
                    say(f"{where}: {reason}; left out")
            predictions = predictor.predict(task, [texts for _, texts in usable])
            for (values, _), prediction in zip(usable, predictions):
                fields = values | dict(zip(added, _added_values(prediction)))
                target.write(delimited_line(fields.values(), delimiter) if delimiter else _json_line(fields))
            target.flush()
            predicted, left_out = predicted + len(usable), left_out + len(chunk) - len(usable)
            bar.advance(len(chunk))
    return predicted, left_out


def _predict_parquet(
    predictor: Predictor, task: str, source: BinaryIO, target: BinaryIO, names: dict[str, str], name: str, strict: bool
) -> tuple[int, int]:
    """Predict a Parquet file by its texts as JSON lines; the other columns keep their types."""
    added, answers = added_columns(predictor.task(task).target), BytesIO()
    try:
        table = read_parquet(BytesIO(source.read()))
        _check_names(name, table.column_names, names, added)
        for column in table.select(list(names.values())).schema:
            if not any(map(column.type.equals, (pa.string(), pa.large_string(), pa.string_view(), pa.null()))):
                raise UserError(f"{name}: column {column.name}: found the type {column.type}, expected text")
        rows = table.select(list(names.values())).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{name}: can't be read as Parquet ({' '.join(str(error).split())[:300]})") from error
    lines = BytesIO(b"".join(_json_line({ROW: number, **row}) for number, row in enumerate(rows)))
    counts = predict_file(predictor, task, "jsonl", lines, answers, names, name, strict)
    answered = [json.loads(line) for line in answers.getvalue().splitlines()]
    written = table.take(pa.array([fields[ROW] for fields in answered], pa.int64()))
    for column, type in added.items():
        written = written.append_column(column, [pa.array([fields[column] for fields in answered], type)])
    pq.write_table(written, target)
    return counts


def _check_names(name: str, columns: Iterable[str], names: Mapping[str, str], added: Iterable[str]) -> None:
    """Check that a file has each text column once, and no column `added`; `names` holds their names there by ours.

    Raises:
        UserError: if not; the message on text columns has a value for `--columns` to fill in or to take over.
    """
    if taken := [column for column in columns if column in added]:
        raise UserError(f"{name}: found a column {taken[0]!r}, which predict adds; rename it")
    missing = [ours for ours, theirs in names.items() if theirs not in columns]
    others = [column for column in columns if column not in ("id", "label", *names.values())]
    pairs = zip_longest(missing, others[: len(missing)], fillvalue="NAME")
    option = shlex.join(f"{ours}={theirs}" for ours, theirs in pairs)
    hint = f"; rename columns in the file, or say which are meant, such as --columns {option}"
    expected = dict.fromkeys([*names.values(), *columns])
    check_columns(name, columns, expected, hint, "; if so, set --format tsv or csv")


def added_columns(target: Target) -> dict[str, pa.DataType]:
    """Return the names of the columns that are added to each row, and their types in Parquet."""
    if not target.discrete:
        return {"prediction": pa.float64(), "score": pa.float64()}
    number, name = pa.int64(), pa.string()
    if target.sets:
        number, name = pa.list_(number), pa.list_(name)
    classes = ("no", "yes") if isinstance(target, Binary) else range(target.size)
    return {"prediction": number, "prediction_label": name, **{f"p_{label}": pa.float64() for label in classes}}


def delimited_line(values: Iterable[Any], delimiter: str) -> bytes:
    """Return one line of a delimited file with standard quoting; floats get `DIGITS` decimals."""
    return (delimiter.join(_field(value, delimiter) for value in values) + "\n").encode()


def _field(value: Any, delimiter: str) -> str:
    # csv.writer does not quote carriage returns, which many readers take for the end of a line
    text = f"{value:.{DIGITS}f}" if isinstance(value, float) else str(value)
    text = "|".join(map(str, value)) if isinstance(value, tuple) else text
    if any(letter in text for letter in (delimiter, '"', "\n", "\r")):
        return '"' + text.replace('"', '""') + '"'
    return text


def _json_line(fields: dict[str, Any]) -> bytes:
    # lone surrogates have no UTF-8; JSON reads backslash escapes of them
    return (json.dumps(fields, ensure_ascii=False) + "\n").encode(errors="backslashreplace")


def _added_values(prediction: Prediction) -> list[Any]:
    label, probabilities, score, name = prediction
    values = (label, score) if probabilities is None else (label, name, *probabilities)
    return [round(value, DIGITS) if isinstance(value, float) else value for value in values]


def _texts(row: RawRow, names: Iterable[str]) -> Row:
    """Return the text, or the pair of texts, of a row.

    Raises:
        Unusable: if a text is missing or empty.
    """
    if row.problem:
        raise Unusable(row.problem)
    texts = []
    for name in names:
        try:
            texts.append(clean_text(row.values.get(name)))
        except Unusable as reason:
            raise Unusable(f"{name}: {reason}") from None
    return texts[0] if len(texts) == 1 else (texts[0], texts[1])
