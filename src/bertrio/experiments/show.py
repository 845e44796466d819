"""Tables of a comparison, for the terminal and the report."""

from __future__ import annotations

from typing import Any

import pandas as pd
from rich.console import Console
from rich.text import Text

from bertrio.core.console import output_console, print_table
from bertrio.evaluation.metrics import LOWER_IS_BETTER, OVERALL
from bertrio.evaluation.significance import p_text

CHANGES = {"fixed": "B is right or nearer", "broken": "A is right or nearer"}


def show_comparison(result: dict[str, Any], console: Console | None = None) -> None:
    """Print the result of `compare`: verdicts, green where B is better and red where A is, then all else."""
    console = console or output_console()
    for figures in verdicts(result):
        style = {"second": "green", "first": "red", None: ""}[figures["better"]]
        console.print(Text(figures["sentence"], style), soft_wrap=True)
    lines = [""]
    for letter, side in (("A", result["first"]), ("B", result["second"])):
        names = [f"{one['name']} ({one['commit'][:7]})" if one["commit"] else one["name"] for one in side["revisions"]]
        lines.append(f"{letter}  {', '.join(names)}")
    lines += [f"   {param}: {a} in A, {b} in B" for param, a, b in params_table(result).to_numpy()]
    console.print("\n".join(lines), markup=False, soft_wrap=True)
    title = f"{result['split']}: is B better than A? (Holm: p that allows for the number of tasks)"
    print_table(differences(result), title, console)
    if "overall" in result:
        console.print(f"Overall scores are of {', '.join(result['tasks'])}.", markup=False, soft_wrap=True)
    print_table(other_metrics(result), "Other metrics, without tests", console)
    for note in result["notes"]:
        console.print(f"Note: {note}.", markup=False, soft_wrap=True)
    for heading, rows in changed_rows(result).items():
        print_table(rows, heading, console)


def verdicts(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tested figures, each with its sentence: of the overall scores, then of the tasks."""
    overall = result.get("overall", {})
    return [*[overall[name] for name in reversed(OVERALL) if name in overall], *result["tasks"].values()]


def differences(result: dict[str, Any]) -> pd.DataFrame:
    """Return the tested differences, a row for each task and overall score, with cells as text."""
    tasks = {f"{name} {figures['metric']}": figures for name, figures in result["tasks"].items()}
    return pd.DataFrame(
        {
            "metric": name,
            **_numbers(figures),
            "95 % interval": "[{:+.4f}, {:+.4f}]".format(*figures["interval"]),
            "p": p_text(figures["p"]),
            "Holm": p_text(figures.get("p_holm")),
            "better": {"first": "A", "second": "B", None: "-"}[figures["better"]],
        }
        for name, figures in (tasks | result.get("overall", {})).items()
    )


def other_metrics(result: dict[str, Any]) -> pd.DataFrame:
    """Return the metrics that are not tested, a row for each task and metric, with cells as text."""
    return pd.DataFrame(
        {"metric": f"{task} {metric}{' (less is better)' if metric in LOWER_IS_BETTER else ''}", **_numbers(values)}
        for task, figures in result["tasks"].items()
        for metric, values in figures["others"].items()
    )


def params_table(result: dict[str, Any]) -> pd.DataFrame:
    """Return the params that differ, with their values on both sides."""
    rows = [[name, *[" or ".join(values) for values in sides]] for name, sides in result["params"].items()]
    return pd.DataFrame(rows, columns=["param", "A", "B"])


def changed_rows(result: dict[str, Any]) -> dict[str, pd.DataFrame]:
    """Return tables of the listed fixed and broken rows, by title."""
    tables = {}
    for task, parts in result.get("rows", {}).items():
        for kind, meaning in CHANGES.items():
            rows = [
                {
                    "id": row["id"],
                    "text": "\n".join(row[column] for column in ("text", "text_a", "text_b") if column in row),
                    "label": row["label"] if isinstance(row["label"], str) else f"{row['label']:g}",
                    "A": ", ".join(map(_cell, row["first"])),
                    "B": ", ".join(map(_cell, row["second"])),
                }
                for row in parts[kind]
            ]
            title = f"{task}: {kind} ({result['tasks'][task][kind]:,}), {meaning}"
            tables[title] = pd.DataFrame(rows, columns=["id", "text", "label", "A", "B"])
    return tables


def _cell(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.3g}"


def _numbers(figures: dict[str, Any]) -> dict[str, str]:
    return {
        "A": f"{figures['first']:.4f}",
        "B": f"{figures['second']:.4f}",
        "B - A": f"{figures['difference']:+.4f}",
    }
