"""Search for params with a higher dev score: an Optuna study whose trials are DVC experiments.

Optuna stores the study in a journal file, `<out>/<study>/journal.log`, so the same command continues a stopped search.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import filelock
import pandas as pd
import yaml

from bertrio.config import build_tasks
from bertrio.config.loading import read_yaml, validate_params
from bertrio.config.root import OVERALL
from bertrio.core.console import print_table, say
from bertrio.core.errors import UserError, missing_package, writing_to
from bertrio.core.files import write_csv, write_text
from bertrio.experiments.dvc_experiments import run_experiment, short_digest
from bertrio.experiments.machine_paths import of_any_machine, settings_text
from bertrio.experiments.recipes.params import changes, value_text, with_numbers
from bertrio.experiments.recipes.resolving import SEED, resolve
from bertrio.experiments.recipes.rows import Recipes, Row, load_recipes
from bertrio.experiments.revision import Revision
from bertrio.training.callbacks import VARIABLE as PROGRESS

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.distributions import BaseDistribution

Space = Mapping[str, "BaseDistribution"]  # by dotted param
Prune = Literal["median", "hyperband", "none"]
PRUNERS: dict[str, str] = {"median": "MedianPruner", "hyperband": "HyperbandPruner", "none": "NopPruner"}  # of Optuna
CHECKPOINTS = "BERTRIO_CHECKPOINTS"  # training.checkpoints.VARIABLE, which would import torch
STAGE = "finetune"
PROBES = 50  # random points, at least one of which must have valid params
IMPORTANCE_FROM = 10  # finished trials
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # a folder, and the first part of the experiments' names
FORMS = "log:LOW:HIGH, uniform:LOW:HIGH, int:LOW:HIGH, or values with commas between them"
DIGITS = 4  # of drawn numbers


def import_optuna() -> Any:
    """Import Optuna and silence its progress messages.

    Raises:
        UserError: if it is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise missing_package("search", ["optuna"], "search") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def parse_space(texts: Sequence[str]) -> Space:
    """Parse texts such as `finetune.lr=log:1e-5:1e-4` or `smart.lambda=0,1,5` into Optuna's distributions.

    Raises:
        UserError: if a text has another form, or names a param twice.
    """
    space: dict[str, BaseDistribution] = {}
    for text in texts:
        param, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not all(param.split(".")):
            raise UserError(f"{text}: expected a dotted param and its values, PARAM= with {FORMS}")
        if param in space:
            raise UserError(f"{text}: {param} is given twice")
        kind, colon, ends = values.partition(":")
        numbers = bool(colon) and kind in ("log", "uniform", "int")
        space[param] = _numbers(text, kind, ends.split(":")) if numbers else _choices(text, values)
    return space


def values_at(point: Mapping[str, Any]) -> dict[str, Any]:
    """Return the params of a trial: Optuna's numbers with four digits, and the values that its choices stand for."""
    return {param: _value(coordinate) for param, coordinate in point.items()}


def _value(coordinate: Any) -> Any:
    if isinstance(coordinate, str):
        return json.loads(coordinate)
    return float(f"{coordinate:.{DIGITS}g}") if isinstance(coordinate, float) else coordinate


def _numbers(text: str, kind: str, ends: Sequence[str]) -> BaseDistribution:
    distributions = import_optuna().distributions
    try:
        low, high = (int(end) if kind == "int" else float(end) for end in ends)
    except ValueError:
        what = "whole numbers, as in int:1:4" if kind == "int" else f"numbers, as in {kind}:1e-5:1e-4"
        raise UserError(f"{text}: expected two {what}") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UserError(f"{text}: found {ends[0]} to {ends[1]}, expected a number and a greater one")
    if kind == "log" and low <= 0:
        raise UserError(f"{text}: found {ends[0]}, expected numbers above 0; use uniform: for others")
    if kind == "int":
        return distributions.IntDistribution(low, high)
    return distributions.FloatDistribution(low, high, log=kind == "log")


def _choices(text: str, values: str) -> BaseDistribution:
    """A choice of any YAML values, which Optuna stores as JSON texts."""
    try:
        choices = with_numbers(yaml.safe_load(f"[{values}]"))
    except yaml.YAMLError as error:
        raise UserError(f"{text}: the values are not valid YAML: {' '.join(str(error).split())}") from error
    if len(choices) < 2:
        raise UserError(f"{text}: found one value, expected {FORMS}; -S sets a param to one value")
    if len({value_text(value) for value in choices}) < len(choices):
        raise UserError(f"{text}: a value is given twice")
    return import_optuna().distributions.CategoricalDistribution([json.dumps(value, default=str) for value in choices])


@dataclass(frozen=True)
class TrialRunner:
    """Runs trials as DVC experiments.

    Args:
        name: of the study; the experiment of a trial is `<name>-<six digits of its params>`.
        folder: of the study; it holds the progress files and checkpoints of running trials.
        recipes: rows and budgets.
        row, budget, overrides, params: what every trial starts from, see `resolve`.
        metric: of dev: an overall score, or a task and its metric.
        root: the folder that holds dvc.yaml.
    """

    name: str
    folder: Path
    recipes: Recipes
    row: Row
    budget: str
    overrides: Mapping[str, Any]
    params: Mapping[str, Any]
    metric: tuple[str, ...]
    root: Path

    def settings(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the raw params of a trial.

        Raises:
            UserError: if they are invalid.
        """
        overrides = {**self.overrides, **values}
        try:
            return resolve(self.recipes, self.row, self.budget, overrides, base=self.params)
        except UserError as error:
            where = "".join(f", -S {param}={value_text(value)}" for param, value in overrides.items()) + ": "
            raise UserError("; ".join(line.strip().split(where)[-1] for line in str(error).splitlines())) from None

    def experiment(self, values: Mapping[str, Any]) -> str:
        """Return the name of a trial's experiment."""
        return f"{self.name}-{short_digest(json.dumps(values, sort_keys=True))}"

    def run(self, trial: Trial, values: Mapping[str, Any]) -> float:
        """Run a trial, unless its experiment exists, and return its score.

        Raises:
            UserError: if the run fails.
            optuna.TrialPruned: if the pruner stopped it.
        """
        pruned = import_optuna().TrialPruned
        name, reported = self.experiment(values), set()
        progress = self.folder.absolute() / f"{name}.jsonl"
        progress.unlink(missing_ok=True)
        checkpoints = Path(os.environ.get(CHECKPOINTS) or self.folder).expanduser().absolute() / f"checkpoints-{name}"

        def watch() -> None:
            for epoch, score, last in read_epochs(progress, f"dev_{'_'.join(self.metric)}"):
                if epoch not in reported:
                    reported.add(epoch)
                    trial.report(score, epoch)
                    if trial.should_prune() and not last:
                        raise pruned

        environment = {PROGRESS: str(progress), CHECKPOINTS: str(checkpoints)}
        try:
            run_experiment(name, self.settings(values), self.root, watch=watch, environment=environment)
        except pruned:
            shutil.rmtree(checkpoints, ignore_errors=True)
            raise
        shutil.rmtree(checkpoints, ignore_errors=True)
        score: Any = Revision.open(name, self.root).json("metrics/evaluation.json")["dev"]
        for key in self.metric:
            if key not in score:
                raise UserError(f"{name}: metrics/evaluation.json has no {key} of dev, but {', '.join(score)}")
            score = score[key]
        return float(score)


def read_epochs(path: Path, metric: str) -> list[tuple[int, float, bool]]:
    """Return the epochs that a run has written so far: number, score, and whether it is the last one.

    Of an ensemble, the first member that trains counts.
    """
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = [json.loads(line) for line in text.split("\n")[:-1]]  # the last line may be incomplete
    lines = [line for line in lines if line["stage"].startswith(STAGE) and metric in line]
    return [(line["epoch"], line[metric], line["last"]) for line in lines if line["stage"] == lines[0]["stage"]]


def search(
    texts: Sequence[str],
    trials: int = 20,
    base: str | None = None,
    budget: str = "paper",
    overrides: Mapping[str, Any] | None = None,
    seed: int = 1,
    prune: Prune = "median",
    metric: str = OVERALL[0],
    study: str | None = None,
    out: str | Path = "recipes/search",
    root: str | Path = ".",
) -> Study:
    """Search a space of params, and write the trials to a folder of `out` after each of them.

    Points are drawn by a tree-structured Parzen estimator (Bergstra et al. 2011, "Algorithms for Hyper-Parameter
    Optimization"), the first ten at random. `median` stops a run whose best epoch is below the median of earlier runs
    at that epoch, from the sixth run on; `hyperband` is Li et al. 2018.

    Args:
        texts: the space, see `parse_space`.
        trials: how many finished or pruned trials there are in the end, earlier ones included.
        base: the row to start from; None: params.yaml.
        budget: of every run.
        overrides: dotted params and values on top of base and budget.
        seed: of the sampler.
        prune: median, hyperband or none.
        metric: the dev score to raise: overall_normalized, overall_mean, or a task (its first metric).
        study: the name of the search; None derives one from the arguments and params.yaml.
        out: gets a folder with the name of the search: journal.log, trials.md and trials.csv.
        root: the folder that holds dvc.yaml and recipes/.

    Returns:
        Optuna's study.

    Raises:
        UserError: before any run if an argument is wrong, or no point of the space is valid; at the end if runs failed.
    """
    root, space, overrides = Path(root), parse_space(texts), dict(overrides or {})
    for param in space.keys() & overrides.keys():
        raise UserError(f"-S {param}={value_text(overrides[param])}: the search sets {param}; leave out one of them")
    if SEED in space:
        raise UserError(f"{SEED}: the best of several seeds is the luckiest; search without it, then try other seeds")
    if study is not None and not NAME.fullmatch(study):
        raise UserError(f"--study {study}: expected up to 100 letters, digits, dots, dashes and underscores")
    recipes, params = load_recipes(root / "recipes"), read_yaml(root / "params.yaml")
    row = recipes.row(base) if base else Row(name="params.yaml", paper="params", title="params.yaml")
    path = _metric(metric, resolve(recipes, row, budget, overrides, base=params))
    plan: dict[str, Any] = {
        "space": {text.partition("=")[0].strip(): text.partition("=")[2].strip() for text in texts},
        **{"base": base, "budget": budget, "seed": seed, "prune": prune, "metric": metric},
        "overrides": of_any_machine(overrides),
        "params": of_any_machine({param: own for param, (_, own) in changes({}, with_numbers(params)).items()}),
    }
    plan = json.loads(json.dumps(plan, default=str))
    name = study or f"search-{short_digest(json.dumps(plan, sort_keys=True))}"
    folder = Path(out) / name
    runner = TrialRunner(name, folder, recipes, row, budget, overrides, params, path, root)
    _check_possible(space, runner)
    with _locked(folder, name):
        opened = _open_study(folder, name, plan)
        try:
            _explore(opened, space, trials, seed, runner)
        except KeyboardInterrupt:
            say(f"stopped; the same command continues {name}")
            raise
    return opened


def _metric(wanted: str, settings: dict[str, Any]) -> tuple[str, ...]:
    tasks = build_tasks(validate_params(settings, "params.yaml"))
    if wanted not in (*OVERALL, *tasks):
        raise UserError(f"--metric {wanted}: expected {', '.join([*OVERALL, *tasks])}")
    return (wanted, tasks[wanted].target.metrics[0]) if wanted in tasks else (wanted,)


def _check_possible(space: Space, runner: TrialRunner) -> None:
    """Raise a UserError if no random point is valid: then a param of the space is wrong, not some of its values."""
    optuna, refusals = import_optuna(), []
    probe = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(PROBES):
        try:
            runner.settings(values_at(probe.ask(space).params))
        except UserError as error:
            refusals.append(str(error))
        else:
            return
    [(usual, _)] = Counter(refusals).most_common(1)
    raise UserError(f"none of {PROBES} points of this space can be run; most often because of: {usual}")


@contextmanager
def _locked(folder: Path, name: str) -> Iterator[None]:
    """Create the folder of a search and lock it."""
    lock = filelock.FileLock(folder / "lock", blocking=False)
    with writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except filelock.Timeout:
            raise UserError(f"search {name}: another process runs it; wait until it ends, or stop it") from None
    try:
        yield
    finally:
        lock.release()


def _open_study(folder: Path, name: str, plan: Mapping[str, Any]) -> Study:
    """Open or create the study, and mark trials of a killed process as failed."""
    optuna = import_optuna()
    journal = optuna.storages.journal
    storage = optuna.storages.JournalStorage(journal.JournalFileBackend(str(folder / "journal.log")))
    pruner = getattr(optuna.pruners, PRUNERS[plan["prune"]])()
    study = optuna.create_study(
        storage=storage, study_name=name, direction="maximize", pruner=pruner, load_if_exists=True
    )
    if wrong := changes(study.user_attrs.get("plan", plan), plan):
        lines = "".join(
            f"\n  {key}: there {value_text(old)}, asked for {value_text(new)}" for key, (old, new) in wrong.items()
        )
        raise UserError(f"{folder}: is another search; give this one another name with --study{lines}")
    study.set_user_attr("plan", dict(plan))
    for trial in study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
    return study


def _explore(study: Study, space: Space, count: int, seed: int, runner: TrialRunner) -> None:
    """Run trials until `count` are finished or pruned, failed and interrupted ones of earlier calls first."""
    optuna = import_optuna()
    state, finished = optuna.trial.TrialState, _finished(study)
    points = [trial.params for trial in finished]
    for failed in study.get_trials(states=(state.FAIL,)):
        if failed.params.keys() == space.keys() and failed.params not in points:
            study.enqueue_trial(failed.params)
            points.append(failed.params)
    failures: list[str] = []
    for _ in range(count - len(finished)):
        # Seeded by the trials so far: a stopped search proposes what it would have proposed without the stop
        drawn = len(_finished(study)) + len(failures)
        study.sampler = optuna.samplers.TPESampler(seed=1000 * seed + drawn)
        trial = study.ask(dict(space))
        try:
            _evaluate(study, trial, runner)
        except UserError as error:
            study.tell(trial, state=state.FAIL)
            failures.append(f"  trial {trial.number}: {'; '.join(map(str.strip, str(error).splitlines()))}")
        _report(study, trial.number, runner.folder)
    _summary(study, runner.folder)
    if failures:
        raise UserError("\n".join([f"{len(failures)} runs failed; the same command tries them again:", *failures]))


def _finished(study: Study) -> list[Any]:
    states = import_optuna().trial.TrialState
    return study.get_trials(deepcopy=False, states=(states.COMPLETE, states.PRUNED))


def _evaluate(study: Study, trial: Trial, runner: TrialRunner) -> None:
    """Run one trial and record its outcome. Invalid params and params of an earlier trial are not run."""
    optuna = import_optuna()
    state, values = optuna.trial.TrialState, values_at(trial.params)
    for earlier in _finished(study):
        if values_at(earlier.params) == values:
            for epoch, score in earlier.intermediate_values.items():
                trial.report(score, epoch)
            attributes = {**earlier.user_attrs, "why": f"has the params of trial {earlier.number}"}
            for key, value in attributes.items():
                trial.set_user_attr(key, value)
            study.tell(trial, earlier.value if earlier.state == state.COMPLETE else None, state=earlier.state)
            return
    try:
        runner.settings(values)
    except UserError as error:
        trial.set_user_attr("why", f"invalid: {error}")
        study.tell(trial, state=state.PRUNED)
        return
    trial.set_user_attr("experiment", runner.experiment(values))
    try:
        score = runner.run(trial, values)
    except optuna.TrialPruned:
        study.tell(trial, state=state.PRUNED)
    else:
        study.tell(trial, score)


def table(study: Study) -> pd.DataFrame:
    """Return the trials, the highest score first."""
    rows = []
    for trial in study.get_trials(deepcopy=False):
        epochs, complete = trial.intermediate_values, trial.state.name == "COMPLETE"
        rows.append(
            {
                "trial": trial.number,
                "state": trial.state.name.lower(),
                "score": trial.value if complete else None,
                **{param: value_text(value) for param, value in values_at(trial.params).items()},
                "epochs": len(epochs),
                "last_epoch": epochs[max(epochs)] if epochs else None,
                "seconds": trial.duration.total_seconds() if trial.duration else None,
                "experiment": trial.user_attrs.get("experiment", ""),
                "why": trial.user_attrs.get("why", ""),
            }
        )
    frame = pd.DataFrame(rows).astype({"score": float, "last_epoch": float, "seconds": float})
    return frame.sort_values(["score", "trial"], ascending=[False, True])


def _report(study: Study, number: int, folder: Path) -> None:
    """Print the trial that just ended, and write trials.md and trials.csv."""
    frame, title = table(study), _title(study)
    write_csv(frame, folder / "trials.csv")
    shown = frame.to_markdown(index=False, floatfmt=".4f", missingval="-")
    write_text(folder / "trials.md", "\n\n".join([f"# {title[0]}", shown, *title[1:], *_notes(study)]) + "\n")
    trial = study.trials[number]
    params = ", ".join(f"{param} {value_text(value)}" for param, value in values_at(trial.params).items())
    score = "" if trial.value is None else f" {trial.value:.4f}"
    why = f", {trial.user_attrs['why']}" if "why" in trial.user_attrs else ""
    say(f"trial {number}: {trial.state.name.lower()}{score}{why} ({params})")


def _summary(study: Study, folder: Path) -> None:
    """Print all trials, the best one, and which params mattered."""
    if study.trials:
        print_table(table(study).drop(columns=["last_epoch", "why"]).round({"seconds": 0}), _title(study)[0])
    for note in [*_notes(study), f"wrote {folder}/trials.md and trials.csv"]:
        print(note.replace("**", "").replace("`", ""))


def _title(study: Study) -> list[str]:
    plan = study.user_attrs["plan"]
    space = "; ".join(f"{param}={values}" for param, values in plan["space"].items())
    settings = settings_text(plan["overrides"])
    return [
        f"Search on {plan['base'] or 'params.yaml'}, budget {plan['budget']}",
        f"Score: {plan['metric']} on dev. Space: {space}{settings}. Seed {plan['seed']}, pruning: {plan['prune']}.",
    ]


def _notes(study: Study) -> list[str]:
    """The best trial, how to apply it, and the importance of each param."""
    optuna, notes = import_optuna(), []
    complete = [trial for trial in study.trials if trial.state == optuna.trial.TrialState.COMPLETE]
    if study.user_attrs["plan"]["prune"] != "none" and all(len(trial.intermediate_values) < 2 for trial in complete):
        notes.append("No run had a second epoch, so there was nothing to prune.")
    if complete:
        best = study.best_trial
        notes.append(
            f"Best: **trial {best.number}**, {best.value:.4f}: `dvc exp apply {best.user_attrs['experiment']}`."
        )
        notes.append("It was chosen on these dev rows, so its score is optimistic; confirm it on test or other seeds.")
    if len(complete) >= IMPORTANCE_FROM and len({trial.value for trial in complete}) > 1:
        importances = optuna.importance.get_param_importances(study).items()
        notes.append("Importance: " + ", ".join(f"{param} {share:.2f}" for param, share in importances) + ".")
    return notes
