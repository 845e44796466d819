"""Forward stepwise selection of extensions, as in "BERT++: Trustworthy MultiTask Learning with BERT", section 4.3.

From a base, every remaining extension is tried on top of it; the best one is kept where the paired test says that it
is not luck; and so on from there, until none helps. With a beam, several sets are kept at each depth.

Every set that is tried is a DVC experiment. Nothing else is remembered: what was stopped is started again with the same
command, finds its finished experiments, and goes on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from bertrio.config.loading import read_yaml, validate_params
from bertrio.core.console import say
from bertrio.core.errors import UserError
from bertrio.core.files import write_csv, write_text
from bertrio.evaluation.significance import ALPHA, holm
from bertrio.experiments.dvc_experiments import short_digest
from bertrio.experiments.machine_paths import of_any_machine, settings_text
from bertrio.experiments.recipes.params import changes
from bertrio.experiments.recipes.resolving import SEED, check_apart, resolve
from bertrio.experiments.recipes.rows import BASE, Extension, Recipes, Row, find, load_extensions, load_recipes
from bertrio.experiments.revision import Revision

Names = tuple[str, ...]  # a set of extensions, in the order in which they came to it
COLUMNS = ("step", "on", "tried", "score", "difference", "low", "high", "p", "p_holm", "seconds", "kept", "why")
METRIC = "overall_normalized"
LONGEST = 150  # characters of an experiment's name; git has its files, whose names end at 255
LINE = 0.24  # inches


@dataclass(frozen=True)
class Gain:
    """Gain of a set over the set that it extends: the difference, its 95 % interval, and its p-value."""

    difference: float
    interval: tuple[float, float]
    p: float


@dataclass(frozen=True)
class Step:
    """One set that was tried, or could not be: then it has no score.

    Args:
        names: the set; its last extension is the one that was tried on the others.
        why: in a few words, why it was kept or not.
        score: the mean over its seeds.
        seconds: of training, the mean over its seeds.
        gain: over the set without the last extension; the base has none.
        p_holm: p that allows for the number of sets tried at this depth.
        kept: what comes next is tried on it.
        failed: its run failed, so nothing is known of it.
    """

    names: Names
    why: str
    score: float | None = None
    seconds: float | None = None
    gain: Gain | None = None
    p_holm: float | None = None
    kept: bool = False
    failed: bool = False

    @property
    def depth(self) -> int:
        """How many extensions the set has."""
        return len(self.names)

    @property
    def on(self) -> Names:
        """The set that it extends."""
        return self.names[:-1]


def label(names: Names) -> str:
    """What a set is called."""
    return " + ".join(names) or BASE


def best(ladder: Sequence[Step]) -> Step:
    """The kept set with the highest score; the base, if nothing was kept."""
    return max((step for step in ladder if step.kept), key=lambda step: step.score or 0.0)


def write_ladder(ladder: Sequence[Step], folder: str | Path, title: str, notes: Sequence[str]) -> None:
    """Write ladder.md, ladder.csv and ladder.png.

    Args:
        ladder: all steps so far, the base first.
        folder: where to write.
        title: base, budget and seeds.
        notes: other paragraphs below the table.
    """
    import pandas as pd

    folder, top = Path(folder), best(ladder)
    frame = pd.DataFrame([_record(step) for step in ladder], columns=list(COLUMNS))
    write_csv(frame, folder / "ladder.csv")
    result = f"Best: **{label(top.names)}**, {top.score:.4f}; the base has {ladder[0].score:.4f}."
    table = frame.to_markdown(index=False, floatfmt=".4f", missingval="")
    write_text(folder / "ladder.md", "\n\n".join([f"# {title}", result, table, *notes]) + "\n")
    _draw(ladder, folder / "ladder.png", title)


def _record(step: Step) -> list[object]:
    gain = step.gain
    figures = [gain.difference, *gain.interval, gain.p] if gain else [None] * 4
    tried = step.names[-1] if step.names else ""
    on = " + ".join(step.on)
    return [step.depth, on, tried, step.score, *figures, step.p_holm, step.seconds, step.kept, step.why]


def _draw(ladder: Sequence[Step], path: Path, title: str) -> None:
    """Draw the gain of every set over the set that it extends, with its interval; kept sets in colour."""
    from bertrio.evaluation.canvas import LINES, MUTED, picture

    steps = [(step, step.gain) for step in ladder if step.gain]
    with picture(path, (7.2, LINE * len(steps) + 1.5)) as figure:
        axes = figure.add_subplot()
        axes.axvline(0, color=MUTED, linestyle=(0, (4, 3)), linewidth=1)
        for place, (step, gain) in enumerate(steps):
            colour = LINES[0] if step.kept else MUTED
            axes.plot(gain.interval, [place, place], color=colour, linewidth=1.5, alpha=0.6)
            axes.plot(gain.difference, place, "o", color=colour, markersize=6 if step.kept else 4)
        axes.set(yticks=range(len(steps)), yticklabels=[label(step.names) for step, _ in steps])
        axes.set(
            ylim=(max(len(steps), 1) - 0.5, -0.5), xlabel="gain in overall_normalized over the set without the last one"
        )
        axes.set_title("bars: 95 % interval; blue: kept", color=MUTED)
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=11)


class Outcome(NamedTuple):
    """What running a set gave: means over its seeds."""

    score: float
    seconds: float


class DvcBench:
    """Runs sets of extensions as DVC experiments, one a seed, and compares their predictions for dev."""

    def __init__(
        self,
        recipes: Recipes,
        extensions: Mapping[str, Extension],
        base: str | None = None,
        budget: str = "paper",
        seeds: int = 1,
        overrides: Mapping[str, Any] | None = None,
        root: str | Path = ".",
    ) -> None:
        """
        Args:
            recipes: rows and budgets.
            extensions: all that there are, by name.
            base: the row to start from; None: params.yaml as it is.
            budget: of every run.
            seeds: runs of every set, with `runtime.seed` from 1 on.
            overrides: dotted params and values that go on top of everything.
            root: the folder that holds dvc.yaml.

        Raises:
            UserError: if there is no such row or budget, or the params of the base are wrong.
        """
        self._recipes, self._extensions, self._base, self._root = recipes, extensions, base, Path(root)
        self._row = recipes.row(base) if base else Row(name="params.yaml", paper="params", title="params.yaml")
        self._budget, self._overrides = budget, dict(overrides or {})
        self._seeds = range(1, seeds + 1)
        self._params = read_yaml(self._root / "params.yaml")
        if SEED in self._overrides:
            raise UserError(f"-S {SEED}={self._overrides[SEED]}: every set has the same seeds, 1 and on; use --seeds N")
        self._runs: dict[Names, list[Revision]] = {}
        self._prefix = f"stepwise-{self._digest()}"

    def settings(self, names: Names, seed: int = 1) -> dict[str, Any]:
        """The raw params of a set.

        Raises:
            UserError: if they are wrong.
        """
        overrides = self._row.overrides
        for name in names:
            overrides = {**overrides, **self._extensions[name].overrides}
        row = self._row.model_copy(update={"overrides": overrides})
        return resolve(self._recipes, row, self._budget, self._overrides, seed, self._params)

    def key(self, names: Names) -> str:
        """The params that the set comes to, once checked.

        Raises:
            UserError: if its extensions don't go together, one undoes another, or their params are refused.
        """
        if names:
            self._check_last(names)
        try:
            key = self._key(names)
        except UserError as error:
            where = re.escape(f"{self._recipes.folder}/{self._row.paper}.yaml: {self._row.name}, ")
            raise UserError(re.sub(rf"{where}[^:]*: ", "", str(error)) if names else str(error)) from None
        for name in names[:-1]:
            if self._same(tuple(other for other in names if other != name), key):
                raise UserError(f"takes the place of {name}")
        return key

    def measure(self, names: Names) -> Outcome:
        """Runs the set with every seed, unless it has run, and reads its score.

        Raises:
            UserError: if a run fails.
        """
        check_apart([self.settings(names, seed) for seed in self._seeds], " ".join(names) or self._row.name)
        self._runs[names] = [self._run(names, seed) for seed in self._seeds]
        scores = [run.json("metrics/evaluation.json")["dev"][METRIC] for run in self._runs[names]]
        return Outcome(float(np.mean(scores)), float(np.mean([seconds_of(run) for run in self._runs[names]])))

    def gain(self, before: Names, after: Names) -> Gain:
        """The paired test of the overall score on dev: of rows alone for one seed, else of rows and seeds.

        Raises:
            UserError: if the sets were not measured on the same rows of all tasks.
        """
        from bertrio.experiments.compare import compare

        result = compare(self._runs[before], self._runs[after])
        if "overall" not in result:
            raise UserError(f"there is no overall score to compare: {'; '.join(result['notes'])}")
        figures = result["overall"][METRIC]
        low, high = figures["interval"]
        return Gain(figures["difference"], (low, high), figures["p"])

    def experiment(self, names: Names, seed: int) -> str:
        """The name of the experiment of one run."""
        called = "+".join(names) or BASE
        if len(self._prefix) + len(called) > LONGEST:
            called = f"{len(names)}-extensions-{short_digest(called)}"
        return f"{self._prefix}-{called}-s{seed}"

    def _digest(self) -> str:
        """Six digits that stand for base, budget and overrides, the same on every machine.

        A row has its name for it: experiments of a row whose params changed since are found out by `run_experiment`.
        """
        params = (
            self._overrides if self._base else {name: own for name, (_, own) in changes({}, self.settings(())).items()}
        )
        kept = {name: value for name, value in of_any_machine(params).items() if name != SEED}
        return short_digest(json.dumps([self._base, self._budget, kept], sort_keys=True))

    def _run(self, names: Names, seed: int) -> Revision:
        from bertrio.experiments.dvc_experiments import run_experiment

        name, settings = self.experiment(names, seed), self.settings(names, seed)
        run_experiment(name, settings, self._root)
        return Revision.open(name, self._root)

    def _check_last(self, names: Names) -> None:
        """Raises if what the last extension says of the others speaks against it."""
        *others, last = names
        for other in others:
            if other in self._extensions[last].excludes or last in self._extensions[other].excludes:
                raise UserError(f"{last} and {other} exclude each other")
        for need in self._extensions[last].needs:
            if need not in others and not self._same((*others, need), self._key(tuple(others))):
                raise UserError(f"has no effect without {need}")

    def _key(self, names: Names) -> str:
        return validate_params(self.settings(names), "params.yaml").model_dump_json(by_alias=True)

    def _same(self, names: Names, key: str) -> bool:
        """Whether a set comes to the params `key`; one that can't be run does not."""
        try:
            return self._key(names) == key
        except UserError:
            return False


def seconds_of(run: Revision) -> float:
    """Of all training stages of a run."""
    from bertrio.experiments.recipes.measured import TRAINING

    timing = run.json("metrics/timing.json")
    return sum(own["seconds"] for stage, own in timing.items() if stage.startswith(TRAINING))


class Bench(Protocol):
    """Where sets of extensions are tried; each method raises `UserError` with the reason if it can't."""

    def key(self, names: Names) -> str:
        """What the set comes to: equal for sets that run alike."""

    def measure(self, names: Names) -> Outcome:
        """Runs the set, unless it has run."""

    def gain(self, before: Names, after: Names) -> Gain:
        """Whether one set that has run is better than another."""


def forward_selection(
    candidates: Sequence[str], bench: Bench, beam: int = 1, unproven: bool = False
) -> Iterator[list[Step]]:
    """Select extensions step by step, and yield the ladder so far at the start and after every depth.

    At each depth every candidate is tried on every set that was kept. Sets that score higher than the one they extend,
    with p below 5 % by Holm's correction over all sets of this depth, are kept, up to `beam` of them. It ends where
    none is. A set is tried once, however it came about.

    Args:
        candidates: the extensions, in the order in which they are tried; of equal scores the earlier is kept.
        bench: runs and compares sets.
        beam: how many sets to keep at each depth.
        unproven: keep what scores higher even where luck may explain it.

    Raises:
        UserError: if the base can't be run; or, after all others of its depth, if any set's run failed, since what
            would be kept is not known then.
    """
    outcome = bench.measure(())
    ladder = [Step((), "the base", outcome.score, outcome.seconds, kept=True)]
    yield ladder
    tried: dict[str, Names] = {bench.key(()): ()}
    kept = list(ladder)
    while kept:
        pairs = [(parent.names, name) for parent in kept for name in candidates if name not in parent.names]
        steps = [_try(parent, name, bench, tried) for parent, name in pairs]
        failed = [step for step in steps if step.failed]
        if not failed:
            steps = _judged(steps, beam, unproven)
        kept = [step for step in steps if step.kept]
        if news := _without_repeats(steps, ladder):
            ladder = ladder + news
            yield ladder
        if failed:
            reasons = "\n".join(f"  {label(step.names)}: {step.why}" for step in failed)
            raise UserError(
                f"{len(failed)} of {len(steps)} runs failed, so nothing was decided at this step:\n{reasons}\n"
                "  The same command tries them again; all others are done. Or leave them out of --candidates"
            )


def _try(parent: Names, name: str, bench: Bench, tried: dict[str, Names]) -> Step:
    names = (*parent, name)
    try:
        key = bench.key(names)
    except UserError as error:
        return Step(names, f"not tried: {'; '.join(str(error).splitlines())}")
    if key in tried:
        same = f"runs like {label(tried[key])}, which was tried" if tried[key] != parent else "changes nothing here"
        return Step(names, f"not tried: {same}")
    tried[key] = names
    try:
        outcome, gain = bench.measure(names), bench.gain(parent, names)
    except UserError as error:
        return Step(names, f"failed: {'; '.join(str(error).splitlines())}", failed=True)
    return Step(names, "not decided", outcome.score, outcome.seconds, gain)


def _without_repeats(steps: Sequence[Step], ladder: Sequence[Step]) -> list[Step]:
    """The steps, less those that could not be tried for a reason that was given before."""
    said = {(step.names[-1:], step.why) for step in ladder}
    news = []
    for step in steps:
        told = step.names[-1:], step.why
        if step.gain or step.failed or told not in said:
            news.append(step)
        said.add(told)
    return news


def _judged(steps: Sequence[Step], beam: int, unproven: bool) -> list[Step]:
    """Decide the steps of one depth: those that ran come first, the best at the top."""
    ran = [(step, step.gain) for step in steps if step.gain]
    corrected = holm([gain.p for _, gain in ran])
    ran = [(replace(step, p_holm=p), gain) for (step, gain), p in zip(ran, corrected)]
    ran.sort(key=lambda pair: -(pair[0].score or 0.0))  # stable: of equals the earlier stays first
    shown = {step.names: step.p_holm is not None and step.p_holm < ALPHA for step, _ in ran}
    better = [step.names for step, gain in ran if gain.difference > 0 and (unproven or shown[step.names])]
    kept = better[:beam]
    judged = [
        replace(step, kept=step.names in kept, why=_why(gain.difference, shown[step.names], step.names in kept))
        for step, gain in ran
    ]
    return judged + [step for step in steps if not step.gain]


def _why(difference: float, shown: bool, kept: bool) -> str:
    if difference <= 0:
        return "hurts" if shown else "no better"
    if not shown:
        return "kept, though luck may explain it" if kept else "higher, which luck may explain"
    return "helps" if kept else "helps, but others score higher"


def stepwise(
    candidates: Sequence[str],
    base: str | None = None,
    beam: int = 1,
    budget: str = "paper",
    seeds: int = 1,
    overrides: Mapping[str, Any] | None = None,
    unproven: bool = False,
    out: str | Path = "recipes/stepwise",
    root: str | Path = ".",
) -> list[Step]:
    """Selects extensions, and writes the ladder so far to `out` at the start and after every depth.

    Args:
        candidates: names of recipes/extensions.yaml.
        base: the row to start from; None: params.yaml as it is.
        beam, unproven: see `forward_selection`.
        budget, seeds, overrides: of every run, see `DvcBench`.
        out: the folder of ladder.md, ladder.csv and ladder.png.
        root: the folder that holds dvc.yaml and recipes/.

    Returns:
        The ladder.

    Raises:
        UserError: if a name is unknown, the base is wrong or can't be run, or runs fail.
    """
    folder = Path(root) / "recipes"
    extensions = load_extensions(folder)
    candidates = list(dict.fromkeys(candidates))
    for name in candidates:
        find(name, extensions, "recipes/extensions.yaml")
    bench = DvcBench(load_recipes(folder), extensions, base, budget, seeds, overrides, root)
    title = f"Stepwise selection on {base or 'params.yaml'}, budget {budget}, {seeds} seed{'s' if seeds > 1 else ''}"
    ladder: list[Step] = []
    for ladder in forward_selection(candidates, bench, beam, unproven):
        write_ladder(ladder, out, title, _notes(ladder, extensions, bench, beam, unproven, overrides or {}))
        for step in ladder:
            if step.depth == ladder[-1].depth:
                say(_line(step))
    top = best(ladder)
    say(f"best: {label(top.names)}, {top.score:.4f}; dvc exp apply {bench.experiment(top.names, 1)}")
    return ladder


def _notes(
    ladder: Sequence[Step],
    extensions: Mapping[str, Extension],
    bench: DvcBench,
    beam: int,
    unproven: bool,
    overrides: Mapping[str, Any],
) -> list[str]:
    tested = "a higher score is kept, proven or not" if unproven else "kept where p after Holm is below 0.05"
    seconds = "differences are to the set under `on`; Holm's p allows for all sets of a step; seconds are of training"
    names = dict.fromkeys(step.names[-1] for step in ladder if step.names)
    return [
        f"Scores are {METRIC} on dev, {seconds}; {tested}; beam {beam}{settings_text(overrides)}.",
        "Sets were chosen on these rows, which flatters the best of them; test or other seeds say what it is worth.",
        f"The best set is the experiment `{bench.experiment(best(ladder).names, 1)}`.",
        "\n".join(f"- {name}: {extensions[name].what}" for name in names),
    ]


def _line(step: Step) -> str:
    if step.gain is None:
        figures = "" if step.score is None else f" {step.score:.4f}"
        return f"step {step.depth}: {label(step.names)}{figures}: {step.why}"
    low, high = step.gain.interval
    figures = f"{step.score:.4f} ({step.gain.difference:+.4f}, {low:+.4f} to {high:+.4f})"
    return f"step {step.depth}: {label(step.names)} {figures}: {step.why}"
