"""HTML report of a revision, with an optional comparison with a baseline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertrio.analysis.figures import Figure
from bertrio.analysis.report import render_report
from bertrio.core.errors import UserError, writing_to
from bertrio.core.files import write_text
from bertrio.experiments.compare import changed_params, compare
from bertrio.experiments.recipes.params import leaves, value_text
from bertrio.experiments.revision import WORKSPACE, Revision
from bertrio.experiments.show import changed_rows, differences, other_metrics, params_table, verdicts

CHANGED_ROWS = 1000  # fixed and broken rows of a comparison to list, of each kind


def write_report(name: str = WORKSPACE, baseline: str | None = None, out: str | Path = "report.html") -> None:
    """Write the report of revision `name` to `out`, a self-contained file.

    A section without its file names the stage that writes it. The same files give the same bytes.

    Args:
        name: name of the revision, see `Revision.open`.
        baseline: revision to compare it with, or None.
        out: path of the HTML file.

    Raises:
        UserError: if there is no such revision, it has no params.yaml, a file is damaged, or `out` can't be written.
            If only the comparison fails, the error is shown in its section.
    """
    revision = Revision.open(name)
    comparison = _comparison(revision, Revision.open(baseline)) if baseline is not None else {}
    page = render_report(
        revision,
        settings=leaves(revision.run_params),
        changed=_since_commit(revision),
        edited=_edited(revision),
        comparison=comparison,
    )
    with writing_to(out):
        write_text(out, page)


def _since_commit(revision: Revision) -> dict[str, dict[str, str]] | None:
    """Return the params that differ from the last commit, with both values; None without a commit."""
    try:
        changed = changed_params([revision], [Revision.open("HEAD")])
    except UserError:
        return None
    return {name: {"here": here, "last commit": there} for name, ([here], [there]) in changed.items()}


def _edited(revision: Revision) -> dict[str, Any]:
    """Return the params whose value in params.yaml is not the run's, and the `commands` that make them equal."""
    edited = revision.edited_params()
    if not edited:
        return {}
    commands = {"dvc repro": "runs what params.yaml says now"}
    if revision.name == WORKSPACE:
        again = "gives params.yaml the settings of this result again, if it is that of"
        commands |= {
            "git checkout params.yaml": f"{again} the commit",
            "dvc exp apply NAME": f"{again} experiment NAME",
        }
    params = {
        name: {"this result": value_text(run), "params.yaml": value_text(now)} for name, (run, now) in edited.items()
    }
    return {"params": params, "commands": commands}


def _comparison(revision: Revision, baseline: Revision) -> dict[str, Any]:
    """Return the texts and tables of the comparison section, or its `problem`."""
    try:
        result = compare([baseline], [revision], rows=CHANGED_ROWS)
    except UserError as error:  # the other sections do not need it
        return {"tables": {}, "problem": f"No comparison with {baseline.name}: {error}"}
    return {
        "first": baseline.name,
        "second": revision.name,
        "split": result["split"],
        "notes": [
            *[figures["sentence"] for figures in verdicts(result)],
            *[f"Note: {note}." for note in result["notes"]],
        ],
        "chart": [
            [
                name if name == figures["metric"] else f"{name} {figures['metric']}",
                Figure(figures["difference"], *figures["interval"]),
            ]
            for name, figures in (*result["tasks"].items(), *result.get("overall", {}).items())
        ],
        "tables": {
            "Differences": differences(result),
            "Other metrics, without tests": other_metrics(result),
            "Settings that differ": params_table(result),
            **changed_rows(result),
        },
    }
