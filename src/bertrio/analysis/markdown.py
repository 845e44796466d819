"""Pieces of Markdown: texts of users as they are, tables, and numbers with their intervals."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def escaped(text: object) -> str:
    """A text as Markdown that shows it as it is: on one line, without markup, links, HTML or table cells of its own."""
    line = " ".join(str(text).split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = re.sub(r"([\\`*_{}\[\]!|~$^])", r"\\\1", line)
    line = re.sub(r"(?i)\b(https?|ftp|mailto):", r"\1&#58;", line)  # bare addresses become links by themselves
    return re.sub(r"(?i)\bwww\.", "www&#46;", line).replace("@", "&#64;")


def paragraphs(*parts: str) -> str:
    """Those that say something, with a blank line between."""
    return "\n\n".join(part for part in parts if part)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; cells are Markdown already."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def measured(value: float | None, interval: Sequence[float] | None) -> str:
    """A figure with the ends of its interval, as far as there are any."""
    if value is None:
        return "-"
    return f"{value:.3f}" if interval is None else f"{value:.3f} [{interval[0]:.3f}, {interval[1]:.3f}]"


def ends(of: Mapping[str, Any]) -> tuple[float, float] | None:
    """The ends of the interval that stands beside a figure."""
    return None if of.get("low") is None else (of["low"], of["high"])


def plain(value: float | None) -> str:
    """A number, whole ones without decimals."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.3f}"


def several(names: Iterable[str]) -> str:
    """One or more names as a phrase."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
