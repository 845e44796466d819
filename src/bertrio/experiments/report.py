"""The report of an experiment: all that the pipeline found out about it, on one page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertrio.core.errors import UserError, writing_to
from bertrio.evaluation.evaluate import how_chosen
from bertrio.experiments.cells import short
from bertrio.experiments.difference import comparison
from bertrio.experiments.page import Bar, Cell, Section, Tile, write_page
from bertrio.experiments.revision import WORKSPACE, Revision
from bertrio.experiments.sections import (
    Run,
    calibration,
    challenges,
    changed_settings,
    data,
    errors,
    interval_of,
    metrics,
    missing,
    pictures,
    robustness,
    settings,
    slices,
    suspects,
    timings,
    training,
)

SECTIONS = (  # anchor, title, what makes it, the file that it needs, and the stage that writes that
    ("metrics", "Metrics", metrics, "metrics/evaluation.json", "evaluate"),
    ("comparison", "Comparison with a baseline", comparison, "params.yaml", "check"),
    ("calibration", "Calibration", calibration, "metrics/calibration.json", "evaluate"),
    ("slices", "Slices", slices, "metrics/slices.json", "analyze"),
    ("robustness", "Robustness", robustness, "metrics/robustness.json", "analyze"),
    ("challenges", "Challenge files", challenges, "metrics/challenges.json", "analyze"),
    ("errors", "Worst rows", errors, "predictions/analysis/errors.json", "analyze"),
    ("suspects", "Suspect labels", suspects, "predictions/analysis/suspects.csv", "analyze"),
    ("pictures", "Pictures", pictures, "plots/pictures", "evaluate"),
    ("settings", "Settings", settings, "params.yaml", "check"),
    ("data", "Data", data, "metrics/data.json", "split"),
    ("training", "Training", training, "plots/history", "finetune"),
    ("timings", "Timings", timings, "metrics/timing.json", "evaluate"),
)
OVERALL = {"overall_mean": "overall, mean", "overall_normalized": "overall, normalized"}
NAMED = 6  # changed settings that the head of the page names


def write_report(
    name: str = WORKSPACE, baseline: str | None = None, out: str | Path = "report.html", root: str | Path = "."
) -> None:
    """Writes the report of revision `name` to `out`, one file that needs no other and no network.

    Sections whose files the revision does not have say which stage writes them. The same files give the same bytes.

    Args:
        name: as `Revision.open` takes it.
        baseline: the revision to compare it with; None: none.
        out: the HTML file.
        root: the folder that holds dvc.yaml.

    Raises:
        UserError: if there is no such revision, it has no params.yaml, a file is damaged, or `out` can't be written.
            Where only the comparison fails, as with predictions for other rows, its section says so.
    """
    run = Run(Revision.open(name, root), None if baseline is None else Revision.open(baseline, root), _committed(root))
    if not run.revision.exists("params.yaml"):
        raise UserError(f"{run.revision.title}: has no params.yaml; run this from the folder that holds dvc.yaml")
    notes, tiles = _headline(run)
    sections = [_section(run, *parts) for parts in SECTIONS]
    with writing_to(out):
        write_page(out, run.revision.name, run.revision.commit or "", notes, tiles, sections)


def _committed(root: str | Path) -> Mapping[str, Any] | None:
    try:
        return Revision.open("HEAD", root).settings()
    except UserError:  # a folder without git, or without a commit: its settings can still be shown
        return None


def _section(run: Run, name: str, title: str, build: Any, path: str, stage: str) -> Section:
    """The section that `build` makes, if the file that it needs is there."""
    if not run.revision.exists(path):
        return Section(name, title, blocks=[missing(path, stage)])
    intro, blocks = build(run)
    return Section(name, title, intro, blocks)


def _headline(run: Run) -> tuple[list[str], list[Tile]]:
    """Short lines on what was run, and each task's first metric on dev beside the simple baseline's."""
    changed = changed_settings(run)
    notes = [] if changed is None else [_in_words(changed)]
    found = run.json("metrics/evaluation.json", {})
    split = next((name for name in ("dev", "selection", "test") if name in found), None)
    if split is None:
        return notes, []
    chosen = found.get("selected_on")
    how = how_chosen(chosen) if chosen else None
    told = f"; the epoch was {how}" if how else ""
    simple = run.json("metrics/data.json", {}).get("simple_baselines", {})
    tiles = [_tile(found, split, name, values, simple.get(name, {})) for name, values in found[split].items()]
    return [*notes, f"The figures below are of {split}{told}. Brackets and bars: 95 % intervals."], tiles


def _tile(found: Mapping[str, Any], split: str, name: str, values: Any, simple: Mapping[str, Any]) -> Tile:
    metric = next(iter(values)) if isinstance(values, dict) else None
    value = values[metric] if metric else values
    interval = interval_of(found, split, name, metric)
    below = {model.replace("_", " "): of[metric] for model, of in simple.items() if metric in of}
    lines = [f"[{short(interval[0])}, {short(interval[1])}]"] if interval else []
    lines += [f"{model}: {short(worth)}" for model, worth in below.items()]
    bar = Bar(value, *(interval or (None, None)), mark=next(iter(below.values()), None))
    if metric is None and "overall_tasks" in found:
        lines.append(f"of {', '.join(found['overall_tasks'])}")
    title = f"{name} {metric}" if metric else OVERALL.get(name, name)
    return Tile(title, Cell(short(value), bar=bar), lines)


def _in_words(changed: Mapping[str, tuple[str, str]]) -> str:
    if not changed:
        return "All settings are those of the last commit."
    some = [f"{name} = {here}" for name, (here, _) in list(changed.items())[:NAMED]]
    more = f" and {len(changed) - NAMED} more" if len(changed) > NAMED else ""
    return f"Changed settings: {', '.join(some)}{more}."
