"""Run rows of the papers' tables as DVC experiments, and save their results."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertrio.core.console import say
from bertrio.core.errors import UserError
from bertrio.experiments.dvc_experiments import PARAMS, run_experiment, short_digest
from bertrio.experiments.machine_paths import by_last_names, is_override, machine_independent, overridden
from bertrio.experiments.recipes.measured import FOLDER, Measured, measure, read_measured, to_json, write_measured
from bertrio.experiments.recipes.params import Block, changes, listed
from bertrio.experiments.recipes.resolving import SEED, check_apart, resolve
from bertrio.experiments.recipes.rows import Recipes, load_recipes
from bertrio.experiments.revision import Experiment, Revision, find_experiments


def run_rows(
    names: Sequence[str],
    budget: str = "paper",
    seeds: int = 1,
    overrides: Mapping[str, Any] | None = None,
    queue: bool = False,
) -> list[str]:
    """Run every row and seed as a DVC experiment, one at a time, and write its measured file.

    Existing experiments are skipped, so that the same command continues an interrupted series. A failed run does not
    stop the others.

    Args:
        names: rows, tables, papers and sweeps.
        budget: name of the budget.
        seeds: number of runs of each row, with `runtime.seed` 1, 2, ...
        overrides: the user's overrides by dotted param.
        queue: only add the experiments to DVC's queue.

    Returns:
        Names of the experiments.

    Raises:
        UserError: before any run if a name or param is wrong or params.yaml is not committed; after all runs, naming
            those that failed.
        KeyboardInterrupt: on interruption.
    """
    overrides = overrides or {}
    seed = overrides.get(SEED)
    if seed is not None and seeds != 1:
        raise UserError(f"found both {seeds} seeds and -S {SEED}={seed}, expected one of the two")
    runs = _planned(names, budget, range(1, seeds + 1) if seed is None else [seed], overrides)
    failed = []
    for number, (name, settings) in enumerate(runs.items(), start=1):
        say(f"[{number}/{len(runs)}] {name}")
        try:
            run_experiment(name, settings, queue)
            for path in [] if queue else collect([name]):
                say(f"wrote {path}")
        except UserError as error:
            say(str(error))
            failed.append(str(error))
        except KeyboardInterrupt:
            say(f"stopped; the same command goes on from {name}")
            raise
    if queue:
        say("next: dvc queue start, and in the end bertrio recipes collect; see docs/experiments.md")
    if failed:
        text = f"{len(failed)} of {len(runs)} runs failed; the same command tries them again:"
        raise UserError("\n  ".join([text, *failed]))
    return list(runs)


def _planned(names: Sequence[str], budget: str, seeds: Sequence[int], overrides: Mapping[str, Any]) -> dict[str, Block]:
    """Return the params of each experiment by its name."""
    recipes = load_recipes()
    _need_committed(recipes.params)
    rows = recipes.expand(names)
    resolved = {(row.name, seed): resolve(recipes, row, budget, overrides, seed) for row in rows for seed in seeds}
    for row in rows:
        check_apart([resolved[row.name, seed] for seed in seeds], row.name)
    return {
        experiment_name(row.run_as, budget, seed, overrides): resolved[row.name, seed]
        for seed in seeds  # the outer loop, so that an interrupted series covers all rows
        for row in rows
    }


def _need_committed(params: Mapping[str, Any]) -> None:
    """Raise a UserError if params.yaml differs from the last commit in a param that `is_override` names.

    Rows build on params.yaml: a run with edited params would be stored under the wrong row.
    """
    edited = changes(Revision.open("HEAD").settings(), params)
    if wrong := {param: values for param, values in edited.items() if is_override(param)}:
        raise UserError(
            f"{PARAMS}: has been changed since the last commit, from which rows start; git checkout it, commit it, or "
            f"give the change by -S{listed(wrong, 'committed', 'found')}"
        )


def experiment_name(row_name: str, budget: str, seed: int, overrides: Mapping[str, Any]) -> str:
    """Return the experiment name of a run, such as `smart-concat-quick-s1`, with a digest of any overrides.

    The digest is the same on every machine: paths of data count by their last component, device and threads not at all.
    """
    counted = {param: value for param, value in by_last_names(machine_independent(overrides)).items() if param != SEED}
    return f"{row_name}-{budget}-s{seed}" + (f"-{short_digest(counted)}" if counted else "")


def collect(names: Iterable[str] | None = None) -> list[Path]:
    """Write a file in recipes/measured for every experiment that is named after a row.

    An existing file with the same figures does not change.

    Args:
        names: names of experiments; None takes all, including those of other commits.

    Returns:
        The written files.

    Raises:
        UserError: after all other files are written, naming the experiments and files that can't be read.
    """
    recipes, existing = load_recipes(), find_experiments()
    chosen = sorted(existing.keys() if names is None else existing.keys() & set(names))
    written, problems = [], []
    for name in chosen:
        try:
            measured, path = _measure(existing[name], recipes), Path(FOLDER) / f"{name}.json"
            if measured and not (path.exists() and _figures(read_measured(path)) == _figures(measured)):
                written.append(write_measured(measured))
        except UserError as error:
            problems.append(f"{name}: {error}")
    if problems:
        raise UserError("\n  ".join([f"{len(problems)} of {len(chosen)} experiments can't be collected:", *problems]))
    return written


def _figures(measured: Measured) -> dict[str, Any]:
    """Return the content without the fields that depend on the current recipes or the version of bertrio."""
    return to_json(replace(measured, overrides={}, version="", device=None))


def _measure(experiment: Experiment, recipes: Recipes) -> Measured | None:
    """Return the measured run of an experiment; None if it is not named after a row.

    Its overrides are the params that differ from those of its row, if the row or the experiment set them. A param that
    neither set differs only because a default of params.yaml has changed since.
    """
    budgets = "|".join(map(re.escape, recipes.budgets))
    named = re.fullmatch(rf"(?P<row>.+)-(?P<budget>{budgets})-s\d+(-[0-9a-f]{{6}})?", experiment.name)
    if named is None or len(recipes.groups.get(named["row"], ())) != 1:
        return None
    [row] = recipes.groups[named["row"]]
    revision = Revision.open(experiment.commit)
    settings, baseline = revision.settings(), Revision.open(experiment.baseline).settings()
    expected = resolve(recipes, row, named["budget"], seed=settings["runtime"]["seed"])
    set_by_either = changes(recipes.params, expected) | changes(baseline, settings)
    return measure(
        revision,
        name=experiment.name,
        row=row.run_as,
        budget=named["budget"],
        overrides={name: value for name, value in overridden(expected, settings).items() if name in set_by_either},
        commit=experiment.baseline[:7],
    )
