"""Recipes on the terminal: all of them, one line each, or one of them in full."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bertrio.config.loading import read_yaml
from bertrio.experiments.recipes.params import ABSENT, changes, value_text, with_numbers
from bertrio.experiments.recipes.resolving import resolve, without_seed
from bertrio.experiments.recipes.rows import Paper, Recipes, Row, Sweep
from bertrio.experiments.sheets import console_for_sheets

MAIN = ("sst", "qqp", "sts", "overall")  # the figures that a line has room for
TITLE = 40  # characters that a column of titles has at least: it may hold names


def show_recipes(recipes: Recipes, console: Console | None = None) -> None:
    """Prints a line for every row and every sweep: its name, table, the paper's title for it, and its figures on dev.

    A row that the paper reports on test alone shows these figures, and says so. Names and figures are whole on any
    terminal; where it is too narrow for a column of titles, they stand below the names.
    """
    console = console or console_for_sheets()
    for paper in recipes.papers.values():
        console.print(_list(paper, console.width), crop=False)


def _list(paper: Paper, width: int) -> Table:
    overall = f"overall score: {paper.overall}" if paper.overall else "no overall score"
    title = Text(f"{paper.title} ({paper.name}; {overall})", style="bold")
    lines = [*map(_line_of, paper.rows), *[_line_of_sweep(paper, sweep) for sweep in paper.sweeps.values()]]
    columns = list(zip(("row", "table", *MAIN), *[line[:-1] for line in lines]))
    narrowest = [max(map(len, column)) for column in columns]
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    if wide := sum(narrowest) + 2 * len(narrowest) + TITLE <= width:
        table.add_column("row", no_wrap=True)
        table.add_column("table", no_wrap=True)
    else:
        others = sum(narrowest[2:]) + 2 * len(MAIN)
        table.width = max(narrowest[0] + others, width)  # a terminal that is narrower breaks the lines
        table.add_column("row", width=table.width - others)
    for name in MAIN:
        table.add_column(name, justify="right", no_wrap=True)
    if wide:
        table.add_column("title")
    for name, part, *figures, about in lines:
        if wide:
            table.add_row(name, part, *figures, Text(about))
        else:
            below = Padding(Text(f"{part}: {about}" if part else about, overflow="fold"), (0, 0, 0, 2))
            table.add_row(Group(Text(name), below), *figures)
    return table


def _line_of(row: Row) -> list[str]:
    """The cells of a row."""
    figures = row.reported or row.reported_test
    return [row.name, row.table, *[_figure(figures.get(name)) for name in MAIN], "; ".join([row.title, *_remarks(row)])]


def _line_of_sweep(paper: Paper, sweep: Sweep) -> list[str]:
    about = f"sweep: {len(sweep.rows)} runs of {sweep.on}: {sweep.title}"
    return [f"{paper.name}-{sweep.name}", "", *[""] * len(MAIN), about]


def _remarks(row: Row) -> Iterator[str]:
    if row.reported_test and not row.reported:
        yield "on test"
    if row.same_as:
        yield f"the run of {row.same_as}"
    if row.literature:
        yield "from the literature, can't be run"


def show_row(
    recipes: Recipes,
    name: str,
    budget: str = "paper",
    overrides: Mapping[str, Any] | None = None,
    brief: bool = False,
) -> None:
    """Prints the params that a row is run with, and what it is and changes.

    The params go to standard output as YAML, to be kept with `bertrio recipes show ROW > row.yaml`; not in params.yaml
    itself, which the row is made from, and which the shell would empty before it is read. What the row is and how its
    params differ from those of params.yaml goes to standard error, after them.

    Args:
        recipes: all recipes.
        name: the row's full name.
        budget: that it is to be run under.
        overrides: dotted params that the user sets.
        brief: leaves the params out; the rest goes to standard output.

    Raises:
        UserError: as `resolve`, and if there is no such row.
    """
    row = recipes.row(name)
    console = console_for_sheets() if brief else Console(stderr=True, highlight=False)
    if row.literature:
        _describe(recipes, row, console)
        return
    base = with_numbers(read_yaml("params.yaml"))
    seed, others = without_seed(overrides or {})
    resolved = resolve(recipes, row, budget, others, seed, base)
    if not brief:
        print(yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True), end="", flush=True)
    _describe(recipes, row, console)
    _line(console, f"Budget {budget}: {recipes.budget(budget).title}")
    console.print(_differences(changes(base, resolved)))


def _describe(recipes: Recipes, row: Row, console: Console) -> None:
    paper = recipes.paper(row.paper)
    part = paper.tables.get(row.table) or paper.sweeps[row.table]
    _line(console, f"{row.name}: {row.title}")
    _line(console, f"{paper.title}, {row.table}: {part.title}")
    for remark in _remarks(row):
        _line(console, remark.capitalize())
    for split, figures in (("dev", row.reported), ("test", row.reported_test)):
        if figures:
            _line(console, f"Reported on {split}: {', '.join(f'{key} {value:g}' for key, value in figures.items())}")
    start = recipes.row(row.run_as).on
    if start:
        _line(console, f"Starts from {start}, whose choices may hold here too")
    own = recipes.row(row.run_as).choices if row.same_as else ()
    choices = tuple(dict.fromkeys((*paper.choices, *own, *row.choices)))
    if choices:
        _line(console, "Chosen:" if paper.own else "Left open by the paper, and chosen here:")
    for choice in choices:
        _line(console, f"  - {choice}")


def _differences(found: Mapping[str, tuple[Any, Any]]) -> Table:
    table = Table(title="Params that differ from params.yaml", title_justify="left")
    for name in ("param", "params.yaml", "here"):
        table.add_column(name, overflow="fold")
    for name, values in found.items():
        if values != (ABSENT, None):  # what is not there is null
            table.add_row(Text(name), *[Text(value_text(value)) for value in values])
    return table


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _line(console: Console, text: str) -> None:
    console.print(Text(text), soft_wrap=True)
