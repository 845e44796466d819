"""Hyperparameter search: an Optuna study whose trials are DVC experiments.

Optuna stores the study in a journal file, `<out>/<study>/journal.log`, so the same command continues a stopped search.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import filelock
import optuna
import pandas as pd
from optuna import Study, Trial
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from bertrio.config import build_tasks
from bertrio.config.loading import validate_params
from bertrio.config.root import OVERALL
from bertrio.core.console import output_console, print_table, say
from bertrio.core.errors import UserError
from bertrio.core.files import write_csv, write_text
from bertrio.experiments.dvc_experiments import run_experiment, short_digest
from bertrio.experiments.machine_paths import machine_independent, settings_text
from bertrio.experiments.recipes.params import Block, flatten, parse_values, value_text
from bertrio.experiments.recipes.resolving import SEED, resolve
from bertrio.experiments.recipes.rows import load_recipes
from bertrio.experiments.recipes.table_text import to_markdown
from bertrio.experiments.revision import Revision
from bertrio.training.checkpoints import CHECKPOINTS
from bertrio.training.monitoring import PROGRESS

Space = Mapping[str, BaseDistribution]  # by dotted param
PRUNERS: Mapping[str, Callable[[], optuna.pruners.BasePruner]] = {
    "median": optuna.pruners.MedianPruner,
    "hyperband": optuna.pruners.HyperbandPruner,
    "none": optuna.pruners.NopPruner,
}
IMPORTANCE_FROM = 10  # finished trials
FORMS = "log:LOW:HIGH, uniform:LOW:HIGH, int:LOW:HIGH, or values with commas between them"
DIGITS = 4  # significant digits of sampled numbers


def parse_space(texts: Sequence[str]) -> Space:
    """Parse texts such as `finetune.lr=log:1e-5:1e-4` or `smart.lambda=0,1,5` into Optuna's distributions.

    Raises:
        UserError: if a text has another form, or names a param twice.
    """
    space: dict[str, BaseDistribution] = {}
    for text in texts:
        param, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not all(param.split(".")) or param in space:
            raise UserError(f"{text}: expected a dotted param, named once, and its values, PARAM= with {FORMS}")
        try:
            space[param] = _distribution(values)
        except (ValueError, UserError) as error:
            raise UserError(f"{text}: {' '.join(str(error).split())}; expected {FORMS}") from None
    return space


def _distribution(values: str) -> BaseDistribution:
    """Return a distribution over a range of numbers, or over values, which Optuna stores as JSON texts."""
    kind, *ends = values.split(":")
    if kind in ("int", "log", "uniform"):
        try:
            low, high = (int(end) if kind == "int" else float(end) for end in ends)
        except ValueError:
            raise ValueError(f"found no two {'whole ' if kind == 'int' else ''}numbers after {kind}") from None
        if not -math.inf < low < high < math.inf:
            raise ValueError("found no range from a lower to a higher number")
        if kind == "int":
            return IntDistribution(int(low), int(high))
        return FloatDistribution(low, high, log=kind == "log")
    choices = parse_values(values, "values")
    if len(choices) < 2:
        raise ValueError("found one value, which -S can set")
    return CategoricalDistribution([json.dumps(value) for value in choices])


def values_at(point: Mapping[str, Any]) -> Block:
    """Return the params of a trial: drawn numbers rounded to `DIGITS` digits, and choices decoded from JSON."""
    return {param: _value(coordinate) for param, coordinate in point.items()}


def _value(coordinate: Any) -> Any:
    if isinstance(coordinate, str):
        return json.loads(coordinate)
    return float(f"{coordinate:.{DIGITS}g}") if isinstance(coordinate, float) else coordinate


def run_trial(trial: Trial, folder: Path, settings: Callable[[Block], Block], metric: Sequence[str]) -> float:
    """Run a trial as a DVC experiment, unless that exists, and return its score.

    The experiment is named `<name of the study>-<six digits of its params>`.

    Args:
        trial: the trial.
        folder: folder of the study, with progress files and checkpoints of running trials.
        settings: returns all raw params of a run with the given values.
        metric: keys of the dev score: an overall score, or a task and its metric.

    Raises:
        UserError: if the run fails.
        optuna.TrialPruned: if the params are invalid, or the pruner stops the run.
    """
    values = values_at(trial.params)
    try:
        params = settings(values)
    except UserError as error:
        trial.set_user_attr("why", f"invalid: {'; '.join(str(error.__cause__ or error).splitlines())}")
        raise optuna.TrialPruned from error
    name = f"{folder.name}-{short_digest(values)}"
    pruned = trial.study.get_trials(deepcopy=False, states=(TrialState.PRUNED,))
    if any(earlier.user_attrs.get("experiment") == name for earlier in pruned):
        trial.set_user_attr("why", "was pruned before")
        raise optuna.TrialPruned
    trial.set_user_attr("experiment", name)
    progress = folder.absolute() / f"{name}.jsonl"
    progress.unlink(missing_ok=True)
    checkpoints = Path(os.environ.get(CHECKPOINTS) or folder).expanduser().absolute() / f"checkpoints-{name}"
    reported = set()

    def watch() -> None:
        for epoch, score, last in read_epochs(progress, f"dev_{'_'.join(metric)}"):
            if epoch not in reported:
                reported.add(epoch)
                trial.report(score, epoch)
                if trial.should_prune() and not last:
                    raise optuna.TrialPruned

    environment = {PROGRESS: str(progress), CHECKPOINTS: str(checkpoints)}
    try:
        run_experiment(name, params, watch=watch, environment=environment)
    except optuna.TrialPruned:
        shutil.rmtree(checkpoints, ignore_errors=True)
        raise
    shutil.rmtree(checkpoints, ignore_errors=True)
    score: Any = Revision.open(name).json("metrics/evaluation.json")["dev"]
    for key in metric:
        score = score[key]
    return float(score)


def read_epochs(path: Path, metric: str) -> list[tuple[int, float, bool]]:
    """Return the epochs that a run has written so far: number, score, and whether it is the last one.

    For an ensemble, these are the epochs of the first member that trains.
    """
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = [json.loads(line) for line in text.split("\n")[:-1]]  # the last line may be incomplete
    lines = [line for line in lines if line["stage"].startswith("finetune") and metric in line]
    return [(line["epoch"], line[metric], line["last"]) for line in lines if line["stage"] == lines[0]["stage"]]


def search(
    texts: Sequence[str],
    trials: int = 20,
    base: str | None = None,
    budget: str = "paper",
    overrides: Mapping[str, Any] | None = None,
    seed: int = 1,
    prune: str = "median",
    metric: str = OVERALL[0],
    out: str | Path = "recipes/search",
) -> Study:
    """Search a space of params, and write the trials to a folder in `out` after each trial.

    Points are sampled by a tree-structured Parzen estimator (Bergstra et al. 2011, "Algorithms for Hyper-Parameter
    Optimization"), the first ten at random. `median` stops a run whose best epoch is below the median of earlier runs
    at that epoch, from the sixth run on; `hyperband` is Li et al. 2018.

    Args:
        texts: the search space, see `parse_space`.
        trials: total number of finished or pruned trials, including earlier ones.
        base: row to start from, or None for params.yaml.
        budget: budget of every run.
        overrides: dotted params and values on top of base and budget.
        seed: seed of the sampler.
        prune: median, hyperband or none.
        metric: dev score to maximize: overall_normalized, overall_mean, or a task (its main metric).
        out: parent of the folder of the search, which gets journal.log, trials.md and trials.csv. Its name is a digest
            of params.yaml and of all arguments except `trials`.

    Returns:
        Optuna's study.

    Raises:
        UserError: before any run if an argument is invalid; at the end if runs failed, or no point was valid.
    """
    space, overrides = parse_space(texts), dict(overrides or {})
    if SEED in space:
        raise UserError(f"{SEED}: the best of several seeds is the luckiest; search without it, then try other seeds")
    if both := sorted(space.keys() & overrides.keys()):
        raise UserError(f"-S {both[0]}: the search sets {both[0]}; leave out one of them")
    recipes = load_recipes()
    row = recipes.base_row(base)
    start = resolve(recipes, row, budget, overrides)
    corner = {
        param: values.choices[0] if isinstance(values, CategoricalDistribution) else values.low
        for param, values in space.items()
    }
    try:
        resolve(recipes, row, budget, {**overrides, **values_at(corner)})
    except UserError as error:
        if "unknown param" in str(error):
            raise
    tasks = build_tasks(validate_params(start, "params.yaml"))
    if metric not in (*OVERALL, *tasks):
        raise UserError(f"--metric {metric}: expected {', '.join([*OVERALL, *tasks])}")
    keys = (metric, tasks[metric].target.metrics[0]) if metric in tasks else (metric,)
    title = f"Search on {row.name}, budget {budget}{settings_text(overrides)}"
    setup = f"Score: {metric} on dev. Space: {'; '.join(texts)}. Seed {seed}, pruning: {prune}."
    name = f"search-{short_digest([title, setup, machine_independent(flatten(start))])}"
    folder = Path(out) / name

    def settings(values: Block) -> Block:
        return resolve(recipes, row, budget, {**overrides, **values})

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with _locked(folder):
        journal = JournalFileBackend(str(folder / "journal.log"))
        study = optuna.create_study(
            storage=JournalStorage(journal),
            study_name=name,
            direction="maximize",
            pruner=PRUNERS[prune](),
            load_if_exists=True,
        )
        study.set_user_attr("title", title)
        study.set_user_attr("setup", setup)
        try:
            run = partial(run_trial, folder=folder, settings=settings, metric=keys)
            _explore(study, space, trials, seed, folder, run)
        except KeyboardInterrupt:
            say(f"stopped; the same command continues {name}")
            raise
    return study


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Create the folder of a search and lock it."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with filelock.FileLock(folder / "lock", blocking=False):
            yield
    except filelock.Timeout:
        raise UserError(f"{folder}: another process runs this search; wait until it ends, or stop it") from None


def _explore(study: Study, space: Space, count: int, seed: int, folder: Path, run: Callable[[Trial], float]) -> None:
    """Run trials until `count` are finished or pruned."""
    failures = []
    for _ in range(count - len(study.get_trials(states=(TrialState.COMPLETE, TrialState.PRUNED)))):
        # Seeded by the number of ended trials, so that a resumed search proposes the same points
        study.sampler = optuna.samplers.TPESampler(seed=1000 * seed + len(_ended(study)))
        trial = study.ask(dict(space))
        try:
            study.tell(trial, run(trial))
        except optuna.TrialPruned:
            study.tell(trial, state=TrialState.PRUNED)
        except UserError as error:
            trial.set_user_attr("why", f"failed: {'; '.join(str(error).splitlines())}")
            study.tell(trial, state=TrialState.FAIL)
            failures.append(f"trial {trial.number}: {error}")
        row = write_trials(study, folder).set_index("trial").loc[trial.number].dropna()
        say(f"trial {trial.number}: {', '.join(f'{name} {value}' for name, value in row.items() if value != '')}")
    table = write_trials(study, folder).drop(columns=["experiment", "why"])
    print_table(table, study.user_attrs["title"], output_console())
    for line in findings(study):
        print(line)
    if failures:
        raise UserError("\n  ".join([f"{len(failures)} runs failed; the same command tries others:", *failures]))
    if not any("experiment" in trial.user_attrs for trial in study.trials):
        raise UserError(f"no point of this space can be run; {study.trials[-1].user_attrs['why']}")


def _ended(study: Study) -> list[FrozenTrial]:
    """Return the trials that ended, without interrupted ones."""
    return [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]


def write_trials(study: Study, folder: Path) -> pd.DataFrame:
    """Write trials.csv and trials.md, and return their table: the highest score first and pruned ones last."""
    rows = [
        {
            "trial": trial.number,
            "state": trial.state.name.lower(),
            "score": None if trial.value is None else round(trial.value, 6),
            **{param: value_text(value) for param, value in values_at(trial.params).items()},
            "epochs": len(trial.intermediate_values),
            "experiment": trial.user_attrs.get("experiment", ""),
            "why": trial.user_attrs.get("why", ""),
        }
        for trial in _ended(study)
    ]
    frame = pd.DataFrame(rows).sort_values(["state", "score"], ascending=[True, False])
    write_csv(frame, folder / "trials.csv")
    scores = ["-" if pd.isna(score) else f"{score:.4f}" for score in frame["score"]]
    table = frame.assign(score=scores).astype(str)
    title, setup = study.user_attrs["title"], study.user_attrs["setup"]
    write_text(folder / "trials.md", to_markdown([f"# {title}", table, setup, *findings(study)]))
    return frame


def findings(study: Study) -> list[str]:
    """Return lines on the best trial and the importance of params; empty before a run has finished."""
    scores = [trial.value for trial in _ended(study) if trial.state.name == "COMPLETE"]
    if not scores:
        return []
    best = study.best_trial
    lines = [
        f"Best: trial {best.number}, {best.value:.4f}: `dvc exp apply {best.user_attrs['experiment']}`.",
        "It was chosen on these dev rows, so its score is optimistic; confirm it on test or other seeds.",
    ]
    if len(scores) >= IMPORTANCE_FROM and len(set(scores)) > 1:
        importances = optuna.importance.get_param_importances(study).items()
        lines.append("Importance: " + ", ".join(f"{param} {share:.2f}" for param, share in importances) + ".")
    return lines
