"""A comparison on the terminal."""

from __future__ import annotations

from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bertrio.core.console import output_console, print_table
from bertrio.evaluation.metrics import LOWER_IS_BETTER
from bertrio.evaluation.significance import p_text

PARAMS = 12  # changed params that are listed; --json has all


def show_comparison(result: dict[str, Any], console: Console | None = None) -> None:
    """Print the result of `compare` to standard output."""
    console = console or output_console()
    for letter, side in (("A", result["first"]), ("B", result["second"])):
        names = [f"{one['name']} ({one['commit'][:7]})" if one["commit"] else one["name"] for one in side["revisions"]]
        _line(console, f"{letter}  {', '.join(names)}")
    _show_params(result["params"], console)
    title = f"{result['split']}: is B better than A? (Holm: p that allows for the number of tasks)"
    print_table(_tested(result), title, console)
    if "overall" in result:
        _line(console, f"Overall scores are of {', '.join(result['tasks'])}.")
    others = _others(result)
    if not others.empty:
        print_table(others, "Other metrics, without tests", console)
    for figures in (*result["tasks"].values(), *result.get("overall", {}).values()):
        _line(console, figures["sentence"])
    for note in result["notes"]:
        _line(console, f"Note: {note}.")
    for task, rows in result.get("rows", {}).items():
        console.print(_rows_table(task, result["tasks"][task], rows))


def _show_params(params: dict[str, list[list[str]]], console: Console) -> None:
    for name, (first, second) in list(params.items())[:PARAMS]:
        _line(console, f"   {name}: {' or '.join(first)} in A, {' or '.join(second)} in B")
    if len(params) > PARAMS:
        _line(console, f"   and {len(params) - PARAMS} more params, which --json lists")


def _tested(result: dict[str, Any]) -> pd.DataFrame:
    lines = [(f"{name} {figures['metric']}", figures) for name, figures in result["tasks"].items()]
    return pd.DataFrame(
        {
            "metric": name,
            **_numbers(figures),
            "p": p_text(figures["p"]),
            "Holm": p_text(figures.get("p_holm")),
            "better": {"first": "A", "second": "B", None: "-"}[figures["better"]],
        }
        for name, figures in (*lines, *result.get("overall", {}).items())
    )


def _others(result: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame(
        {"metric": f"{task} {metric}{' (less is better)' if metric in LOWER_IS_BETTER else ''}", **_numbers(values)}
        for task, figures in result["tasks"].items()
        for metric, values in figures["others"].items()
    )


def _rows_table(task: str, figures: dict[str, Any], rows: dict[str, list[dict[str, Any]]]) -> Table:
    title = f"{task}: rows that A and B decide differently"
    table = Table(title=title, title_justify="left", show_lines=True, expand=True)
    for name, verb in (("fixed", "B is right or nearer"), ("broken", "A is right or nearer")):
        shown = f", {len(rows[name])} shown" if len(rows[name]) < figures[name] else ""
        table.add_column(f"{name}: {verb} ({figures[name]:,}{shown})", ratio=1)
    for place in range(max(len(rows["fixed"]), len(rows["broken"]))):
        cells = [rows[name][place] if place < len(rows[name]) else None for name in ("fixed", "broken")]
        table.add_row(*[_row(cell) if cell else "" for cell in cells])
    return table


def _row(row: dict[str, Any]) -> Text:
    texts = [row[column] for column in ("text", "text_a", "text_b") if column in row]
    first, second = (" ".join(_value(value) for value in row[side]) for side in ("first", "second"))
    lines = [*texts, f"label {_value(row['label'])}, A {first}, B {second} (id {row['id']})"]
    return Text("\n".join(_printable(line) for line in lines))


def _value(value: float) -> str:
    return f"{round(value, 2):g}"


def _printable(text: str) -> str:
    """Replace the control characters of a text from the data."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _numbers(figures: dict[str, Any]) -> dict[str, str]:
    low, high = figures["interval"]
    return {
        "A": f"{figures['first']:.4f}",
        "B": f"{figures['second']:.4f}",
        "B - A": f"{figures['difference']:+.4f}",
        "95 % interval": f"[{low:+.4f}, {high:+.4f}]",
    }


def _line(console: Console, text: str) -> None:
    console.print(Text(_printable(text)), soft_wrap=True)
