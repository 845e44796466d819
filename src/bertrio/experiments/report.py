"""The HTML report of a revision, compared with a baseline where one is named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from bertrio.analysis.figures import Figure, metric_name
from bertrio.analysis.report import Report, Section, Table, Texts, label_text, render_page
from bertrio.core.errors import UserError, writing_to
from bertrio.core.files import write_text
from bertrio.core.tasks import Task
from bertrio.evaluation.significance import p_text
from bertrio.experiments.compare import compare
from bertrio.experiments.recipes.params import ABSENT, leaves
from bertrio.experiments.revision import WORKSPACE, Revision

DECIDED = 1000  # rows of each kind that two revisions decide differently, those that changed most
COMPARISON = "comparison", "Comparison with a baseline"


def write_report(
    name: str = WORKSPACE, baseline: str | None = None, out: str | Path = "report.html", root: str | Path = "."
) -> None:
    """Write the report of revision `name` to `out`, one file that needs no other and no network.

    Sections whose files the revision lacks say which stage writes them. The same files give the same bytes.

    Args:
        name: as `Revision.open` takes it.
        baseline: the revision to compare it with; None: none.
        out: the HTML file.
        root: the folder that holds dvc.yaml.

    Raises:
        UserError: if there is no such revision, it has no params.yaml, a file is damaged, or `out` can't be written.
            Where only the comparison fails, as with predictions for other rows, its section says so.
    """
    revision = Revision.open(name, root)
    other = None if baseline is None else Revision.open(baseline, root)
    if not revision.exists("params.yaml"):
        raise UserError(f"{revision.title}: has no params.yaml; run this from the folder that holds dvc.yaml")
    settings = revision.settings()
    report = Report(
        revision,
        leaves(settings),
        _changed_settings(leaves(settings), root),
        list((settings.get("ensemble") or {}).get("members") or ()),
        _comparison(revision, other),
    )
    with writing_to(out):
        write_text(out, render_page(revision.name, revision.commit or "", *report.headline(), report.sections()))


def _changed_settings(here: Mapping[str, str], root: str | Path) -> dict[str, tuple[str, str]] | None:
    """Return the settings that differ from the last commit, with both values; None without a commit."""
    try:
        there = leaves(Revision.open("HEAD", root).settings())
    except UserError:
        return None
    pairs = {name: (here.get(name, ABSENT), there.get(name, ABSENT)) for name in {**here, **there}}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _comparison(revision: Revision, baseline: Revision | None) -> Section:
    if baseline is None:
        return Section(*COMPARISON, "No baseline was named: bertrio report REV --baseline REV compares two.")
    try:
        result = compare([baseline], [revision], rows=DECIDED)
    except UserError as error:  # all else on the page stands without it
        return Section(*COMPARISON, f"No comparison with {baseline.name}: {error}")
    first, second = names = baseline.name, revision.name
    tested = [*result["tasks"].items(), *result.get("overall", {}).items()]
    others = [
        [f"{task} {metric_name(metric)}", *_difference(figures)]
        for task, parts in result["tasks"].items()
        for metric, figures in parts["others"].items()
    ]
    differing = [[name, *[" or ".join(side) for side in sides]] for name, sides in result["params"].items()]
    columns = ["metric", *names, "difference"]
    tables = [
        Table("Differences", pd.DataFrame([_tested(name, figures, names) for name, figures in tested],
              columns=[*columns, "p", "Holm's p", "better"])),
        Table("Other metrics, without tests", pd.DataFrame(others, columns=columns), folded=True),
        Table("Settings that differ", pd.DataFrame(differing, columns=["param", *names]), folded=True),
    ]  # fmt: skip
    tasks = revision.tasks()
    for task, rows in result["rows"].items():
        for kind, side in (("fixed", second), ("broken", first)):
            title = f"{task}: {kind} ({result['tasks'][task][kind]:,})"
            note = f"{side} is right and the other wrong, or its error is smaller by more than a tenth of the range."
            tables.append(Table(title, _decided(tasks[task], rows[kind], names), note))
    intro = (
        f"{second} against {first}, on the rows of {result['split']}. The difference is {second} minus {first}, p the "
        "chance of one as large or larger if both were equally good, and Holm's p allows for the number of tasks."
    )
    notes = [*[figures["sentence"] for _, figures in tested], *[f"Note: {note}." for note in result["notes"]]]
    return Section(*COMPARISON, intro, notes, tables)


def _difference(figures: Mapping[str, Any]) -> list[Any]:
    low, high = figures["interval"]
    text = f"{figures['difference']:+.3f} [{low:+.3f}, {high:+.3f}]"
    return [Figure(figures["first"]), Figure(figures["second"]), text]


def _tested(name: str, figures: Mapping[str, Any], names: tuple[str, str]) -> list[Any]:
    better = {"first": names[0], "second": names[1], None: "neither"}[figures["better"]]
    title = name if figures["metric"] == name else f"{name} {figures['metric']}"
    return [title, *_difference(figures), p_text(figures["p"]), p_text(figures.get("p_holm")), better]


def _decided(task: Task, rows: Sequence[Mapping[str, Any]], names: tuple[str, str]) -> pd.DataFrame:
    """Return the rows that one side decides better."""
    cells = [
        [
            Texts([row[column] for column in task.text_columns]),
            *[label_text(value, task) for value in (row["label"], row["first"][0], row["second"][0])],
            str(row["id"]),
        ]
        for row in rows
    ]
    return pd.DataFrame(cells, columns=["text", "label", *names, "id"])
