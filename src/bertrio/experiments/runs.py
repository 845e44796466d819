"""The repository's runs (workspace, commits and DVC experiments) as a table and as one HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd

from bertrio.core.console import output_console, print_table
from bertrio.core.errors import UserError, did_you_mean, writing_to
from bertrio.core.files import write_text
from bertrio.experiments.dvc_experiments import unfinished
from bertrio.experiments.machine_paths import machine_independent
from bertrio.experiments.recipes.params import ABSENT, changes, leaves
from bertrio.experiments.recipes.table_text import to_markdown
from bertrio.experiments.revision import WORKSPACE, Revision, find_experiments

OVERALL, MEAN = "overall_normalized", "overall_mean"
NAN = float("nan")
MOST_CHANGED = 6  # params in a row of a terminal
Score = tuple[float, float, float]  # value, and both ends of its 95 % interval or NaN


@dataclass(frozen=True)
class Run:
    """One run.

    Args:
        name: a revision, see `Revision.open`.
        params: params by dotted name as text, without those of the machine.
        scores: on dev: the main metric of each task, such as `sst accuracy`, and the overall scores.
        state: empty for a finished run; else queued, running, failed, unfinished, or no metrics.
        changed: params that differ from the commit that an experiment started from; of the workspace, from HEAD.
        minutes: of all stages; a stage that came from DVC's cache counts with the time that it once took.
        curve: overall_normalized on dev by step, one value an epoch, the mean over members.
    """

    name: str
    params: Mapping[str, str]
    scores: Mapping[str, Score]
    state: str = ""
    changed: Mapping[str, str] = field(default_factory=dict)
    minutes: float = NAN
    curve: Mapping[float, float] = field(default_factory=dict)


def params_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the params of a run that can have a say in its results."""
    return machine_independent({param: value for param, value in leaves(settings).items() if value != "{}"})


def scores_of(dev: Mapping[str, Any], intervals: Mapping[str, Any]) -> dict[str, Score]:
    """Return the main metric of each task, such as `sst accuracy`, and the overall scores."""
    scores: dict[str, Score] = {}
    for name, value in dev.items():
        ends = intervals.get(name)  # absent in runs of old versions
        if isinstance(value, Mapping):
            main, value = next(iter(value.items()))
            name, ends = f"{name} {main}", (ends or {}).get(main)
        scores[name] = (value, *(ends or (NAN, NAN)))
    return scores


def read_run(revision: Revision, base: Run | None = None, state: str = "") -> Run:
    """Return the run of a revision. Files of an unfinished one are of the commit that it started from."""
    state = state or ("unfinished" if revision.unfinished() else "")
    settings = revision.settings() if state else revision.run_params
    params = params_of(settings)
    changed = {name: new for name, (_, new) in changes(base.params, params).items()} if base else {}
    if state or not revision.exists("metrics/evaluation.json"):
        return Run(revision.name, params, {}, state or "no metrics", changed)
    evaluation = revision.json("metrics/evaluation.json")
    scores = scores_of(evaluation.get("dev", {}), evaluation.get("intervals", {}).get("dev", {}))
    timing = revision.json("metrics/timing.json") if revision.exists("metrics/timing.json") else {}
    minutes = sum(cost["seconds"] for cost in timing.values()) / 60 if timing else NAN
    paths = [f"plots/history/{member}.csv" for member in (settings.get("ensemble") or {}).get("members", ())]
    tables = [pd.read_csv(BytesIO(revision.read(path))) for path in paths if revision.exists(path)]
    rows = [table.reindex(columns=["step", f"dev_{OVERALL}"]).dropna() for table in tables]
    curve = pd.concat(rows).groupby("step")[f"dev_{OVERALL}"].mean().to_dict() if rows else {}
    return Run(revision.name, params, scores, "", changed, minutes, curve)


def read_experiments() -> list[Run]:
    """Return the runs of all finished experiments, the oldest first."""
    return [read_run(Revision(name, commit)) for name, commit, _ in find_experiments().values()]


def read_runs(names: Sequence[str] = ()) -> list[Run]:
    """Return the runs of the repository.

    They are HEAD, the commits that experiments started from, all experiments, those of DVC's queue too, and the
    workspace unless it is as HEAD.

    Args:
        names: names of runs, with `*` and `?` as in the shell; empty for all.

    Raises:
        UserError: if the working directory is no DVC repository, or no run has such a name.
    """
    experiments = find_experiments()
    head = str(Revision.open("HEAD").commit)
    commits = dict.fromkeys([head, *(experiment.baseline for experiment in experiments.values())])
    bases = {commit: read_run(Revision(commit[:7] if commit != head else "HEAD", commit)) for commit in commits}
    runs = list(bases.values())
    for name, commit, baseline in experiments.values():
        runs.append(read_run(Revision(name, commit), bases[baseline]))
    for name, own_commit, baseline, state in unfinished(list(commits)):
        base = bases.get(str(Revision.open(baseline).commit))
        runs.append(read_run(Revision(name, own_commit), base, state))
    workspace = read_run(Revision.open(WORKSPACE), bases[head])
    if workspace.changed or workspace.scores != bases[head].scores:
        runs.append(workspace)
    selected = [run for run in runs if not names or any(fnmatchcase(run.name, name) for name in names)]
    if not selected:
        raise UserError(f"no run is called {' or '.join(names)}{did_you_mean(names[0], [run.name for run in runs])}")
    return selected


def tabulate(runs: Sequence[Run], sort: str = "overall") -> pd.DataFrame:
    """Return a table with a row for each run: names, scores and minutes, and the params that an experiment changes.

    Columns are name, state, each task, overall, low and high (its 95 % interval), minutes,
    and changed.

    Args:
        runs: the runs.
        sort: a column: scores sort from high to low, all others from low to high.

    Raises:
        UserError: if there is no such column.
    """
    tasks = dict.fromkeys(name for run in runs for name in run.scores if " " in name)
    none = (NAN, NAN, NAN)
    table = pd.DataFrame(
        {
            "name": run.name,
            "state": run.state,
            **{name.split()[0]: NAN for name in tasks},
            **{name.split()[0]: score[0] for name, score in run.scores.items() if " " in name},
            **dict(zip(("overall", "low", "high"), run.scores.get(OVERALL, none))),
            "minutes": round(run.minutes, 2),
            "changed": changed_text(run.changed),
        }
        for run in runs
    )
    if sort not in table:
        raise UserError(f"--sort {sort}: expected one of {', '.join(table)}{did_you_mean(sort, table)}")
    return table.sort_values(sort, ascending=sort in ("name", "state", "minutes", "changed"), kind="stable")


def changed_text(changed: Mapping[str, str], most: int | None = None) -> str:
    """Return changed params as text; of more than `most` the first, and the number of the others."""
    texts = [f"{param}={value}" for param, value in changed.items()]
    if most is not None and len(texts) > most:
        texts = [*texts[:most], f"{len(texts) - most} more"]
    return ", ".join(texts)


def show_runs(runs: Sequence[Run], sort: str, form: str) -> None:
    """Print the table of runs to standard output as text, Markdown (`md`) or CSV."""
    table = tabulate(runs, sort)
    if form == "csv":
        return print(table.to_csv(index=False), end="")
    text = table[["name"]].copy()
    for task in table.columns[2 : table.columns.get_loc("overall")]:
        text[task] = table[task].map("{:.3f}".format, na_action="ignore")
    value, low, high = (table[name].map("{:.3f}".format) for name in ("overall", "low", "high"))
    interval = (" [" + low + ", " + high + "]").where(table["low"].notna(), "")
    text["overall"] = (value + interval).where(table["state"] == "", table["state"])
    text["minutes"] = table["minutes"].map("{:7.1f}".format, na_action="ignore")
    text["changed"] = table["changed"]
    to = output_console()
    if to.is_terminal:
        text["changed"] = [changed_text(runs[index].changed, MOST_CHANGED) for index in table.index]
    text = text.astype(object).fillna("-")
    if form == "md":
        return print(to_markdown([text]), end="")
    title = "Scores on dev, the overall score with its 95 % interval"
    print_table(text, title, to, unwrapped=len(text.columns) - 1, box=None, pad_edge=False)


def write_page(runs: Sequence[Run], sort: str, out: str | Path) -> None:
    """Write a page that compares the runs to `out`: their scores as charts, the params that differ, learning curves.

    The page needs no other file and no network.

    Raises:
        UserError: if there is no column `sort`, or `out` can't be written.
    """
    from bertrio.analysis.figures import Figure, measured
    from bertrio.analysis.report import render_page

    table = tabulate(runs, sort)
    ordered = [runs[position] for position in table.index]
    table["state"] = table["state"].replace("", None)
    params = pd.DataFrame([run.params for run in ordered], index=table.index).fillna(ABSENT)
    charts: dict[str, list[tuple[str, Figure]]] = {OVERALL: []}
    for run in ordered:
        for name, score in run.scores.items():
            if name == OVERALL or " " in name:
                ends = [end for end in score[1:] if end == end]  # not NaN
                charts.setdefault(name, []).append((run.name, measured(name, score[0], ends)))
    page = render_page(
        "runs.html",
        title="Runs",
        runs=table.drop(columns="changed").round({"minutes": 1}).join(params.loc[:, params.nunique() > 1]),
        scores={name: rows for name, rows in charts.items() if rows},
        curves={
            f"{list(run.curve.values())[-1]:.3f} {run.name}": pd.DataFrame(run.curve.items(), columns=["x", "y"])
            for run in ordered
            if run.curve
        },
    )
    with writing_to(out):
        write_text(out, page)
