"""JSON Lines as they are met in the wild: an object a line, one in memory at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from bertrio.data.table import RawRow


def read_json_lines(file: BinaryIO) -> Iterator[RawRow]:
    """The objects of a file in UTF-8, which may begin with a byte-order mark; empty lines are skipped.

    Problems of a row are `not UTF-8`, `not valid JSON` and `not a JSON object`.
    """
    for number, line in enumerate(file, start=1):
        encoding, damaged = "utf-8-sig" if number == 1 else "utf-8", False
        try:
            text = line.decode(encoding)
        except UnicodeDecodeError:
            text, damaged = line.decode(encoding, "replace"), True
        if text := text.strip():
            yield _row(number, text, damaged)


def _row(number: int, text: str, damaged: bool) -> RawRow:
    if damaged:
        return RawRow(number, {}, text, "not UTF-8")
    try:
        values: Any = json.loads(text)
    except (ValueError, RecursionError):
        return RawRow(number, {}, text, "not valid JSON")
    if not isinstance(values, dict):
        return RawRow(number, {}, text, "not a JSON object")
    return RawRow(number, values, text)
