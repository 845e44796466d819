"""Recipes on the terminal: a list of all, or one row in full."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from rich.console import Console

from bertrio.config.reading import yaml_text
from bertrio.core.console import output_console, print_table
from bertrio.experiments.recipes.params import ABSENT, changes, value_text
from bertrio.experiments.recipes.resolving import resolve
from bertrio.experiments.recipes.rows import Recipes, Row
from bertrio.experiments.recipes.table_text import show

MAIN = ["sst", "qqp", "sts", "overall"]  # figures shown in the list


def show_recipes(recipes: Recipes) -> None:
    """Print a line for every row and sweep: name, table, figures on dev (or on test, if dev has none) and title."""
    for paper in recipes.papers.values():
        lines: list[dict[str, Any]] = [
            {"row": row.name, "table": row.table, "title": "; ".join([row.title, *_remarks(row)])}
            | {metric: f"{value:.3f}" for metric, value in (row.reported or row.reported_test).items()}
            for row in paper.rows
        ]
        for name, sweep in paper.sweeps.items():
            title = f"sweep: {len(sweep.rows)} runs of {sweep.on}: {sweep.title}"
            lines.append({"row": f"{paper.name}-{name}", "title": title})
        table = pd.DataFrame(lines, columns=["row", "table", *MAIN, "title"])
        print_table(table, f"{paper.title} ({paper.name})", output_console())


def _remarks(row: Row) -> Iterator[str]:
    if row.same_as:
        yield f"the run of {row.same_as}"
    if row.literature:
        yield "another tool's or paper's, can't be run"


def show_row(
    recipes: Recipes, name: str, budget: str = "paper", overrides: Mapping[str, Any] | None = None, brief: bool = False
) -> None:
    """Print the resolved params of a row, its description, and its changes to params.yaml.

    The params go to standard output as YAML, the rest to standard error.

    Args:
        recipes: all recipes.
        name: full name of the row.
        budget: name of the budget.
        overrides: the user's overrides by dotted param.
        brief: print the description and the changes alone, to standard output.

    Raises:
        UserError: as `resolve`, and if the row is unknown.
    """
    row = recipes.row(name)
    console = output_console() if brief else Console(stderr=True, highlight=False)
    if row.literature:
        show(_description(recipes, row), console)
        return
    resolved = resolve(recipes, row, budget, overrides)
    if not brief:
        print(yaml_text(resolved), end="", flush=True)
    table = pd.DataFrame(
        {"param": param, "params.yaml": value_text(old), "here": value_text(new)}
        for param, (old, new) in changes(recipes.params, resolved).items()
        if (old, new) != (ABSENT, None)  # a missing param means null
    )
    show([*_description(recipes, row), f"Budget {budget}: {recipes.budget(budget).title}", table], console)


def _description(recipes: Recipes, row: Row) -> Iterator[str]:
    paper, run = recipes.paper(row.paper), recipes.row(row.run_as)
    part = paper.tables.get(row.table) or paper.sweeps[row.table]
    yield "; ".join([f"{row.name}: {row.title}", *_remarks(row)])
    yield f"{paper.title}, {row.table}: {part.title}"
    if run.on:
        yield f"Starts from {run.on}, whose choices may hold here too"
    yield from (f"Chosen: {choice}" for choice in dict.fromkeys((*paper.choices, *run.choices, *row.choices)))
