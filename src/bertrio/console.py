"""The terminal: one console, progress bars that fall silent where nobody watches, result tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

console = Console(stderr=True, highlight=False)


class Bar:
    """One running progress bar: `advance` moves it, `note` says what stands beside it (loss, rows per second)."""

    def __init__(self, progress: Progress, task_id: Any) -> None:
        self._progress, self._id = progress, task_id

    def advance(self, by: float = 1, note: str | None = None) -> None:
        self._progress.advance(self._id, by)
        if note is not None:
            self._progress.update(self._id, note=note)


@contextmanager
def progress(description: str, total: float | None = None) -> Iterator[Bar]:
    """Shows a progress bar on the terminal for the length of the block, and nothing when output is no terminal.

    Args:
        description: what is being done.
        total: how many steps there will be; None shows a spinner without an end.
    """
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bars:
        yield Bar(bars, bars.add_task(description, total=total, note=""))


def say(text: str) -> None:
    """Prints one line of plain text; square brackets in it are not markup."""
    console.print(text, markup=False, soft_wrap=True)


def show_table(title: str, header: list[str], rows: list[list[Any]], to: Console | None = None) -> None:
    """Prints a table; floats get four decimals, None a dash."""
    table = Table(title=title, title_justify="left")
    for index, name in enumerate(header):
        table.add_column(name, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*[_cell(value) for value in row])
    (to or console).print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
