"""Main effects and interactions of techniques, from the runs of a factorial design of recipes/."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

from bertrio.core.console import output_console, print_table
from bertrio.core.errors import UserError, writing_to
from bertrio.core.files import write_csv
from bertrio.core.tasks import Array
from bertrio.evaluation.canvas import INK, LINES, MUTED, picture, titled
from bertrio.experiments.recipes.comparable import Setting, main_metrics_of, runs_of, value_of
from bertrio.experiments.recipes.measured import load_measured
from bertrio.experiments.recipes.rows import find, load_recipes
from bertrio.experiments.recipes.table_text import signed

NOTE = (
    "A main effect is the mean score of the runs with a technique minus that of the runs without it; an interaction is "
    "half of what the effect of one gains by the other. Intervals are of 95 %: over seeds and what these terms leave "
    "over, or where that is nothing by Lenth's method, which takes small effects for noise."
)


def factorial(name: str, wanted: Setting | None = None, out: str | Path = "recipes/factorials") -> pd.DataFrame:
    """Print the effects of the factors of a design on dev scores, and write them to `out` as CSV and PNG.

    Args:
        name: full name of a sweep with factors.
        wanted: setting of the runs, see `runs_of`.
        out: folder of <name>.csv and <name>.png.

    Returns:
        A line for each metric and effect, see `effects`.

    Raises:
        UserError: if there is no such design, a point was not measured, or `out` is not writable.
    """
    recipes = load_recipes()
    sweeps = {f"{paper.name}-{key}": sweep for paper in recipes.papers.values() for key, sweep in paper.sweeps.items()}
    design = find(name, {key: sweep for key, sweep in sweeps.items() if sweep.factors}, "the designs of recipes/")
    rows = design.rows.values()
    runs = runs_of(load_measured(), [row.run_as for row in rows], wanted or Setting(), recipes)
    if absent := [row.name for row in rows if not runs.of(row.run_as)]:
        raise UserError(
            f"{name}: {len(absent)} of {len(rows)} points are not measured, such as {absent[0]}; "
            f"{runs.setting.run_command(name)}"
        )
    points = [(row.title.split(", "), run) for row in rows for run in runs.of(row.run_as)]
    levels = pd.DataFrame([{factor: 1 if factor in on else -1 for factor in design.factors} for on, _ in points])
    scores = {
        metric: np.array([value_of(run, metric) for _, run in points], dtype=float)
        for metric in (*main_metrics_of(points[0][1]), "overall_normalized")
    }
    table = pd.concat([effects(levels, values).assign(metric=metric) for metric, values in scores.items()])
    cells = [signed(*line) for line in table[["effect", "low", "high"]].itertuples(index=False)]
    text = table.assign(cell=cells).pivot(index="term", columns="metric", values="cell")
    title = f"{name}: {design.title}, {len(points)} runs of {len(rows)} points; {runs.setting.title}"
    print_table(text.loc[table["term"].unique(), list(scores)].reset_index(), title, output_console())
    print(NOTE)
    with writing_to(out):
        write_csv(table, Path(out) / f"{name}.csv")
        _draw(table, Path(out) / f"{name}.png", title)
    return table


def effects(levels: pd.DataFrame, values: Array) -> pd.DataFrame:
    r"""Return main effects and interactions of two factors, with 95 % intervals.

    Least squares of $y = \mu + \sum_i e_i x_i / 2 + \sum_{i<j} e_{ij} x_i x_j / 2$ with levels $x = \pm 1$ (Montgomery,
    "Design and Analysis of Experiments", chapters 6 and 8), and Student's t. Without degrees of freedom for the error,
    the pseudo standard error of Lenth 1989, "Quick and easy analysis of unreplicated factorials": 1.5 times the median
    of the absolute effects below 2.5 times 1.5 times their median, with a third of their number of degrees.

    Args:
        levels: -1 or 1 for each run and factor [N, k].
        values: score of each run [N].

    Returns:
        Columns term (a factor, or two with x between them), effect, low and high.
    """
    from scipy.special import stdtrit  # slow to import

    terms = {factor: levels[factor] for factor in levels}
    terms |= {f"{one} x {other}": levels[one] * levels[other] for one, other in combinations(levels, 2)}
    matrix = np.column_stack([np.ones(len(levels)), *terms.values()])
    coefficients = np.linalg.lstsq(matrix, values)[0]
    effect, freedom = 2 * coefficients[1:], float(len(values) - matrix.shape[1])
    if freedom > 0:
        variance = np.sum((values - matrix @ coefficients) ** 2) / freedom
        errors = 2 * np.sqrt(variance * np.diag(np.linalg.inv(matrix.T @ matrix)))[1:]
    else:
        sizes, freedom = np.abs(effect), len(effect) / 3
        errors = 1.5 * np.median(sizes[sizes <= 2.5 * 1.5 * np.median(sizes)])
    reach = stdtrit(freedom, 0.975) * errors
    return pd.DataFrame({"term": list(terms), "effect": effect, "low": effect - reach, "high": effect + reach})


def _draw(table: pd.DataFrame, path: Path, title: str) -> None:
    """Draw a panel for each metric, with a point and an interval for each effect."""
    metrics, terms = table["metric"].unique(), list(table["term"].unique())
    with picture(path, (2.6 * len(metrics) + 1.6, 0.26 * len(terms) + 1.5)) as figure:
        panels = figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
        for axes, metric in zip(panels, metrics):
            for place, line in enumerate(table[table["metric"] == metric].itertuples()):
                colour = MUTED if " x " in line.term else LINES[0]
                axes.errorbar(line.effect, place, xerr=(line.high - line.low) / 2, fmt="o", color=colour, capsize=2)
            axes.axvline(0, color=INK, linewidth=0.8)
            axes.set_title(metric.replace("_", " "))
        panels[0].set(yticks=range(len(terms)), yticklabels=terms, ylim=(len(terms) - 0.4, -0.6))
        titled(figure, title.partition(",")[0], f"blue: main effects, grey: interactions, with 95 % intervals; {title}")
