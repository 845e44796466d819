"""HTML report: all results of a run on one self-contained page.

The page needs no network. JavaScript is optional and adds sorting and search to tables. The template engine escapes
all texts, and a Content-Security-Policy allows only the page's script and style sheet, by their hashes. The same files
give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from functools import partial
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any

import pandas as pd

from bertrio.analysis import figures
from bertrio.core.errors import UserError

LIMITS = {
    "most": 5000,  # rows of a table; a browser opens them in a second
    "first": 50,  # rows of a long table that the script shows at first; without JavaScript all rows show
    "long": 25,  # tables with more rows, and tables of texts, have a search field
    "width": 200,  # pixels of the line from 0 to 1
    "named": 6,  # changed settings that the head of the page names
}
SECTIONS = (  # anchor, title, required file, and the stage that writes it
    ("comparison", "Comparison with a baseline", "", ""),  # left out without a baseline
    ("training", "Training", "plots/history", "finetune"),
    ("predictions", "Labels and predictions", "plots/confusion", "evaluate"),
    ("metrics", "Metrics", "metrics/evaluation.json", "evaluate"),
    ("calibration", "Calibration", "metrics/calibration.json", "evaluate"),
    ("slices", "Slices", "metrics/slices.json", "analyze"),
    ("robustness", "Robustness", "metrics/robustness.json", "analyze"),
    ("challenges", "Challenge files", "metrics/challenges.json", "analyze"),
    ("errors", "Worst rows", "predictions/analysis/errors.json", "analyze"),
    ("suspects", "Suspect labels", "predictions/analysis/suspects.csv", "analyze"),
    ("settings", "Settings", "", ""),
    ("data", "Data", "metrics/data.json", "split"),
    ("timings", "Timings", "metrics/timing.json", "analyze"),
)
PLOTS = ("learning/score", "learning/loss", "conflicts", "confusion", "scores", "reliability")  # folders in plots/
WORDS = dict.fromkeys(("id", "task", "text", "text_b", "gold", "predicted"), str)  # columns that are not numbers
TEXTS = ("text", "text_b", "nearest training rows")  # columns of long texts


def render_report(
    run: Any,
    settings: Mapping[str, str],
    changed: Mapping[str, Any] | None,
    edited: Mapping[str, Any],
    comparison: Mapping[str, Any],
) -> str:
    """Return the page of a run.

    Args:
        run: files of the run, an `experiments.revision.Revision`.
        settings: all params of the run by dotted name, as text.
        changed: params that differ from the run of the last commit, with both values; None without a commit.
        edited: `params` whose value in params.yaml is not the run's, and what to do; see `experiments.report`.
        comparison: `tables` by title, or a `problem`; empty without a baseline. See `experiments.report`.
    """
    contents = {name: _content(run, path) for name, _, path, _ in SECTIONS if path and run.exists(path)}
    tasks = run.tasks()
    page_of = partial(
        render_page,
        title=run.name,
        subtitle=run.commit or "",
        date=run.date,
        tasks=tasks,
        members=list((run.run_params.get("ensemble") or {}).get("members") or ()),
        plots={name: _tables(run, f"plots/{name}", tasks) for name in PLOTS},
        settings=settings,
        changed=changed,
        edited=edited,
        comparison=comparison,
    )
    try:
        return page_of(contents=contents)
    except Exception as error:  # whatever templates make of a file of another shape: find the file
        parts = [(path, stage, {name: contents[name]}) for name, _, path, stage in SECTIONS if name in contents]
        for path, stage, part in [("plots", "evaluate", {}), *parts]:
            try:
                page_of(contents=part)
            except Exception:
                message = f"{path}: found another shape ({error!r}) than {stage} writes; run dvc repro"
                raise UserError(f"{run.title}: {message}") from error
        raise


def render_page(template: str = "report.html", **content: Any) -> str:
    """Render a template of this folder with the report's style and script."""
    from markupsafe import Markup

    style, script = ((Path(__file__).parent / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii") for text in (style, script)]
    environment = figures.environment()
    environment.globals |= {"scale": figures.scale, "number": count(1).__next__, "zip": zip}
    environment.filters |= {"format_cell": figures.format_cell, "kinds": _kinds}
    environment.filters["at"] = lambda value: round(LIMITS["width"] * min(max(value, 0.0), 1.0), 1)
    page = environment.get_template(template).render(
        figures=figures,
        sections=SECTIONS,
        policy=f"default-src 'none'; style-src 'sha256-{digests[0]}'; script-src 'sha256-{digests[1]}'; "
        "img-src data:; base-uri 'none'; form-action 'none'",
        style=Markup(style),
        script=Markup(script),
        **LIMITS,
        **content,
    )
    return page.strip() + "\n"


def _content(run: Any, path: str) -> Any:
    """Return the content of a JSON file, the table of a CSV file, or the tables of a folder by name."""
    if path.endswith(".json"):
        return run.json(path)
    if path.endswith(".csv"):
        return _table(run, path)
    return _tables(run, path)


def _tables(run: Any, folder: str, first: Iterable[str] = ()) -> dict[str, pd.DataFrame]:
    """Return the tables of a folder by name, those named in `first` before others."""
    tables = {Path(name).stem: _table(run, name) for name in run.files(folder) if name.endswith(".csv")}
    return {name: tables[name] for name in dict.fromkeys([*first, *tables]) if name in tables}


def _table(run: Any, path: str) -> pd.DataFrame:
    try:
        return pd.read_csv(BytesIO(run.read(path)), dtype=WORDS, keep_default_na=False, na_values=[""])
    except ValueError as error:
        raise UserError(f"{run.title}: {path}: can't be read as a table ({error}); run dvc repro") from error


def _kinds(frame: pd.DataFrame) -> list[str]:
    """Return the kind of each column, which decides its style and sorting: text, measure, number or word."""
    return [_kind(name, column) for name, column in frame.items()]


def _kind(name: Any, column: pd.Series) -> str:
    if name in TEXTS:
        return "text"
    if any(isinstance(value, figures.Figure) for value in column):
        return "measure"
    return "number" if all(value is None or isinstance(value, (int, float)) for value in column) else "word"
