"""The HTML report of a revision, compared with a baseline where one is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertrio.analysis.report import render_report
from bertrio.core.errors import UserError, writing_to
from bertrio.core.files import write_text
from bertrio.experiments.compare import changed_params, compare
from bertrio.experiments.recipes.params import leaves
from bertrio.experiments.revision import WORKSPACE, Revision
from bertrio.experiments.show import changed_rows, differences, other_metrics, params_table, sentences

DECIDED = 1000  # rows of each kind that two revisions decide differently, those that changed most


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
    comparison = _comparison(revision, Revision.open(baseline, root)) if baseline is not None else {}
    page = render_report(revision, leaves(revision.settings()), _since_commit(revision, root), comparison)
    with writing_to(out):
        write_text(out, page)


def _since_commit(revision: Revision, root: str | Path) -> dict[str, dict[str, str]] | None:
    """Return the params that differ from those of the last commit, with both values; None without a commit."""
    try:
        changed = changed_params([revision], [Revision.open("HEAD", root)])
    except UserError:
        return None
    return {name: {"here": here, "last commit": there} for name, ([here], [there]) in changed.items()}


def _comparison(revision: Revision, baseline: Revision) -> dict[str, Any]:
    """Return what the page shows of a comparison, with its tables by title, or the `problem` that it met."""
    try:
        result = compare([baseline], [revision], rows=DECIDED)
    except UserError as error:  # all else on the page stands without it
        return {"tables": {}, "problem": f"No comparison with {baseline.name}: {error}"}
    return {
        "first": baseline.name,
        "second": revision.name,
        "split": result["split"],
        "notes": [*sentences(result), *[f"Note: {note}." for note in result["notes"]]],
        "tables": {
            "Differences": differences(result),
            "Other metrics, without tests": other_metrics(result),
            "Settings that differ": params_table(result),
            **changed_rows(result),
        },
    }
