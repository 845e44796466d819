"""Search for params that score higher: Optuna proposes them, DVC experiments try them, and hopeless runs are given up.

Every trial is a DVC experiment named after the search. What came of each is kept in trials.json: a search that was
stopped is started again with the same command, runs the trial that was cut short once more, and goes on as if nothing
had happened.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from bertrio.config.loading import read_yaml
from bertrio.core.console import say
from bertrio.core.errors import UserError
from bertrio.experiments.bench import SEED
from bertrio.experiments.places import settings_text
from bertrio.experiments.plan import Plan
from bertrio.experiments.proposer import Proposer, Prune
from bertrio.experiments.recipes.params import changes, value_text, with_numbers
from bertrio.experiments.recipes.rows import load_recipes
from bertrio.experiments.sheets import console_for_sheets
from bertrio.experiments.space import Point, Space, parse_space, values_at
from bertrio.experiments.trial_bench import Outcome, Stops, TrialBench
from bertrio.experiments.trials import Trial, best, read_trials, sheet, write_trials
from bertrio.training.folder_lock import FolderLock

LOOKS = 50  # points of a space, of which one at least has to be possible
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # a folder, and the beginning of experiments' names


class Bench(Protocol):
    """Where trials are run."""

    def experiment(self, number: int) -> str:
        """The name of a trial's run."""

    def refusal(self, values: Mapping[str, Any]) -> str | None:
        """Why it can't be run; None if it can."""

    def run(self, number: int, values: Mapping[str, Any], stops: Stops) -> Outcome | None:
        """Runs it, unless it has run; None if `stops`, asked after each epoch, gave it up. A UserError: it failed."""


def explore(plan: Plan, bench: Bench, count: int, known: Sequence[Trial] = ()) -> Iterator[tuple[Trial, list[Trial]]]:
    """Makes trials one after the other, and gives each that is new with all that there are.

    A trial depends on the plan and the trials before it alone. Those that failed are run again, with the same params.
    Params that an earlier trial had are not run a second time.

    Args:
        plan: what to look for.
        bench: runs them.
        count: how many trials there are in the end.
        known: those that were made before, by number from 1 on.
    """
    proposer, trials = Proposer(plan.space, plan.seed, plan.prune), []
    for number in range(1, count + 1):
        old = known[number - 1] if number <= len(known) else None
        point = proposer.propose(old.point if old else None)
        values = values_at(plan.space, point)
        trial = old if old and old.state != "failed" else _without_run(number, point, values, trials, bench)
        if trial:
            for score in trial.epochs:
                proposer.stops(score)
        else:
            trial = _run(number, point, values, proposer, bench)
        proposer.close(trial.state, trial.score)
        trials.append(trial)
        if trial is not old:
            yield trial, [*trials, *known[number:]]


def _without_run(
    number: int, point: Point, values: Mapping[str, Any], before: Sequence[Trial], bench: Bench
) -> Trial | None:
    """The trial, if it can't be run or need not be."""
    if refusal := bench.refusal(values):
        return Trial(number, point, values, "refused", why=refusal)
    for same in before:
        if same.values == values and same.state != "failed":
            return replace(same, number=number, point=point, why=f"has the params of t{same.number}")
    return None


def _run(number: int, point: Point, values: Mapping[str, Any], proposer: Proposer, bench: Bench) -> Trial:
    epochs: list[float] = []

    def stops(score: float, last: bool) -> bool:
        epochs.append(score)
        return proposer.stops(score, last)

    name = bench.experiment(number)
    try:
        outcome = bench.run(number, values, stops)
    except UserError as error:
        why = "; ".join(line.strip() for line in str(error).splitlines())
        return Trial(number, point, values, "failed", name, epochs=tuple(epochs), why=why)
    if outcome is None:
        return Trial(number, point, values, "pruned", name, epochs=tuple(epochs))
    return Trial(number, point, values, "finished", name, outcome.score, tuple(epochs), outcome.seconds)


def search(
    texts: Sequence[str],
    trials: int = 20,
    base: str | None = None,
    budget: str = "paper",
    overrides: Mapping[str, Any] | None = None,
    seed: int = 1,
    prune: Prune = "median",
    metric: str = "overall_normalized",
    study: str | None = None,
    out: str | Path = "recipes/search",
    root: str | Path = ".",
) -> list[Trial]:
    """Searches a space of params, and writes the trials so far to a folder of `out` after each.

    Args:
        texts: the space, as `parse_space` takes it.
        trials: how many there are to be in the end, those of a search that goes on included.
        base, budget, overrides, seed, prune, metric: see `Plan`.
        study: the name of the search; None takes one that stands for the plan.
        out: gets a folder with the name of the search: trials.json, trials.md and trials.csv.
        root: the folder that holds dvc.yaml and recipes/.

    Returns:
        The trials, by number.

    Raises:
        UserError: before anything is run if an argument is wrong, or no point of the space can be run; at the end if
            runs failed.
    """
    root, space, overrides = Path(root), parse_space(texts), dict(overrides or {})
    _check(space, overrides, study)
    recipes = load_recipes(root / "recipes")
    plan = Plan(space, base, budget, overrides, seed, prune, metric, _params(root))
    name = study or plan.name
    folder = Path(out) / name
    bench = TrialBench(plan, name, folder, recipes, root)
    _check_possible(plan, bench)
    lock = _locked(folder, f"search {name}")
    try:
        made = known = read_trials(folder, plan)
        for trial, made in explore(plan, bench, trials, known):
            write_trials(made, folder, plan, _notes(made, plan))
            say(_line(trial, made, plan))
    except KeyboardInterrupt:
        say(f"stopped; the same command goes on with {name}")
        raise
    finally:
        lock.release()
    _finish(made, plan, folder)
    return made


def _check(space: Space, overrides: Mapping[str, Any], study: str | None) -> None:
    for param in space:
        if param in overrides:
            raise UserError(
                f"-S {param}={value_text(overrides[param])}: the search sets {param}; leave out one of them"
            )
    if SEED in space:
        raise UserError(
            f"{SEED}: the best of several seeds is the luckiest; search without, then try others with the best"
        )
    if study is not None and not NAME.fullmatch(study):
        raise UserError(f"--study {study}: expected up to 100 letters, digits, dots, dashes and underscores")


def _check_possible(plan: Plan, bench: Bench) -> None:
    """Raises if no point of the space can be run: then not some of its values are wrong, but one of its params is."""
    proposer, refusals = Proposer(plan.space, plan.seed, "none"), []
    for _ in range(LOOKS):
        refusal = bench.refusal(values_at(plan.space, proposer.propose()))
        if refusal is None:
            return
        proposer.close("failed")
        refusals.append(refusal)
    [(usual, _)] = Counter(refusals).most_common(1)
    raise UserError(f"none of {LOOKS} points of this space can be run; most often because of: {usual}")


def _locked(folder: Path, what: str) -> FolderLock:
    """Makes the folder of a search, and keeps others from it."""
    lock = FolderLock(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.take(what)
    except OSError as error:
        raise UserError(
            f"{folder}: can't be written ({error.strerror or error}); name another place with --out"
        ) from error
    return lock


def _params(root: Path) -> dict[str, Any]:
    return {param: own for param, (_, own) in changes({}, with_numbers(read_yaml(root / "params.yaml"))).items()}


def _notes(trials: Sequence[Trial], plan: Plan) -> list[str]:
    states = ", ".join(f"{count} {state}" for state, count in Counter(trial.state for trial in trials).items())
    space = "; ".join(f"{param}={of}" for param, of in plan.space.items())
    settings = settings_text(plan.overrides)
    notes = [
        f"Search on {plan.base or 'params.yaml'}, budget {plan.budget}",
        f"Score: {plan.metric} on dev. Space: {space}{settings}. Seed {plan.seed}, pruning: {plan.prune}. {states}.",
    ]
    if plan.prune != "none" and all(len(trial.epochs) < 2 for trial in trials):
        notes.append("No run had a second epoch, so there was nothing to prune.")
    if top := best(trials):
        notes += [
            f"Best: **t{top.number}**, {top.score:.4f}, with {top.set}: `dvc exp apply {top.experiment}`.",
            "It was chosen on these rows, which flatters it; test or other seeds say what it is worth.",
        ]
    return notes


def _line(trial: Trial, trials: Sequence[Trial], plan: Plan) -> str:
    """A trial that was just made."""
    score = "" if trial.score is None else f" {trial.score:.4f}"
    told = f"t{trial.number}: {trial.told}{score} ({trial.set})"
    if trial == best(trials):
        told += ", the best so far"
    if trial.number == 1 and plan.prune != "none" and len(trial.epochs) == 1:
        told += "; it has one epoch, so there is nothing to prune"
    return told


def _finish(trials: Sequence[Trial], plan: Plan, folder: Path) -> None:
    """Shows all trials; raises if some failed."""
    console = console_for_sheets()
    sheet(trials).show(console)
    for note in _notes(trials, plan)[1:]:
        console.print(note.replace("**", "").replace("`", ""), markup=False, soft_wrap=True)
    console.print(f"wrote {folder}/trials.md, trials.csv and trials.json", markup=False, soft_wrap=True)
    failed = [trial for trial in trials if trial.state == "failed"]
    if failed:
        reasons = "\n".join(f"  t{trial.number}: {trial.why}" for trial in failed)
        raise UserError(f"{len(failed)} of {len(trials)} runs failed; the same command tries them again:\n{reasons}")
