"""The trials of a search as DVC experiments, watched while they train."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from bertrio.config import build_tasks
from bertrio.config.loading import read_yaml, validate_params
from bertrio.core.errors import UserError
from bertrio.experiments.bench import seconds_of
from bertrio.experiments.plan import Plan
from bertrio.experiments.recipes.resolving import resolve
from bertrio.experiments.recipes.rows import Recipes, Row
from bertrio.experiments.revision import Revision
from bertrio.experiments.sweeps import OVERALL
from bertrio.training.progress import VARIABLE as PROGRESS

CHECKPOINTS = "BERTRIO_CHECKPOINTS"  # as in training.checkpoints, which would import torch
STAGE = "finetune"
Stops = Callable[[float, bool], bool]  # takes an epoch's score, and whether it is the last; says whether to stop


class Outcome(NamedTuple):
    """What a run that was not given up came to: its score on dev, and the seconds that it trained."""

    score: float
    seconds: float


class _GivenUp(Exception):
    """A run is to be stopped."""


class TrialBench:
    """Runs the trials of one search.

    Args:
        plan: of the search.
        name: of the search; trial 7 is the experiment `<name>-t7`.
        folder: of the search, for what is there only while it runs.
        recipes: rows and budgets.
        root: the folder that holds dvc.yaml.

    Raises:
        UserError: if there is no such row, budget or metric, or the params of the base are wrong.
    """

    def __init__(self, plan: Plan, name: str, folder: Path, recipes: Recipes, root: Path) -> None:
        self._plan, self._name, self._folder, self._recipes, self._root = plan, name, folder.absolute(), recipes, root
        self._row = recipes.row(plan.base) if plan.base else Row("params.yaml", "params", "", "params.yaml")
        self._params = read_yaml(root / "params.yaml")
        self._metric = self._named_metric(plan.metric)

    def experiment(self, number: int) -> str:
        """The name of the experiment of a trial."""
        return f"{self._name}-t{number}"

    def settings(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The raw params of a trial.

        Raises:
            UserError: if they are wrong, or don't go together.
        """
        overrides = self._overrides(values)
        return resolve(self._recipes, self._row, self._plan.budget, overrides, base=self._params)

    def refusal(self, values: Mapping[str, Any]) -> str | None:
        """Why a trial can't be run; None if it can."""
        try:
            self.settings(values)
        except UserError as error:
            where = rf"^.*?{re.escape(self._row.name)}, budget [^:]*: "  # in each line
            return "; ".join(re.sub(where, "", line.strip()) for line in str(error).splitlines())
        return None

    def run(self, number: int, values: Mapping[str, Any], stops: Stops) -> Outcome | None:
        """Runs a trial, unless it has run; None if `stops` gave it up.

        Args:
            number: of the trial.
            values: its params.
            stops: asked after each epoch, in order, whether to give it up.

        Raises:
            UserError: if the run fails.
        """
        from bertrio.experiments.dvc_experiments import run_experiment

        name, scores = self.experiment(number), _Scores(self._folder / f"epochs-t{number}.jsonl", f"dev_{self._metric}")
        checkpoints = Path(os.environ.get(CHECKPOINTS) or self._folder).expanduser().absolute() / f"checkpoints-{name}"
        told = {PROGRESS: str(scores.path), CHECKPOINTS: str(checkpoints)}

        def watch(over: bool = False) -> None:
            for score, last in scores.new(over):
                if stops(score, last):
                    raise _GivenUp

        try:
            run_experiment(name, self.settings(values), self._root, watch=watch, environment=told)
            watch(over=True)  # what was told after the last look
        except _GivenUp:
            outcome = None
        else:
            outcome = self._outcome(name)
        shutil.rmtree(checkpoints, ignore_errors=True)  # nobody goes on with this run
        return outcome

    def _overrides(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {**self._plan.overrides, **values}

    def _outcome(self, name: str) -> Outcome:
        """What the finished experiment came to."""
        from bertrio.experiments.dvc_experiments import experiments

        revision = Revision.open(experiments(self._root)[name], self._root)
        dev = _flat(revision.json("metrics/evaluation.json")["dev"])
        if self._metric not in dev:
            raise UserError(f"{name}: metrics/evaluation.json has no {self._metric} of dev, but {', '.join(dev)}")
        return Outcome(dev[self._metric], seconds_of(revision))

    def _named_metric(self, wanted: str) -> str:
        """The metric by its whole name: overall_normalized, or of a task sst_accuracy."""
        tasks = build_tasks(validate_params(self.settings({}), "params.yaml"))
        if wanted in tasks:
            return f"{wanted}_{tasks[wanted].target.metrics[0]}"
        if wanted not in OVERALL:
            raise UserError(f"--metric {wanted}: expected {', '.join([*OVERALL, *tasks])}")
        return wanted


class _Scores:
    """The scores that a run writes while it trains, an epoch a line (`training.progress`); of several members of an
    ensemble those of the first one that trains.

    To be made before the run starts. The file has what earlier runs of the trial, which were stopped or failed, have
    told, and the first epoch that this one tells says what that is worth. A run that goes on from a checkpoint, as only
    one of the same code, params and data does, tells the next epoch, and those before are its own; any other begins
    with the first.
    """

    def __init__(self, path: Path, metric: str) -> None:
        self.path, self._metric = path, metric
        self._given, self._earlier = 0, len(self._lines())

    def new(self, over: bool = False) -> Iterator[tuple[float, bool]]:
        """The epochs that were not given before, in order: each one's score, and whether it is the last.

        A run that goes on from a checkpoint may tell an epoch a second time, with the same score.

        Args:
            over: the run has ended well. Then even one that told nothing has what was told before it: all its epochs
                were scored when an earlier run was stopped, or DVC had the trained model in its cache.
        """
        lines = self._lines()
        if len(lines) == self._earlier and not over:
            return  # whether this run begins with the first epoch is not known yet
        epochs: dict[int, dict[str, Any]] = {}
        for line in (line for line in lines if line["stage"] == lines[0]["stage"]):
            epochs = {epoch: told for epoch, told in epochs.items() if epoch < line["epoch"]} | {line["epoch"]: line}
        while (line := epochs.get(self._given + 1)) and self._metric in line:
            self._given += 1
            yield line[self._metric], line["last"]

    def _lines(self) -> list[dict[str, Any]]:
        """What was told of fine-tuning."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        found = []
        for line in text.split("\n")[:-1]:  # what has no end yet is being written
            with suppress(ValueError):  # the end of a line was lost with the process that wrote it
                found.append(json.loads(line))
        return [line for line in found if line["stage"].startswith(STAGE)]


def _flat(scores: Mapping[str, Any]) -> dict[str, float]:
    """Scores by whole name: of tasks, with the metric's, as in sst_accuracy."""
    found: dict[str, float] = {}
    for name, of in scores.items():
        found |= {f"{name}_{metric}": value for metric, value in of.items()} if isinstance(of, Mapping) else {name: of}
    return found
