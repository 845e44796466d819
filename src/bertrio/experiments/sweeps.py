"""Score against one param, or several that move together, from runs that differ in nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bertrio.core.console import say
from bertrio.core.errors import UserError, writing_to
from bertrio.core.files import write_csv
from bertrio.experiments.recipes.params import is_number, leaves
from bertrio.experiments.recipes.rows import nearest

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

OVERALL = ("overall_normalized", "overall_mean")
ABSENT = "(not set)"
SEED = re.compile(r"(ensemble\.members\.[^.]+\.)?runtime\.seed")  # a run has others for the members of an ensemble too
LOG_FROM = 20  # greatest over smallest value from which on the axis is logarithmic
TICKS = 12  # values that are all written under the axis
LETTERS = 70  # of values that are no numbers, side by side under the axis
DRAWN = 6  # families in one picture
SHOWN = 10  # values that an error tells


class Figure(NamedTuple):
    """One metric of one run on dev, with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Swept:
    """The params that are swept: one, or several that move together. In their names `*` stands for any one key."""

    names: tuple[str, ...]

    @property
    def title(self) -> str:
        """What axes and tables call it."""
        return ", ".join(self.names)

    @property
    def stem(self) -> str:
        """What files are called."""
        return "+".join(self.names).replace("*", "all")

    def takes(self, key: str) -> bool:
        """Whether a dotted param is one of these, or in a block that is."""
        return any(_starts(key, name) for name in self.names)

    def inside(self, key: str) -> bool:
        """Whether a dotted name is that of a block which one of these is in."""
        return any(_starts(name, key) and not _starts(key, name) for name in self.names)

    def value(self, settings: Mapping[str, str]) -> str:
        """What a run has of them: the one value that all have, if none is missing, or each with its name.

        Args:
            settings: all params of the run, by dotted name.
        """
        own = {key: settings[key] for key in sorted(settings) if self.takes(key)}
        meant = [one for name in self.names for one in _expanded(name, settings)]
        if len(set(own.values())) == 1 and all(one in own for one in meant):
            return next(iter(own.values()))
        block = f"{self.names[0]}." if len(self.names) == 1 else ""
        return ", ".join(f"{key.removeprefix(block)}: {value}" for key, value in own.items()) or ABSENT


def _expanded(name: str, settings: Iterable[str]) -> list[str]:
    """The dotted names that one with `*` stands for, in the blocks that there are."""
    blocks = [""]
    for part in name.split("."):
        inside = {at: {key.removeprefix(at).split(".")[0] for key in settings if key.startswith(at)} for at in blocks}
        blocks = [f"{at}{key}." for at in blocks for key in (sorted(inside[at]) if part == "*" else [part])]
    return [one.removesuffix(".") for one in blocks]


def _starts(name: str, start: str) -> bool:
    """Whether the first keys of a dotted name are those of another, or `*` in either."""
    ours, theirs = name.split("."), start.split(".")
    return len(ours) >= len(theirs) and all("*" in pair or pair[0] == pair[1] for pair in zip(ours, theirs))


@dataclass(frozen=True)
class Run:
    """One run: the swept params' value as text, the seed, all other params, the figures by metric, and the names among
    those that are swept of params that it has."""

    name: str
    value: str
    seed: str
    others: Mapping[str, str]
    figures: Mapping[str, Figure]
    has: tuple[str, ...] = ()


@dataclass(frozen=True)
class Family:
    """Runs that differ in the swept param and their seeds alone.

    `differs` are the params in which families differ from each other, and `points` the runs by value, in order.
    """

    differs: Mapping[str, str]
    points: Mapping[str, Sequence[Run]]

    @property
    def title(self) -> str:
        """What tells it from other families; empty if there are none."""
        return ", ".join(f"{name}: {value}" for name, value in self.differs.items())


def sweep(
    *params: str,
    metric: str = OVERALL[0],
    out: str | Path = "recipes/sweeps",
    root: str | Path = ".",
    measured: bool = False,
) -> list[Family]:
    """Prints score against a param, and writes it to `out` as <param>.csv and <param>.png.

    Names of several are joined by `+`, `*` stands there as `all`, and those of measured runs end in `-measured`.

    Args:
        params: dotted, such as smart.lambda; of a block, all that is in it. Several move together, and so do those that
            one with a `*` stands for, such as tasks.*.dropout.
        metric: overall_normalized, overall_mean, a task (its first metric), or `all`: the first of these and all tasks.
        out: the folder to write to.
        root: the folder that holds dvc.yaml.
        measured: take the runs of recipes/measured, in place of the repository's experiments.

    Returns:
        The families, those with most values first.

    Raises:
        UserError: if no runs differ in these params alone, a param is in none of them, none has the metric, or `out`
            can't be written to.
    """
    swept = Swept(tuple(dict.fromkeys(params)))
    runs = list((measured_runs if measured else read_runs)(swept, root))
    found = families(swept, runs, measured)
    stem = swept.stem + ("-measured" if measured else "")
    table = tabulate(found, metric)
    _show(table, swept.title, len(runs) - sum(len(of) for family in found for of in family.points.values()))
    with writing_to(out):
        write_csv(table, Path(out) / f"{stem}.csv")
        _draw(found, list(dict.fromkeys(table["metric"])), swept.title, Path(out) / f"{stem}.png")
    return found


def read_runs(swept: Swept, root: str | Path = ".") -> Iterator[Run]:
    """All finished experiments of the repository, the oldest first."""
    from bertrio.experiments.revision import Revision, find_experiments

    for name in find_experiments(root):
        revision = Revision.open(name, root)
        if revision.exists("metrics/evaluation.json"):
            found = revision.json("metrics/evaluation.json")
            if "dev" not in found.get("intervals", {}):
                say(f"{name}: left out, its metrics/evaluation.json has no intervals of dev")
                continue
            yield _run(name, swept, revision.settings(), _figures(found["dev"], found["intervals"]["dev"]))


def measured_runs(swept: Swept, root: str | Path = ".") -> Iterator[Run]:
    """All runs of recipes/measured, with the params that their rows come to. Says which have no row any more."""
    from bertrio.config.loading import read_yaml
    from bertrio.experiments.recipes.measured import FOLDER, load_measured
    from bertrio.experiments.recipes.params import set_param
    from bertrio.experiments.recipes.resolving import resolve
    from bertrio.experiments.recipes.rows import load_recipes

    recipes, base = load_recipes(Path(root) / "recipes"), read_yaml(Path(root) / "params.yaml")
    for run in load_measured(Path(root) / FOLDER):
        try:
            settings = resolve(recipes, recipes.row(run.row), run.budget, run.overrides, run.seed, base)
        except UserError as error:
            say(f"left out {FOLDER}/{run.name}.json: {error}")
            continue
        set_param(settings, "data.source", run.source)
        set_param(settings, "encoder.name", run.encoder)
        yield _run(run.name, swept, settings, _figures(run.metrics["dev"], run.intervals["dev"]))


def _run(name: str, swept: Swept, params: Mapping[str, Any], figures: Mapping[str, Figure]) -> Run:
    from bertrio.experiments.machine_paths import OF_MACHINE, without_place

    settings = leaves(params)
    own = {key: value for key, value in settings.items() if swept.takes(key)}
    others = {
        key: without_place(key, value)
        for key, value in settings.items()
        if key not in own
        and not SEED.fullmatch(key)
        and not OF_MACHINE.fullmatch(key)
        and not (value == "{}" and swept.inside(key))  # the block is empty where the param is not set
    }
    has = tuple(name for name in swept.names if any(_starts(key, name) for key in own))
    return Run(name, swept.value(settings), settings.get("runtime.seed", ""), others, figures, has)


def _figures(scores: Mapping[str, Any], intervals: Mapping[str, Any]) -> dict[str, Figure]:
    """The overall scores, and the first metric of each task, as `sst accuracy`."""
    figures = {}
    for name, of in scores.items():
        first = next(iter(of)) if isinstance(of, dict) else None
        value, ends = (of[first], intervals[name][first]) if first else (of, intervals[name])
        figures[f"{name} {first}" if first else name] = Figure(value, *ends)
    return figures


def families(swept: Swept, runs: Sequence[Run], measured: bool = False) -> list[Family]:
    """Sorts runs into families with two or more values each; of runs of the same params and seed the last counts.

    Raises:
        UserError: if there is no such family.
    """
    for name in swept.names:
        if not any(name in run.has for run in runs):
            known = dict.fromkeys(other for run in runs for other in run.others)
            hint = nearest(name, known).partition("known here:")[0] if known else "there are no finished runs"
            raise UserError(f"{name}: no run has this param; {hint or 'see params.yaml'}")
    groups: dict[frozenset[tuple[str, str]], dict[tuple[str, str], Run]] = {}
    for run in runs:
        groups.setdefault(frozenset(run.others.items()), {})[run.value, run.seed] = run
    wide = {shared: of for shared, of in groups.items() if len({value for value, _ in of}) > 1}
    if not wide:
        values = list(dict.fromkeys(run.value for run in runs))
        more = "; ..." if len(values) > SHOWN else ""
        how = "bertrio recipes run ROW with -S for each value" if measured else "dvc exp run with -S for each value"
        if len(swept.names) == 1 and "*" not in swept.title and not measured:
            how = f"dvc exp run --queue -S {swept.title}=A,B,C, then dvc queue start"
        raise UserError(
            f"{swept.title}: no two runs differ in this alone; those that there are have "
            f"{'; '.join(values[:SHOWN])}{more}. Make some: {how}"
        )
    alike = frozenset.intersection(*wide)
    found = [Family(dict(sorted(shared - alike)), _by_value(of.values())) for shared, of in wide.items()]
    return sorted(found, key=lambda family: (-len(family.points), family.title))


def _by_value(runs: Iterable[Run]) -> dict[str, list[Run]]:
    points: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: (_place(run.value), run.seed)):
        points.setdefault(run.value, []).append(run)
    return points


def _place(value: str) -> tuple[bool, float, str]:
    """Numbers come first, in their order; then texts."""
    return (False, float(value), "") if is_number(value) else (True, 0.0, value)


def tabulate(found: Sequence[Family], metric: str) -> pd.DataFrame:
    """A row for each family, value and metric.

    `score` is the mean over `seeds` runs, `low` and `high` the ends of the 95 % interval for other rows (means over the
    seeds), `least` and `greatest` the lowest and highest score of a seed.

    Raises:
        UserError: if not all runs have the metric.
    """
    import pandas as pd

    first = next(iter(found[0].points.values()))[0]
    names = _metrics(metric, list(first.figures))
    records = []
    for family in found:
        for value, runs in family.points.items():
            for name in names:
                without = [run.name for run in runs if name not in run.figures]
                if without:
                    raise UserError(f"{', '.join(without)}: has no {name}, which {first.name} has; remove one of them")
                figures = [run.figures[name] for run in runs]
                score, low, high = np.mean(figures, axis=0)
                ends = min(of.value for of in figures), max(of.value for of in figures)
                called = " ".join(run.name for run in runs)
                records.append([family.title, value, name, len(runs), score, low, high, *ends, called])
    columns = ["family", "value", "metric", "seeds", "score", "low", "high", "least", "greatest", "runs"]
    return pd.DataFrame(records, columns=columns)


def _metrics(wanted: str, known: Sequence[str]) -> list[str]:
    by_name = {name.split()[0]: name for name in known}  # a task stands for its first metric
    if wanted == "all":
        return [name for name in known if name == OVERALL[0]] + [name for name in known if name not in OVERALL]
    if wanted not in by_name:
        raise UserError(f"--metric {wanted}: expected all, {', '.join(by_name)}")
    return [by_name[wanted]]


def _show(table: pd.DataFrame, param: str, apart: int) -> None:
    """Prints the table, a block for each family and a column for each metric."""
    import pandas as pd
    from rich.console import Console

    from bertrio.core.console import print_table

    console, metrics = Console(highlight=False), table["metric"].unique()
    line = "\n" if len(metrics) > 1 else " "
    for family, of in table.groupby("family", sort=False):
        lines = [
            [str(value), int(rows["seeds"].iloc[0]), *[line.join(_cell(row)) for row in rows.itertuples()]]
            for value, rows in of.groupby("value", sort=False)
        ]
        title = f"{param}, where {family}" if family else param
        columns = ["value", "seeds", *[name.replace("_", " ") for name in metrics]]
        print_table(pd.DataFrame(lines, columns=columns), title, console)
    console.print("Scores on dev, the mean over seeds, with their 95 % interval for other rows.", soft_wrap=True)
    if apart:
        console.print(
            f"{apart} more runs differ in other params, or are further runs of the same params and seed.",
            soft_wrap=True,
        )


def _cell(row: Any) -> list[str]:
    seeds = [f"seeds {row.least:.3f} to {row.greatest:.3f}"] if row.seeds > 1 else []
    return [f"{row.score:.4f}", f"[{row.low:.3f}, {row.high:.3f}]", *seeds]


def _draw(found: Sequence[Family], metrics: Sequence[str], param: str, path: Path) -> None:
    """A panel for each metric: lines over numbers, points over other values, a colour for each family."""
    from bertrio.evaluation.canvas import LINES, MUTED, picture

    shown = found[:DRAWN]
    values = sorted({value for family in shown for value in family.points}, key=_place)
    numeric = all(is_number(value) for value in values)
    key = 0.2 * len(shown) if len(found) > 1 else 0.0
    with picture(path, (6.4, 2.5 * len(metrics) + 0.9 + key)) as figure:
        panels = figure.subplots(len(metrics), 1, sharex=True, squeeze=False)[:, 0]
        for axes, metric in zip(panels, metrics):
            for number, (family, colour) in enumerate(zip(shown, LINES)):
                step = (number - (len(shown) - 1) / 2) * 0.12
                places = [float(value) if numeric else values.index(value) + step for value in family.points]
                _line(axes, family, metric, places, colour, numeric)
            axes.set_ylabel(metric)
        _lay_out(panels[-1], values, numeric)
        panels[-1].set_xlabel(param)
        more = f"; {DRAWN} of {len(found)} families" if len(found) > DRAWN else ""
        several = any(len(runs) > 1 for family in shown for runs in family.points.values())
        seeds = "; faint: single seeds" if several else ""
        panels[0].set_title(f"dev; bars: 95 % interval of rows{seeds}{more}", color=MUTED)
        figure.align_ylabels(panels)
        figure.suptitle(f"Score against {param}", x=0.01, ha="left", fontweight="bold", fontsize=11)
        if len(found) > 1:
            handles, labels = panels[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower left", fontsize=8)


def _line(axes: Axes, family: Family, metric: str, places: Sequence[float], colour: str, joined: bool) -> None:
    points = [[run.figures[metric] for run in runs] for runs in family.points.values()]
    score, low, high = np.array([np.mean(of, axis=0) for of in points]).T
    label = family.title if len(family.title) <= 90 else f"{family.title[:89]}…"
    ends = np.abs([score - low, high - score])
    style = "o-" if joined else "o"
    axes.errorbar(places, score, ends, fmt=style, color=colour, elinewidth=1, capsize=2, markersize=5, label=label)
    for place, of in zip(places, points):
        if len(of) > 1:
            axes.plot([place] * len(of), [own.value for own in of], "o", color=colour, markersize=3, alpha=0.35)


def _lay_out(axes: Axes, values: Sequence[str], numeric: bool) -> None:
    """The axis of the param: its values if they are few, on a logarithm if they are far apart."""
    if not numeric:
        turn = 20 if sum(map(len, values)) > LETTERS else 0
        axes.set_xticks(range(len(values)), values, rotation=turn, ha="right" if turn else "center")
        axes.set_xlim(-0.5, len(values) - 0.5)
        return
    numbers = [float(value) for value in values]
    above = [value for value in numbers if value > 0]
    if min(numbers) >= 0 and above and max(above) / min(above) > LOG_FROM:
        if 0 in numbers:
            axes.set_xscale("symlog", linthresh=min(above), linscale=0.5)  # which has a place for 0
        else:
            axes.set_xscale("log")
    if len(numbers) <= TICKS:
        axes.set_xticks(numbers, [f"{value:g}" for value in numbers])
        axes.minorticks_off()
