"""The terminal: one console, progress bars that only terminals show, result tables."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Number
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    import pandas as pd


class Stderr:
    """Standard error that goes silent once it cannot be written: a closed terminal or pipe, a log on a full disk.
    Output never ends the work."""

    def write(self, text: str) -> int:
        """Writes, as to a file."""
        try:
            sys.stderr.write(text)
        except OSError:
            self._fall_silent()
        return len(text)

    def flush(self) -> None:
        """Write out what is still in memory."""
        try:
            sys.stderr.flush()
        except OSError:
            self._fall_silent()

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)

    def _fall_silent(self) -> None:
        """Discard the rest: Python flushes once more at its end, and fails if it cannot."""
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stderr.fileno())


console = Console(file=Stderr(), highlight=False)  # type: ignore[arg-type]
WIDE = 180  # characters of a line where standard output is no terminal


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
    """Show a progress bar on the terminal for the length of the block, and nothing when output is no terminal.

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
    shown = Progress(*columns, console=console, disable=not console.is_terminal, transient=True, redirect_stderr=False)
    with shown as bars:
        yield Bar(bars, bars.add_task(description, total=total, note=""))


def say(text: str) -> None:
    """Print one line of plain text; square brackets in it are not markup."""
    console.print(text, markup=False, soft_wrap=True)


def output_console() -> Console:
    """Return a console on standard output, wide enough for most tables where that is no terminal."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDE)


def print_table(frame: pd.DataFrame, title: str = "", to: Console | None = None) -> None:
    """Print a frame without its index; floats get four decimals, missing values a dash, and all else is plain text.

    Words stand to the left, numbers to the right. Texts of users show as they are.
    """
    table = Table(title=Text(title), title_justify="left")
    for index, name in enumerate(frame.columns):
        numbers = all(value is None or isinstance(value, Number) for value in frame[name])
        side: Literal["left", "right"] = "right" if numbers else "left"
        table.add_column(Text(str(name)), justify=side, no_wrap=index == 0, overflow="fold")
    for row in frame.itertuples(index=False):
        table.add_row(*[Text("".join(c if c.isprintable() else " " for c in _cell(value))) for value in row])
    (to or console).print(table)


def _cell(value: Any) -> str:
    if value is None or value != value:  # NaN
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
