"""Tables of text that read the same on the terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDE = 180  # characters


@dataclass(frozen=True)
class Sheet:
    """A table of text: the first `words` columns hold words and are set left, the others numbers."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    words: int = 1

    def markdown(self) -> str:
        """The table in Markdown, its title in bold above it."""
        rules = [":--" if place < self.words else "--:" for place in range(len(self.header))]
        lines = [_line(self.header), _line(rules), *[_line(row) for row in self.rows]]
        return "\n".join([*([f"**{self.title}**", ""] if self.title else []), *lines, ""])

    def show(self, console: Console) -> None:
        """Prints it; what does not fit is wrapped and never cut."""
        table = Table(title=Text(self.title) if self.title else None, title_justify="left")
        for place, name in enumerate(self.header):
            table.add_column(Text(name), justify="left" if place < self.words else "right", overflow="fold")
        for row in self.rows:
            table.add_row(*[Text(cell) for cell in row])
        console.print(table)


def console_for_sheets() -> Console:
    """Standard output; where it is no terminal, wide enough for most tables to stay on a line a row."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDE)


def signed(value: float, low: float, high: float) -> str:
    """A difference with its interval, as in +0.012 [-0.003, +0.027]."""
    return f"{value:+.3f} [{low:+.3f}, {high:+.3f}]"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"
