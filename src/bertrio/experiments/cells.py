"""Numbers and values as cells of the report's tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bertrio.core.tasks import Task
from bertrio.experiments.page import Bar, Cell, Column, Table

ABSENT = "-"
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
