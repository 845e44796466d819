"""Score as a function of one param, or of several that change together, from runs that differ only in these."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import pandas as pd

from bertrio.core.console import output_console, print_table, say
from bertrio.core.errors import UserError, did_you_mean, writing_to
from bertrio.core.files import write_csv
from bertrio.experiments.recipes.measured import FOLDER, load_measured
from bertrio.experiments.recipes.params import ABSENT, set_param
from bertrio.experiments.recipes.resolving import resolve
from bertrio.experiments.recipes.rows import load_recipes
from bertrio.experiments.runs import MEAN, OVERALL, Run, params_of, read_experiments, scores_of

SEED = re.compile(r"(ensemble\.members\.[^.]+\.)?runtime\.seed")  # ensemble members can have seeds too
LOG_FROM = 20  # ratio of largest to smallest value above which the axis is logarithmic
MAX_NAME = 90  # characters of a family's params in a title or legend
MAX_VALUES = 10  # values in an error message


def sweep(
    *params: str,
    metric: str = OVERALL,
    out: str | Path = "recipes/sweeps",
    measured: bool = False,
) -> pd.DataFrame:
    """Print a table of score by param, and write it to `out` as <param>.csv and <param>.png.

    File names join several params by `+`, write `*` as `all`, and end in `-measured` for measured runs.

    Args:
        params: dotted params, such as smart.lambda, or blocks; `*` matches any text, as in tasks.*.dropout. Several
            params change together.
        metric: overall_normalized, overall_mean, a task (its main metric), or `all`.
        out: folder of the files.
        measured: use the runs of recipes/measured instead of the repository's experiments.

    Returns:
        The table, see `tabulate`.

    Raises:
        UserError: if no runs differ only in these params, no run has a param or the metric, or `out` is not writable.
    """
    runs = list(measured_runs()) if measured else [run for run in read_experiments() if run.scores]
    table = tabulate(runs, params, metric)
    title = f"Score on dev against {', '.join(params)}"
    for family, rows in table.groupby("family", sort=False):
        shown = rows.drop(columns=["family", "least", "greatest", "runs"])
        print_table(shown, f"{title}; {_label(family, rows)}".removesuffix("; "), output_console())
    print("score, low and high are means over seeds, low and high the ends of the 95 % interval for other rows")
    stem = "+".join(params).replace("*", "all") + ("-measured" if measured else "")
    with writing_to(out):
        write_csv(table, Path(out) / f"{stem}.csv")
        draw(table, Path(out) / f"{stem}.png", title)
    return table


def measured_runs() -> Iterator[Run]:
    """Yield the runs of recipes/measured with the params of their rows.

    Skip runs of other tools, which have no params, and, with a message, runs without a row.
    """
    recipes = load_recipes()
    for run in load_measured():
        try:
            if (row := recipes.row(run.row)).literature:
                continue
            settings = resolve(recipes, row, run.budget, run.overrides, run.seed, check=False)
        except UserError as error:
            say(f"left out {FOLDER}/{run.name}.json: {error}")
            continue
        set_param(settings, "data.source", run.source)
        set_param(settings, "encoder.name", run.encoder)
        yield Run(run.name, params_of(settings), scores_of(run.metrics["dev"], run.intervals["dev"]))


def tabulate(runs: Sequence[Run], params: Sequence[str], metric: str) -> pd.DataFrame:
    """Return a table of scores with a row for each family, value and metric.

    A family is a set of runs that differ only in `params` and seeds; its name lists the params that distinguish it from
    other families. Of runs with the same params and seed the last counts. Numbers come first, in ascending order.

    Returns:
        Columns family, value, metric, seeds (their number), score (mean over seeds), low and high (95 % interval over
        rows, mean over seeds), least and greatest (scores of single seeds), runs (their names).

    Raises:
        UserError: if no family has two values, or no run has one of the params or the metric.
    """
    settings = pd.DataFrame([run.params for run in runs]).fillna(ABSENT)
    for pattern in params:
        if not any(_matches(name, pattern) for name in settings):
            hint = did_you_mean(pattern, settings) or "; see params.yaml"
            raise UserError(f"{pattern}: no run has this param{hint if runs else '; there are no finished runs'}")
    swept = [name for name in settings if any(_matches(name, pattern) for pattern in params)]
    others = settings.assign(**{name: "" for name in settings if name in swept or SEED.fullmatch(name)})
    frame = pd.DataFrame(
        {
            "run": range(len(runs)),
            "family": list(others.itertuples(index=False, name=None)),
            "value": [_value(row) for row in settings[swept].to_dict("records")],
            "seed": settings["runtime.seed"],
        }
    ).drop_duplicates(["family", "value", "seed"], keep="last")
    wide = frame[frame.groupby("family")["value"].transform("nunique") > 1]
    if wide.empty:
        values = "; ".join(frame["value"].unique()[:MAX_VALUES])
        raise UserError(
            f"{', '.join(params)}: no two runs differ in this alone; those that there are have {values}. "
            f"Make some: dvc exp run --queue -S {params[0]}=A,B,C, then dvc queue start"
        )
    differs = others.loc[wide.index].nunique() > 1
    families = [
        ", ".join(f"{name}: {value}" for name, value in zip(others, family) if differs[name] and value != ABSENT)
        for family in wide["family"]
    ]
    wide = wide.assign(family=families, number=pd.to_numeric(wide["value"], errors="coerce"))
    wide = wide.sort_values(["family", "number", "value", "seed"])
    names = _metrics(metric, list(dict.fromkeys(name for run in wide["run"] for name in runs[run].scores)))
    rows = [
        (family, value, name, runs[run].name, *runs[run].scores[name])
        for run, family, value in wide[["run", "family", "value"]].itertuples(index=False)
        for name in names
        if name in runs[run].scores
    ]
    columns = ["family", "value", "metric", "run", "score", "low", "high"]
    by_point = pd.DataFrame(rows, columns=columns).groupby(["family", "value", "metric"], sort=False)
    return by_point.agg(
        seeds=("run", "size"),
        score=("score", "mean"),
        low=("low", "mean"),
        high=("high", "mean"),
        least=("score", "min"),
        greatest=("score", "max"),
        runs=("run", " ".join),
    ).reset_index()


def _matches(name: str, pattern: str) -> bool:
    """Return whether a dotted param, or a block that contains it, matches the pattern."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


def _value(swept: Mapping[str, str]) -> str:
    """Return the common value of the swept params, or a text with the value of each param that is set."""
    if len(set(swept.values())) == 1:
        return next(iter(swept.values()))
    return ", ".join(f"{name}: {value}" for name, value in swept.items() if value != ABSENT)


def _label(family: str, rows: pd.DataFrame) -> str:
    """Return the params of a family, or if they are many the name of its first run."""
    return family if len(family) <= MAX_NAME else f"all else as {rows['runs'].iloc[0].split()[0]}"


def _metrics(wanted: str, known: Sequence[str]) -> list[str]:
    names = [name for name in known if name.split()[0] == wanted or (wanted == "all" and name != MEAN)]
    if not names:
        raise UserError(f"--metric {wanted}: expected all, {', '.join(name.split()[0] for name in known)}")
    return names


def draw(table: pd.DataFrame, path: Path, title: str) -> None:
    """Plot a panel for each metric, with lines for numeric values, points for others, and a colour for each family."""
    from bertrio.evaluation.canvas import distinct_colours, picture

    numbers = pd.to_numeric(table["value"], errors="coerce")
    numeric, positive = bool(numbers.notna().all()), numbers[numbers > 0]
    table = table.assign(x=numbers if numeric else table["value"])
    metrics, families = table["metric"].unique(), table["family"].unique()
    labels = {family: _label(family, rows) for family, rows in table.groupby("family")}
    with picture(path, (6.4, 2.5 * len(metrics) + 0.9 + 0.2 * len(families))) as figure:
        panels = figure.subplots(len(metrics), 1, sharex=True, squeeze=False)[:, 0]
        for axes, metric in zip(panels, metrics):
            for family, colour in zip(families, distinct_colours(len(families))):
                rows = table[(table["metric"] == metric) & (table["family"] == family)]
                ends = rows[["low", "high"]].sub(rows["score"], axis=0).abs().to_numpy().T
                style = "o-" if numeric else "o"
                label = labels[family]
                axes.errorbar(rows["x"], rows["score"], ends, fmt=style, color=colour, capsize=2, label=label)
            axes.set_ylabel(metric)
        if numeric and positive.max() > LOG_FROM * positive.min():
            panels[-1].set_xscale("symlog", linthresh=positive.min())  # symlog can show 0
        figure.suptitle(f"{title}; bars: 95 % interval", x=0.01, ha="left", fontweight="bold", fontsize=11)
        if len(families) > 1:
            figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower left", fontsize=8)
