"""Forward stepwise selection of extensions, as in "BERT++: Trustworthy MultiTask Learning with BERT", section 4.3.

Each depth adds every remaining extension to the current set and keeps the best one if its gain is significant by the
paired test. The selection ends when no extension helps. With a beam, several sets are kept at each depth.

Every run is a DVC experiment, so the same command continues a stopped selection.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bertrio.config.loading import validate_params
from bertrio.core.console import output_console, print_table, say
from bertrio.core.errors import UserError
from bertrio.core.files import write_csv, write_text
from bertrio.evaluation.significance import ALPHA, holm
from bertrio.experiments.compare import compare
from bertrio.experiments.dvc_experiments import run_experiment, short_digest
from bertrio.experiments.machine_paths import machine_independent, settings_text
from bertrio.experiments.recipes.params import Block, flatten
from bertrio.experiments.recipes.resolving import SEED, check_apart, resolve
from bertrio.experiments.recipes.rows import BASE, Extension, Recipes, Row, find, load_extensions, load_recipes
from bertrio.experiments.recipes.table_text import to_markdown
from bertrio.experiments.revision import Revision

Names = tuple[str, ...]  # a set of extensions, in the order of their addition
NAN = math.nan
METRIC = "overall_normalized"
NOTE = (
    "Scores are overall_normalized on dev, differences are to the set under `on`. Sets were chosen on these rows, so "
    "the best score is optimistic: confirm it on test or other seeds."
)
MAX_LABEL = 150  # characters of a set in the name of an experiment, which is a file name in git, with 255 at most


@dataclass(frozen=True)
class Step:
    """One candidate set and its result; a set that could not be run has no score.

    Args:
        names: the set; its last extension is the one that was added.
        score: dev score, mean over seeds.
        difference, low, high, p: gain over the set without the last extension, its 95 % interval and p-value.
        p_holm: p-value by Holm's correction over the sets of this depth.
        kept: whether the next depth extends the set.
        why: short reason for keeping it or not.
    """

    names: Names
    score: float = NAN
    difference: float = NAN
    low: float = NAN
    high: float = NAN
    p: float = NAN
    p_holm: float = NAN
    kept: bool = False
    why: str = ""

    @property
    def tried(self) -> bool:
        """True if the set was run."""
        return not math.isnan(self.score)


def label(names: Names) -> str:
    """Return a set's name."""
    return " + ".join(names) or BASE


@dataclass(frozen=True)
class SetRunner:
    """Runner of sets of extensions as DVC experiments, one for each seed.

    Args:
        recipes: source of budgets and of params.yaml.
        extensions: all extensions, by name.
        row: row to start from.
        budget: budget of every run.
        seeds: number of runs of every set, with `runtime.seed` from 1 on.
        overrides: dotted params and values on top of everything else.
        runs: revisions of the measured sets.
    """

    recipes: Recipes
    extensions: Mapping[str, Extension]
    row: Row
    budget: str
    seeds: int
    overrides: Mapping[str, Any]
    runs: dict[Names, list[Revision]] = field(default_factory=dict)

    def settings(self, names: Names, seed: int = 1) -> Block:
        """Return the raw params of a set.

        Raises:
            UserError: if they are invalid.
        """
        overrides = dict(self.row.overrides)
        for name in names:
            overrides |= self.extensions[name].overrides
        row = self.row.model_copy(update={"overrides": overrides})
        return resolve(self.recipes, row, self.budget, self.overrides, seed)

    def key(self, names: Names) -> str:
        """Return the validated params of a set as JSON, equal for sets with the same effect.

        Raises:
            UserError: if its extensions exclude, need or undo each other, or the params are invalid.
        """
        for name in names:
            for other in self.extensions[name].excludes:
                if other in names:
                    raise UserError(f"{name} and {other} exclude each other")
        for needed in self.extensions[names[-1]].needs if names else ():
            if needed not in names and self._params_json((*names[:-1], needed)) != self._params_json(names[:-1]):
                raise UserError(f"has no effect without {needed}")
        key = self._params_json(names)
        for name in names[:-1]:
            if self._same(tuple(other for other in names if other != name), key):
                raise UserError(f"takes the place of {name}")
        return key

    def _same(self, names: Names, key: str) -> bool:
        """Return whether the params of a set are valid and equal to `key`."""
        try:
            return self._params_json(names) == key
        except UserError:
            return False

    def measure(self, names: Names) -> Step:
        """Run a set with every seed, unless it exists, and compare it with the set without its last extension.

        Raises:
            UserError: if a run fails, or the sets can't be compared.
        """
        settings = {seed: self.settings(names, seed) for seed in range(1, self.seeds + 1)}
        check_apart(settings.values(), label(names))
        for seed, params in settings.items():
            run_experiment(self.experiment(names, seed), params)
        runs = [Revision.open(self.experiment(names, seed)) for seed in settings]
        self.runs[names] = runs
        scores = [run.json("metrics/evaluation.json")["dev"][METRIC] for run in runs]
        step = Step(names, score=float(np.mean(scores)))
        if not names:
            return step
        result = compare(self.runs[names[:-1]], runs)
        if "overall" not in result:
            raise UserError(f"there is no overall score to compare: {'; '.join(result['notes'])}")
        figures = result["overall"][METRIC]
        low, high = figures["interval"]
        return replace(step, difference=figures["difference"], low=low, high=high, p=figures["p"])

    def experiment(self, names: Names, seed: int) -> str:
        """Return the name of the experiment of one run, the same on every machine."""
        digest = short_digest(machine_independent(flatten(self.settings(names, seed))))
        return f"stepwise-{('+'.join(names) or BASE)[:MAX_LABEL]}-{digest}-s{seed}"

    def _params_json(self, names: Names) -> str:
        try:
            return validate_params(self.settings(names), "params.yaml").model_dump_json(by_alias=True)
        except UserError as error:
            raise UserError(str(error.__cause__ or error)) from None


def forward_selection(
    candidates: Sequence[str], runner: SetRunner, beam: int = 1, unproven: bool = False
) -> Iterator[list[Step]]:
    """Select extensions step by step, and yield all steps so far at the start and after every depth.

    Each depth adds every candidate to every kept set. It keeps up to `beam` sets, those with the highest scores, among
    the sets that score higher than the set they extend, with p below 5 % by Holm's correction over this depth. The
    selection ends when no set is kept. Sets with the same params run once.

    Args:
        candidates: extensions in order of trial; among equal scores the earlier is preferred.
        runner: runs and compares sets.
        beam: maximum number of sets to keep at each depth.
        unproven: keep sets that score higher even if the gain is not significant.

    Raises:
        UserError: if a run fails.
    """
    base = replace(runner.measure(()), why="the base", kept=True)
    steps, tried = [base], {runner.key(()): base.names}
    yield steps
    kept = steps
    while kept:
        sets = [(*step.names, name) for step in kept for name in candidates if name not in step.names]
        depth = _decide([_measure_once(names, runner, tried) for names in sets], beam, unproven)
        kept = [step for step in depth if step.kept]
        steps = steps + depth
        yield steps


def _measure_once(names: Names, runner: SetRunner, tried: dict[str, Names]) -> Step:
    try:
        key = runner.key(names)
    except UserError as error:
        return Step(names, why=f"not tried: {'; '.join(str(error).splitlines())}")
    if key in tried:
        return Step(names, why=f"not tried: the same params as {label(tried[key])}")
    tried[key] = names
    return runner.measure(names)


def _decide(steps: Sequence[Step], beam: int, unproven: bool) -> list[Step]:
    """Return the steps of one depth with `p_holm`, `kept` and `why` set: those that ran first, by descending score."""
    ran = [step for step in steps if step.tried]
    ran = [replace(step, p_holm=p) for step, p in zip(ran, holm([step.p for step in ran]))]
    ran.sort(key=lambda step: -step.score)  # stable: ties keep their order
    better = [step for step in ran if step.difference > 0 and (unproven or step.p_holm < ALPHA)]
    ran = [replace(step, kept=step in better[:beam], why=_why(step)) for step in ran]
    return ran + [step for step in steps if not step.tried]


def _why(step: Step) -> str:
    if step.p_holm >= ALPHA:
        return "luck may explain it"
    return "helps" if step.difference > 0 else "hurts"


def steps_table(steps: Sequence[Step]) -> pd.DataFrame:
    """Return a table with one row for each step."""
    rows = [
        {"step": len(step.names), "on": label(step.names[:-1]), "tried": label(step.names[-1:]), **asdict(step)}
        for step in steps
    ]
    return pd.DataFrame(rows).drop(columns="names")


def stepwise(
    candidates: Sequence[str],
    base: str | None = None,
    beam: int = 1,
    budget: str = "paper",
    seeds: int = 1,
    overrides: Mapping[str, Any] | None = None,
    unproven: bool = False,
    out: str | Path = "recipes/stepwise",
) -> list[Step]:
    """Select extensions, and write all steps so far to `out` at the start and after every depth.

    Args:
        candidates: names of extensions in recipes/extensions.yaml.
        base: row to start from, or None for params.yaml.
        beam, unproven: see `forward_selection`.
        budget, seeds, overrides: see `SetRunner`.
        out: folder of steps.md and steps.csv.

    Returns:
        All steps.

    Raises:
        UserError: if a name is unknown, the base is invalid or can't be run, or a run fails.
    """
    overrides = overrides or {}
    if SEED in overrides:
        raise UserError(f"-S {SEED}={overrides[SEED]}: every set has the same seeds, 1 and on; use --seeds N")
    recipes, extensions = load_recipes(), load_extensions()
    for name in candidates:
        find(name, extensions, "recipes/extensions.yaml")
    row = recipes.base_row(base)
    runner = SetRunner(recipes, extensions, row, budget, seeds, overrides)
    title = f"Stepwise selection on {row.name}, budget {budget}, seeds: {seeds}, beam: {beam}{settings_text(overrides)}"
    steps: list[Step] = []
    notes = [NOTE, "\n".join(f"- {name}: {extensions[name].title}" for name in candidates)]
    for steps in forward_selection(list(dict.fromkeys(candidates)), runner, beam, unproven):
        frame, best = steps_table(steps), max((step for step in steps if step.kept), key=lambda step: step.score)
        result = f"Best: {label(best.names)}, {best.score:.4f}: `dvc exp apply {runner.experiment(best.names, 1)}`."
        table = frame.replace(math.nan, None).to_markdown(index=False, floatfmt=".4f", missingval="")
        write_csv(frame, Path(out) / "steps.csv")
        write_text(Path(out) / "steps.md", to_markdown([f"# {title}", result, table, *notes]))
        last_depth = frame[frame["step"] == frame["step"].max()].drop(columns=["low", "high", "p"])
        print_table(last_depth, to=output_console())
    say(result)
    return steps
