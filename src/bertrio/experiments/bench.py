"""Sets of extensions as DVC experiments: what stepwise selection runs and compares."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertrio.config.loading import read_yaml, validate_params
from bertrio.core.errors import UserError
from bertrio.experiments.dvc_experiments import short_digest
from bertrio.experiments.ladder import Gain, Names
from bertrio.experiments.machine_paths import of_any_machine
from bertrio.experiments.recipes.params import changes
from bertrio.experiments.recipes.resolving import SEED, resolve
from bertrio.experiments.recipes.rows import BASE, Extension, Recipes, Row
from bertrio.experiments.revision import Revision

METRIC = "overall_normalized"
LONGEST = 150  # characters of an experiment's name; git has its files, whose names end at 255


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
