"""The section of the report that holds a revision against another: `bertrio compare` on the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bertrio.core.errors import UserError
from bertrio.core.tasks import Task
from bertrio.experiments.cells import answer, chance, measured, plain
from bertrio.experiments.page import Bar, Block, Cell, Column, Fold, Note, Table
from bertrio.experiments.sections import Built, Run, cut, metric_name, texts_of

DECIDED = 1000  # rows of each kind that two revisions decide differently, those that changed most


def comparison(run: Run) -> Built:
    """What `bertrio compare` says of the baseline and this revision, and the rows that they decide differently."""
    if run.baseline is None:
        return "", [Note("No baseline was named: bertrio report REV --baseline REV compares two.")]
    from bertrio.experiments.compare import compare

    try:
        found = compare([run.baseline], [run.revision], rows=DECIDED)
    except UserError as error:  # all else on the page stands without it
        return "", [Note(f"No comparison with {run.baseline.name}: {error}", quiet=False)]
    names = run.baseline.name, run.revision.name
    lines = [*found["tasks"].items(), *found.get("overall", {}).items()]
    blocks: list[Block] = [Note(figures["sentence"], quiet=False) for _, figures in lines]
    blocks += [Note(f"Note: {note}.") for note in found["notes"]]
    blocks.append(_differences(found, names))
    blocks.append(Fold("Other metrics, without tests", [_other_metrics(found, names)]))
    blocks.append(Fold("Settings that differ", [_differing(found["params"], names)]))
    for task, rows in found.get("rows", {}).items():
        blocks += [_decided(run.tasks[task], name, found["tasks"][task][name], rows[name], names) for name in rows]
    intro = (
        f"{names[1]} against {names[0]}, on the rows of {found['split']}. The difference is {names[1]} minus "
        f"{names[0]}, p the chance of one as large or larger if both were equally good, and Holm's p allows for the "
        "number of tasks."
    )
    return intro, blocks


def _differences(found: Mapping[str, Any], names: Sequence[str]) -> Table:
    lines = [(name, figures) for part in ("tasks", "overall") for name, figures in found.get(part, {}).items()]
    most = max([abs(end) for _, figures in lines for end in figures["interval"]] + [0.001])
    better = {"first": names[0], "second": names[1], None: "neither"}
    rows = [
        [
            Cell(name if figures["metric"] == name else f"{name} {figures['metric']}"),
            measured(figures["first"]),
            measured(figures["second"]),
            _difference(figures, most),
            Cell(chance(figures["p"]), key=figures["p"]),
            Cell(chance(figures.get("p_holm")), key=figures.get("p_holm")),
            Cell(better[figures["better"]], good={"first": False, "second": True, None: None}[figures["better"]]),
        ]
        for name, figures in lines
    ]
    columns = [
        Column("metric", "word"),
        *map(Column, names),
        Column("difference", "measure"),
        Column("p"),
        Column("Holm's p"),
    ]
    return Table(
        "Differences", [*columns, Column("better", "word")], rows, "The mark on each line is a difference of 0."
    )


def _difference(figures: Mapping[str, Any], most: float) -> Cell:
    low, high = figures["interval"]
    bar = Bar(figures["difference"], low, high, mark=0.0, least=-most, most=most)
    return Cell(f"{figures['difference']:+.3f} [{low:+.3f}, {high:+.3f}]", key=figures["difference"], bar=bar)


def _other_metrics(found: Mapping[str, Any], names: Sequence[str]) -> Table:
    rows = [
        [
            Cell(f"{task} {metric_name(metric)}"), measured(of["first"]), measured(of["second"]),
            Cell(f"{of['difference']:+.3f} [{of['interval'][0]:+.3f}, {of['interval'][1]:+.3f}]", key=of["difference"]),
        ]
        for task, figures in found["tasks"].items()
        for metric, of in figures["others"].items()
    ]  # fmt: skip
    return Table("Other metrics", [Column("metric", "word"), *map(Column, (*names, "difference"))], rows)


def _differing(params: Mapping[str, Sequence[Sequence[str]]], names: Sequence[str]) -> Table:
    rows = [[Cell(name), *[Cell(" or ".join(side)) for side in sides]] for name, sides in params.items()]
    return Table("Settings", [Column(title, "word") for title in ("param", *names)], rows)


def _decided(task: Task, name: str, count: int, rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Table:
    """The rows that were fixed or broken."""
    columns = [Column("text", "text"), Column("label"), *map(Column, names), Column("id", "word")]
    shown = [
        [
            texts_of([row[column] for column in task.text_columns]),
            *[answer(value, task) for value in (row["label"], row["first"][0], row["second"][0])],
            Cell(str(row["id"])),
        ]
        for row in rows
    ]  # fmt: skip
    told = {
        "fixed": f"{names[1]} is right and {names[0]} is wrong",
        "broken": f"{names[1]} is wrong and {names[0]} is right",
    }
    if not task.target.discrete:
        told = {"fixed": "the error fell by more than a tenth of the range", "broken": "the error rose by as much"}
    return Table(
        f"{task.name}: {name} ({plain(count)})",
        columns,
        shown,
        f"{told[name]}. {cut(count, DECIDED)}".strip(),
        search=True,
    )
