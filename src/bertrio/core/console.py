"""Terminal output: one console, progress bars (on terminals only) and result tables."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Number
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from bertrio.core.streams import discard, printable

if TYPE_CHECKING:
    import pandas as pd


class Stderr:
    """Standard error that discards output once a write fails, so that a closed terminal, a closed pipe or a full disk
    never ends a run."""

    def write(self, text: str) -> int:
        """Write `text` and return its length."""
        try:
            sys.stderr.write(text)
        except OSError:
            discard(sys.stderr)
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        try:
            sys.stderr.flush()
        except OSError:
            discard(sys.stderr)

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


class Output(Console):
    """A console on standard output that leaves a closed pipe to `standard_streams`."""

    def on_broken_pipe(self) -> NoReturn:
        raise


console = Console(file=Stderr(), highlight=False, emoji=False)  # type: ignore[arg-type]
UNWRAPPED = 100_000  # line width in characters when standard output is not a terminal


class Bar:
    """Progress bar of one task. `advance` moves it; its `note` is the text next to it (loss, rows per second)."""

    def __init__(self, progress: Progress, task_id: Any) -> None:
        self._progress, self._id = progress, task_id

    def advance(self, by: float = 1, note: str | None = None) -> None:
        self._progress.advance(self._id, by)
        if note is not None:
            self._progress.update(self._id, note=note)


@contextmanager
def progress(description: str, total: float | None = None) -> Iterator[Bar]:
    """Show a progress bar during the block if the output is a terminal.

    Args:
        description: text in front of the bar.
        total: number of steps; None shows a spinner.
    """
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    hidden = not console.is_terminal
    with Progress(*columns, console=console, disable=hidden, transient=True, redirect_stderr=False) as bars:
        yield Bar(bars, bars.add_task(description, total=total, note=""))


def say(text: str) -> None:
    """Print one line of plain text; square brackets and colons in it are not rich markup."""
    console.print(printable(text), markup=False, soft_wrap=True)


def output_console() -> Console:
    """Return a console on standard output; without a terminal its lines do not wrap, as those of git and dvc."""
    console = Output(highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = UNWRAPPED
    return console


def print_table(
    frame: pd.DataFrame, title: str = "", to: Console | None = None, unwrapped: int = 1, **style: Any
) -> None:
    """Print a frame without its index.

    Floats have four decimals, missing values are a dash. Text is left-aligned and never read as markup; columns of
    numbers are right-aligned. The first columns, as many as `unwrapped`, never wrap; `style` is rich's. Without a
    terminal there are no borders, so that a row is a line for grep and cut.
    """
    to = to or console
    if title:
        to.print(Text(title if len(frame) else f"{title}: none", "italic"), soft_wrap=True)
    table = Table(**style if to.is_terminal else {"box": None, "pad_edge": False})
    for index, name in enumerate(frame.columns):
        numbers = all(value is None or isinstance(value, Number) for value in frame[name])
        side: Literal["left", "right"] = "right" if numbers else "left"
        table.add_column(Text(str(name)), justify=side, no_wrap=index < unwrapped, overflow="fold")
    for row in frame.itertuples(index=False):
        table.add_row(*[Text("".join(c if c.isprintable() else " " for c in _cell(value))) for value in row])
    if len(frame):
        to.print(table)


def _cell(value: Any) -> str:
    if value is None or value != value:  # NaN
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
