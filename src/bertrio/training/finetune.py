"""Fine-tuning: load data and model, train, select the best epoch, and predict dev and test."""

from __future__ import annotations

from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from bertrio.config import Params, build_tasks
from bertrio.config.loading import MEMBER_GROUPS
from bertrio.core.console import say
from bertrio.core.errors import UserError
from bertrio.core.files import whole_folder, write_csv, write_json
from bertrio.core.runtime import Runtime
from bertrio.data.batches import Split
from bertrio.evaluation.predictions import decide, tune, write_predictions
from bertrio.model.config import ModelConfig
from bertrio.model.multitask import build_model, load_heads, save_model
from bertrio.techniques.gradients import CONFLICT_COLUMNS
from bertrio.training.build import add_unlabelled, build_trainer, hold_out, load_split, resolve_precision
from bertrio.training.checkpoints import Checkpoints, open_checkpoints
from bertrio.training.evaluator import EpochEvaluator, Selection, predict
from bertrio.training.loop import Trainer
from bertrio.training.monitoring import build_curves, report_epoch

STAGE_PARAMS = {**dict.fromkeys(MEMBER_GROUPS, True), "data": {"extra_train", "unlabelled"}}
HOLDOUT = 0.1  # share of the training rows that `finetune.select_on: holdout` holds out


@dataclass(frozen=True)
class Inputs:
    """Folders that fine-tuning reads."""

    splits: str = "data/splits"
    tokenizer: str = "models/tokenizer"
    prefinetuned: str = "models/prefinetuned"
    teacher: str = "data/teacher"


def finetune(
    params: Params,
    runtime: Runtime,
    inputs: Inputs,
    model_folder: str,
    predictions: str,
    history: str,
    conflicts: str,
    steps: str,
) -> dict:
    """Train one member of the ensemble and write its model, predictions and history.

    A stopped run resumes and writes the same bytes, see `training.checkpoints`. If several processes share the run, all
    of them train and score, and the main one writes.

    Args:
        params: the member's params (`member_params`).
        runtime: device, precision and processes.
        inputs: folders to read.
        model_folder: folder for encoder/, heads.safetensors and bertrio.json; its name is the member's.
        predictions: folder for predictions.parquet (dev and test) and summary.json.
        history: CSV file with one row per epoch.
        conflicts: CSV file with one row per step and pair of tasks, if `surgery.log_conflicts`.
        steps: CSV file of the training curves, with one row every `tracking.every` steps.

    Returns:
        Figures for the stage's timing file, besides seconds and memory.
    """
    runtime = resolve_precision(params, runtime)
    processes, stage = runtime.processes, f"finetune-{Path(model_folder).name}"
    paths = [inputs.splits, inputs.tokenizer, inputs.prefinetuned]
    if params.distill.weight:
        paths.append(inputs.teacher)
    with processes.main_process_output(), open_checkpoints(stage, params, STAGE_PARAMS, paths, runtime) as checkpoints:
        train, scored, test = load_rows(params, inputs)
        model = build_model(params, f"{inputs.prefinetuned}/encoder", runtime)
        load_heads(model, inputs.prefinetuned)
        curves = build_curves(params, steps) if processes.is_main else None
        rows = {task: train[task] for task in params.trains}
        trainer, scored_model = build_trainer(params, model, rows, curves, inputs.teacher)
        on, size = params.finetune.select_on, params.finetune.eval_batch_size
        best = Selection(params.finetune.select, on)
        evaluator = EpochEvaluator(params, scored_model, scored, best, params.finetune.patience)
        with closing(curves) if curves else nullcontext():
            train_epochs("finetune", trainer, evaluator, checkpoints)
        best.restore(scored_model)
        trained = trainer.tasks_of(best.best_epoch)
        if untrained := set(params.trains).difference(trained, params.pretrains):
            say(f"{', '.join(sorted(untrained))}: not trained, as no step of the kept epochs takes them")
        table, summary, tasks = best.predictions, best.summary(), build_tasks(params)
        if test:
            table = pd.concat([table, predict(scored_model, test, "test", size)], ignore_index=True)
        if any(task.target.sets and not params.tasks[name].thresholds for name, task in tasks.items()):
            selection = best.predictions if on == "dev" else predict(scored_model, scored[on], on, size)
            params = tune(params, tasks, selection)
            table = decide(table, build_tasks(params))
            summary["selected_on"]["thresholds"] = on
        if processes.is_main:
            with whole_folder(model_folder) as folder:
                save_model(scored_model, folder, ModelConfig.from_params(params, trained), inputs.tokenizer)
                write_predictions(table, f"{predictions}/predictions.parquet")
                write_json(f"{predictions}/summary.json", summary)
                write_csv(pd.DataFrame(evaluator.lines), history)
                write_csv(pd.DataFrame(trainer.combiner.conflicts, columns=CONFLICT_COLUMNS), conflicts)
            checkpoints.finish()
    return trainer.cost()


def train_epochs(stage: str, trainer: Trainer, evaluator: EpochEvaluator, checkpoints: Checkpoints) -> None:
    """Train and score from the last checkpoint on, until the plan ends or patience runs out."""
    processes = trainer.runtime.processes
    say(f"{stage}: {trainer.total_steps} steps on {trainer.runtime.describe()}")
    with checkpoints.resumed({"trainer": trainer, "evaluator": evaluator}):
        processes.check_equal(trainer.model.parameters())
        epochs = trainer.run(stage, len(evaluator.lines), checkpoints.after_step)
        while not evaluator.stopped_early and (log := next(epochs, None)):
            processes.check_equal(trainer.model.parameters())
            evaluator.score(log, checkpoints.pause)
            if processes.is_main:
                report_epoch(evaluator.lines[-1], last=evaluator.stopped_early or log.step == trainer.total_steps)
            checkpoints.after_step(log.step, force=True)


def load_rows(params: Params, inputs: Inputs) -> tuple[Split, dict[str, Split], Split]:
    """Return the rows to train on, the splits that each epoch is scored on, by name, and the rows of test."""
    train, dev, test = [load_split(params, name, inputs.splits, inputs.tokenizer) for name in ("train", "dev", "test")]
    scored = {"dev": dev}
    if params.finetune.select_on == "holdout":
        train, scored["holdout"] = hold_out(train, HOLDOUT, params.runtime.seed)
    for task in params.trains:
        if not train[task].labelled_count:
            path = f"{inputs.splits}/{task}/train.parquet"
            advice = f"raise data.split.keep.train, or leave {task} out of schedule.tasks"
            raise UserError(f"{path}: no row to train on has a label; {advice}")
    if train_metrics := params.finetune.train_metrics:
        scored["train"] = {task: rows for task, rows in train.items() if train_metrics is True or task in train_metrics}
    return add_unlabelled(params, train, inputs.splits, inputs.tokenizer), scored, test
