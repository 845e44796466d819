"""Tables of text that read the same on the terminal and in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDE = 180  # characters
BRACKET = re.compile(r" (?=[\[(])")  # what is before one


@dataclass(frozen=True)
class Sheet:
    """A table of text: the first `words` columns hold words and are set left, the others numbers.

    The first column names the rows. `groups`: how many of the others, from left to right, are read together, and stay
    together where the terminal is too narrow for all; each alone if it is empty.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    words: int = 1
    groups: Sequence[int] = ()

    def markdown(self) -> str:
        """The table in Markdown, its title in bold above it."""
        rules = [":--" if place < self.words else "--:" for place in range(len(self.header))]
        lines = [_line(self.header), _line(rules), *[_line(row) for row in self.rows]]
        return "\n".join([*([f"**{self.title}**", ""] if self.title else []), *lines, ""])

    def show(self, console: Console) -> None:
        """Prints it, with the names of rows and columns whole.

        Where it is too wide, what is in brackets goes on a line of its own; where that does not do, it is printed as
        several tables, each with the names of the rows.
        """
        for sheet in [self] if self._width <= console.width else self._narrow._fitting(console.width):
            sheet._print(console)

    def _print(self, console: Console) -> None:
        table = Table(title=Text(self.title) if self.title else None, title_justify="left")
        if self._width > console.width:  # nothing is left to be done: the terminal breaks the lines
            table.width = self._width
        for place, name in enumerate(self.header):
            side = "left" if place < self.words else "right"
            table.add_column(Text(name), justify=side, no_wrap=place == 0, overflow="fold")
        for row in self.rows:
            table.add_row(*[Text(cell) for cell in row])
        console.print(table, crop=False)

    @property
    def _widths(self) -> list[int]:
        """Of each column, with the line and the blanks beside it."""
        columns = zip(self.header, *self.rows)
        return [3 + max(cell_len(line) for cell in column for line in cell.split("\n")) for column in columns]

    @property
    def _width(self) -> int:
        return sum(self._widths) + 1

    @property
    def _narrow(self) -> Sheet:
        """The same with brackets below what they belong to, and tasks above their columns."""
        header = [name.replace(": ", ":\n") for name in self.header]
        rows = [[BRACKET.sub("\n", cell) for cell in row] for row in self.rows]
        return replace(self, header=header, rows=rows)

    def _fitting(self, width: int) -> Iterator[Sheet]:
        """Parts of it that are as wide as this, or one group of columns."""
        widths, start, left = self._widths, 1, list(self.groups) or [1] * (len(self.header) - 1)
        while left:
            count = left.pop(0)
            while left and sum(widths[start : start + count + left[0]]) + widths[0] + 1 <= width:
                count += left.pop(0)
            yield self._part(start, start + count)
            start += count

    def _part(self, start: int, end: int) -> Sheet:
        header, *rows = [[row[0], *row[start:end]] for row in (self.header, *self.rows)]
        return Sheet(header, rows, self.title if start == 1 else "", max(1, self.words - start + 1))


def console_for_sheets() -> Console:
    """Standard output; where it is no terminal, wide enough for most tables to stay on a line a row."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDE)


def signed(value: float, low: float, high: float) -> str:
    """A difference with its interval, as in +0.012 [-0.003, +0.027]."""
    return f"{value:+.3f} [{low:+.3f}, {high:+.3f}]"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"
