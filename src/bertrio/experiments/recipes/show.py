"""Recipes on the terminal: one line each, or one of them in full."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
import yaml
from rich.console import Console
from rich.text import Text

from bertrio.config.loading import read_yaml
from bertrio.core.console import output_console, print_table
from bertrio.experiments.recipes.params import ABSENT, changes, value_text, with_numbers
from bertrio.experiments.recipes.resolving import resolve
from bertrio.experiments.recipes.rows import Recipes, Row

MAIN = ("sst", "qqp", "sts", "overall")  # the figures that a line has room for


def show_recipes(recipes: Recipes, console: Console | None = None) -> None:
    """Print a line for every row and sweep: its name, table, figures on dev (or, without them, on test) and title."""
    for paper in recipes.papers.values():
        lines = []
        for row in paper.rows:
            figures = row.reported or row.reported_test
            cells = {name: f"{figures[name]:.3f}" if name in figures else "-" for name in MAIN}
            title = "; ".join([row.title, *_remarks(row)])
            lines.append({"row": row.name, "table": row.table, **cells, "title": title})
        for sweep in paper.sweeps.values():
            title = f"sweep: {len(sweep.rows)} runs of {sweep.on}: {sweep.title}"
            lines.append({"row": f"{paper.name}-{sweep.name}", "table": "", **dict.fromkeys(MAIN, ""), "title": title})
        overall = f"overall score: {paper.overall}" if paper.overall else "no overall score"
        print_table(pd.DataFrame(lines), f"{paper.title} ({paper.name}; {overall})", console or output_console())


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
    """Print the params that a row is run with, what it is, and what it changes.

    The params go to standard output as YAML, the description to standard error.

    Args:
        recipes: all recipes.
        name: the row's full name.
        budget: its name.
        overrides: the user's, by dotted param.
        brief: print the description alone, to standard output.

    Raises:
        UserError: as `resolve`, and if there is no such row.
    """
    row = recipes.row(name)
    console = output_console() if brief else Console(stderr=True, highlight=False)
    differences: dict[str, tuple[Any, Any]] = {}
    if not row.literature:
        base = with_numbers(read_yaml("params.yaml"))
        resolved = resolve(recipes, row, budget, overrides, base=base)
        differences = changes(base, resolved)
        if not brief:
            print(yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True), end="", flush=True)
    for line in _description(recipes, row):
        console.print(Text(line), soft_wrap=True)
    if differences:
        console.print(Text(f"Budget {budget}: {recipes.budget(budget).title}"), soft_wrap=True)
        table = [
            {"param": param, "params.yaml": value_text(old), "here": value_text(new)}
            for param, (old, new) in differences.items()
            if (old, new) != (ABSENT, None)  # a missing param is null
        ]
        print_table(pd.DataFrame(table), "Params that differ from params.yaml", console)


def _description(recipes: Recipes, row: Row) -> Iterator[str]:
    paper, run = recipes.paper(row.paper), recipes.row(row.run_as)
    part = paper.tables.get(row.table) or paper.sweeps[row.table]
    yield f"{row.name}: {row.title}"
    yield f"{paper.title}, {row.table}: {part.title}"
    yield from (remark.capitalize() for remark in _remarks(row))
    for split, figures in (("dev", row.reported), ("test", row.reported_test)):
        if figures:
            yield f"Reported on {split}: {', '.join(f'{key} {value:g}' for key, value in figures.items())}"
    if run.on:
        yield f"Starts from {run.on}, whose choices may hold here too"
    choices = dict.fromkeys((*paper.choices, *run.choices, *row.choices))
    if choices:
        yield "Chosen:" if paper.own else "Left open by the paper, and chosen here:"
    yield from (f"  - {choice}" for choice in choices)
