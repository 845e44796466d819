"""Numbers and values as cells of the report's tables."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from bertrio.experiments.page import Bar, Cell, Column, Table
from bertrio.tasks import Task

ABSENT = "-"
SCIENTIFIC = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]\d+")  # YAML takes it for text without a dot; no hash has a sign
Interval = Sequence[float] | None


def number(value: float | None) -> Cell:
    """A count or a measure; a dash where there is none."""
    return Cell(ABSENT) if value is None else Cell(plain(value), key=value)


def measured(value: float | None, interval: Interval = None, bar: Bar | None = None) -> Cell:
    """A metric with its interval, as in 0.862 [0.841, 0.882]."""
    if value is None:
        return Cell(ABSENT)
    return Cell(short(value) if interval is None else f"{short(value)} [{spread(interval)}]", key=value, bar=bar)


def scale(values: Sequence[float]) -> tuple[float, float]:
    """A line to draw values of 0 to 1 on (or -1 to 1), from one tenth to another, so that small differences show."""
    tenths = [10 * value for value in values] or [0.0, 10.0]
    least, most = int(min(tenths) // 1), -int(-max(tenths) // 1)
    return least / 10, max(most, least + 1) / 10


def between(least: float, most: float) -> str:
    """What says how a line is to be read."""
    return f"Lines run from {least:g} to {most:g}."


def answer(value: float | None, task: Task) -> Cell:
    """A label or prediction of the task."""
    return Cell(said(value, task), key=value)


def said(value: float | None, task: Task) -> str:
    """A label or prediction in words: the name or number of a class, a score with two decimals."""
    if value is None:
        return ABSENT
    return task.target.name_of(value) if task.target.discrete else f"{value:.2f}"


def records(title: str, first: str, found: Mapping[str, Mapping[str, float | str | None]]) -> Table:
    """A table of dicts of numbers and words: a row each, a column a key."""
    keys = list(dict.fromkeys(key for of in found.values() for key in of))
    columns = [Column(first, "word"), *[Column(key.replace("_", " ")) for key in keys]]
    rows = [[Cell(name), *[_told(of.get(key)) for key in keys]] for name, of in found.items()]
    return Table(title, columns, rows)


def _told(value: float | str | None) -> Cell:
    return Cell(value) if isinstance(value, str) else number(value)


def leaves(value: Any, name: str = "") -> dict[str, str]:
    """Every setting by its dotted name, written alike whether YAML read it as a number or, as 2e-05, as text."""
    if not isinstance(value, dict) or not value:
        return {name: _setting(value)}
    blocks = [leaves(own, f"{name}.{key}" if name else str(key)) for key, own in value.items()]
    return {key: text for block in blocks for key, text in block.items()}


def _setting(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_setting(item) for item in value)}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "{}"
    if isinstance(value, str) and not SCIENTIFIC.fullmatch(value):
        return value
    return f"{float(value):.12g}" if is_number(value) else str(value)


def plain(value: float) -> str:
    """A number for people: thousands apart, one decimal from 100 on, else three, or three digits of small ones."""
    if float(value).is_integer():
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:,.1f}"
    return f"{value:,.3f}" if abs(value) >= 0.1 else f"{value:.3g}"


def short(value: float) -> str:
    """A metric."""
    return f"{value:.3f}"


def spread(interval: Sequence[float]) -> str:
    """The ends of an interval."""
    return f"{interval[0]:.3f}, {interval[1]:.3f}"


def chance(p: float | None) -> str:
    """A p-value in words."""
    if p is None:
        return ABSENT
    return "below 0.001" if p < 0.001 else f"{p:.3f}"


def is_number(value: Any) -> bool:
    """Whether it is a finite number, or a text that reads as one."""
    try:
        return math.isfinite(float(value)) and not isinstance(value, bool)
    except (OverflowError, TypeError, ValueError):
        return False
