"""Runs rows of the papers' tables as DVC experiments, and keeps what they measured."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertrio.config.loading import read_yaml
from bertrio.core.console import say
from bertrio.core.errors import UserError
from bertrio.experiments.dvc_experiments import (
    PARAMS,
    Experiment,
    experiments,
    find_experiments,
    run_experiment,
    short_digest,
)
from bertrio.experiments.places import by_last_names, is_override, of_any_machine, overridden
from bertrio.experiments.recipes.measured import FOLDER, Measured, measure, read_measured, to_json, write_measured
from bertrio.experiments.recipes.params import changes, with_numbers
from bertrio.experiments.recipes.resolving import SEED, check_apart, without_seed
from bertrio.experiments.recipes.rows import load_recipes, resolve
from bertrio.experiments.recipes.set_params import listed

__all__ = ["collect", "experiment_name", "experiments", "run_experiment", "run_rows"]


def run_rows(
    names: Sequence[str],
    budget: str = "paper",
    seeds: int = 1,
    overrides: Mapping[str, Any] | None = None,
    queue: bool = False,
    missing: bool = False,
    root: str | Path = ".",
) -> list[str]:
    """Makes a DVC experiment of every row and seed, one after the other, and writes down what each measured.

    What has been run already is skipped, so a series that was stopped goes on where it was. A run that fails does not
    stop the others.

    Args:
        names: rows, tables, papers and sweeps.
        budget: its name.
        seeds: how many runs of each row; they have `runtime.seed` 1, 2, ...
        overrides: what else is set, by dotted param.
        queue: only add them to DVC's queue.
        missing: leave out what recipes/measured has already, from whatever machine it came.
        root: the root of the repository.

    Returns:
        The names of the experiments.

    Raises:
        UserError: before anything is run if a name or param is wrong, or params.yaml was edited since the last commit
            or never committed; at the end, naming the runs that failed.
        KeyboardInterrupt: if it was stopped.
    """
    seed, overrides = without_seed(overrides or {})
    if seed is not None and seeds != 1:
        raise UserError(f"found both {seeds} seeds and -S {SEED}={seed}, expected one of the two")
    runs = _planned(names, budget, range(1, seeds + 1) if seed is None else [seed], overrides, root)
    if missing:
        runs = {name: settings for name, settings in runs.items() if not _measured_file(root, name).exists()}
    failed = _run_all(runs, queue, root)
    if queue:
        say(
            "next: dvc queue start (N at a time: BERTRIO_WORKERS=N dvc queue start -j N), dvc queue status, and in the "
            "end bertrio recipes collect"
        )
    if failed:
        told = "\n  ".join([f"{len(failed)} of {len(runs)} runs failed; the same command tries them again:", *failed])
        raise UserError(told)
    return list(runs)


def _planned(
    names: Sequence[str], budget: str, seeds: Sequence[int], overrides: Mapping[str, Any], root: str | Path
) -> dict[str, dict[str, Any]]:
    """What each experiment sets, by its name; raises a UserError if one of them could not run, before any does."""
    recipes, base = load_recipes(Path(root) / "recipes"), read_yaml(Path(root) / PARAMS)
    _need_committed(base, root)
    rows = recipes.expand(names)
    resolved = {
        row.name: {seed: resolve(recipes, row, budget, overrides, seed, base) for seed in seeds} for row in rows
    }
    for name, of in resolved.items():
        check_apart(of.values(), name)
    return {
        experiment_name(row.run_as, budget, seed, overrides): resolved[row.name][seed]
        for seed in seeds  # all rows once, then all rows again: a series that is stopped has something of each
        for row in rows
    }


def _run_all(runs: Mapping[str, Mapping[str, Any]], queue: bool, root: str | Path) -> list[str]:
    """Runs, or queues, one experiment after the other; what went wrong with those that failed."""
    failed = []
    for number, (name, settings) in enumerate(runs.items(), start=1):
        say(f"[{number}/{len(runs)}] {name}")
        try:
            run_experiment(name, settings, root, queue)
            for path in [] if queue else collect(root, [name]):
                say(f"wrote {path}")
        except UserError as error:
            say(str(error))
            failed.append(str(error))
        except KeyboardInterrupt:
            say(f"stopped; {name} and what comes after it are missing: the same command goes on from there")
            raise
    return failed


def _need_committed(base: Mapping[str, Any], root: str | Path) -> None:
    """Raises a UserError if params.yaml has been edited since the last commit in what `is_override` names: rows start
    from it, and a run would be filed as a row that it is not. Experiments leave their params there."""
    from bertrio.experiments.revision import Revision

    try:
        committed = Revision.open("HEAD", root).settings()
    except UserError:
        raise UserError(
            f"{PARAMS}: is in no commit yet, and rows start from the committed one; git add {PARAMS} && git commit"
        ) from None
    edited = changes(with_numbers(committed), with_numbers(base))
    if wrong := {param: values for param, values in edited.items() if is_override(param)}:
        raise UserError(
            f"{PARAMS}: rows start from it as it is in the last commit, and it has been changed since; to take that "
            f"back, git checkout {PARAMS}; to run rows with it, give it by -S, or commit it"
            f"{listed(wrong, 'committed', 'found')}"
        )


def experiment_name(row_name: str, budget: str, seed: int, overrides: Mapping[str, Any]) -> str:
    """The experiment of a run: `smart-concat-quick-s1`, with six digits more where params were overridden.

    They stand for the overrides, and are the same on every machine: of a local folder and of a file of data only the
    last name counts, and device and threads do not. A run with another file of that name is refused where there is one
    experiment already.
    """
    own = {param: value for param, value in by_last_names(of_any_machine(overrides)).items() if param != SEED}
    text = json.dumps(own, sort_keys=True, default=str)  # a date of YAML
    return f"{row_name}-{budget}-s{seed}" + (f"-{short_digest(text)}" if own else "")


def _measured_file(root: str | Path, name: str) -> Path:
    return Path(root) / FOLDER / f"{name}.json"


def collect(root: str | Path = ".", names: Iterable[str] | None = None) -> list[Path]:
    """Writes down what experiments measured: a file in recipes/measured for each that is named after a row.

    A file that is there already stays as it is, unless the experiment has other figures by now.

    Args:
        root: the root of the repository.
        names: of experiments; None takes all that DVC knows, those of other commits included.

    Returns:
        The files that were written.

    Raises:
        UserError: when all others are written, naming the experiments and files that can't be read.
    """
    root = Path(root)
    collector, found = _Collector(root), find_experiments(root)
    written: list[Path] = []
    problems: list[str] = []
    chosen = sorted(found.keys() if names is None else found.keys() & set(names))
    for name in chosen:
        try:
            measured = collector.measure(found[name])
            path = _measured_file(root, name)
            if measured is None or (path.exists() and _figures(read_measured(path)) == _figures(measured)):
                continue
            written.append(write_measured(measured, root / FOLDER))
        except UserError as error:
            problems.append(f"{name}: {error}")
    if problems:
        raise UserError("\n  ".join([f"{len(problems)} of {len(chosen)} experiments can't be collected:", *problems]))
    return written


def _figures(measured: Measured) -> dict[str, Any]:
    """What changes with the experiment alone: how a run is described may change with the recipes and with bertrio."""
    return to_json(replace(measured, overrides={}, version="", device=None))


class _Collector:
    """Reads experiments that are named after rows."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.recipes = load_recipes(root / "recipes")
        self.base = read_yaml(root / PARAMS)
        self.baselines: dict[str, dict[str, Any]] = {}  # params.yaml by commit
        budgets = "|".join(map(re.escape, self.recipes.budgets))
        self.form = re.compile(rf"(?P<row>.+)-(?P<budget>{budgets})-s\d+(-[0-9a-f]{{6}})?")

    def measure(self, experiment: Experiment) -> Measured | None:
        """What an experiment measured; None if it is not named after a row."""
        from bertrio.experiments.revision import Revision

        named = self.form.fullmatch(experiment.name)
        if named is None:
            return None
        try:
            row = self.recipes.row(named["row"])
        except UserError:
            return None
        revision = Revision.open(experiment.commit, self.root)
        settings = revision.settings()
        expected = resolve(self.recipes, row, named["budget"], {}, settings["runtime"]["seed"], self.base)
        return measure(
            revision,
            name=experiment.name,
            row=row.run_as,
            budget=named["budget"],
            overrides=self._overrides(settings, expected, experiment.baseline),
            commit=experiment.baseline[:7],
        )

    def _overrides(self, found: Mapping[str, Any], expected: Mapping[str, Any], baseline: str) -> dict[str, Any]:
        """What the params of an experiment have beside those of its row.

        Where a default of params.yaml is another by now, or new, the experiment still has the row's params: so what
        neither the row nor the experiment set does not count.
        """
        from bertrio.experiments.revision import Revision

        if baseline not in self.baselines:
            self.baselines[baseline] = Revision.open(baseline, self.root).settings()
        set_now = changes(with_numbers(self.base), expected)
        set_then = changes(*map(with_numbers, (self.baselines[baseline], found)))
        return {
            param: value
            for param, value in overridden(expected, found).items()
            if param in set_now or param in set_then
        }
