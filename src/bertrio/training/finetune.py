"""Fine-tuning: puts data, model, schedule and losses together, trains, and predicts dev and test."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from bertrio.config import Params, build_tasks
from bertrio.config.loading import MEMBER_GROUPS
from bertrio.core.console import say
from bertrio.core.files import whole_folder, write_csv, write_json
from bertrio.core.runtime import Runtime
from bertrio.data.batches import Split
from bertrio.evaluation.metrics import evaluate_predictions
from bertrio.evaluation.predictions import write_predictions
from bertrio.model.config import ModelConfig
from bertrio.model.multitask import MultitaskModel, build_model, load_heads, save_model
from bertrio.training.build import build_trainer, hold_out, load_split, resolve_precision, teacher_predictions
from bertrio.training.callbacks import Tracker, build_tracker, report_epoch
from bertrio.training.checkpoints import Checkpoints
from bertrio.training.evaluator import EpochEvaluator, Selection, predict
from bertrio.training.loop import Trainer
from bertrio.training.resume import open_checkpoints, resumed
from bertrio.training.stateful import Stateful

CONFLICT_COLUMNS = ("step", "task_a", "task_b", "dot", "cosine", "norm_a", "norm_b")


@dataclass(frozen=True)
class Inputs:
    """The folders that fine-tuning reads."""

    splits: str = "data/splits"
    tokenizer: str = "models/tokenizer"
    prefinetuned: str = "models/prefinetuned"


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
    """Trains one member of the ensemble and writes its model, predictions and history.

    A run that was stopped goes on where it was, see `training.resume`, and writes the same bytes. Where several
    processes share it, all of them train and score, and the main one writes.

    Args:
        params: as the member sees them (`load_member`).
        runtime: device, precision and processes.
        inputs: the folders to read.
        model_folder: gets encoder/, heads.safetensors, bertrio.json; its name is the member's.
        predictions: a folder that gets predictions.parquet (dev and test) and summary.json.
        history: a CSV file, one row an epoch.
        conflicts: a CSV file, one row a step and pair of tasks if `surgery.log_conflicts`.
        steps: a CSV file, the curves of training, one row every `tracking.every` steps.

    Returns:
        What the stage's timing file reports besides seconds and memory.
    """
    runtime = resolve_precision(params, runtime)
    stage, reads = f"finetune-{Path(model_folder).name}", [inputs.splits, inputs.tokenizer, inputs.prefinetuned]
    distill = params.distill
    reads += [str(Path(distill.teacher).expanduser())] if distill.weight and distill.teacher else []
    main, opened = runtime.processes.is_main, open_checkpoints(stage, params, set(MEMBER_GROUPS), reads, runtime)
    with runtime.processes.main_process_output(), opened as checkpoints:
        train, scored, test = load_rows(params, inputs)
        model = build_model(params, f"{inputs.prefinetuned}/encoder", runtime)
        load_heads(model, inputs.prefinetuned)
        tracker = build_tracker(params, steps) if main else None
        rows = {task: train[task] for task in params.trains}
        trainer, kept = build_trainer(
            params, model, rows, tracker, teacher_predictions(params, rows, inputs.splits, runtime)
        )
        say(f"finetune: {trainer.total_steps} steps on {runtime.describe()}")
        evaluator = EpochEvaluator(params, kept, scored, Selection(params.finetune.select, params.finetune.select_on))
        with closing(tracker) if tracker else nullcontext():
            _train(trainer, evaluator, tracker, checkpoints, runtime)
        evaluator.selection.restore(kept)
        tables = [evaluator.selection.predictions]
        if test:
            tables.append(predict(kept, test, "test", params.finetune.eval_batch_size))
        if main:
            with whole_folder(model_folder) as folder:
                save_model(kept, folder, ModelConfig.from_params(params), inputs.tokenizer)
            write_predictions(pd.concat(tables, ignore_index=True), f"{predictions}/predictions.parquet")
            write_json(f"{predictions}/summary.json", evaluator.selection.summary())
            write_history(evaluator.lines, history)
            write_conflicts(trainer.combiner.conflicts, conflicts)
            checkpoints.finish()
    return training_cost(trainer, runtime)


def _train(
    trainer: Trainer, evaluator: EpochEvaluator, tracker: Tracker | None, checkpoints: Checkpoints, runtime: Runtime
) -> None:
    """Trains and scores, from the last checkpoint on, until the plan or patience has come to its end."""
    parts: dict[str, Stateful] = {"trainer": trainer, "evaluator": evaluator}
    if tracker:
        parts["tracker"] = tracker
    processes = runtime.processes
    with resumed(checkpoints, runtime, parts) as resume:
        processes.check_equal(trainer.model.parameters())
        trainer.checkpoint = resume.after_step
        epochs = trainer.run("finetune", done=len(evaluator.lines))
        while not evaluator.over and (log := next(epochs, None)):
            processes.check_equal(trainer.model.parameters())
            evaluator.score(log, resume.pause)
            if processes.is_main:
                report_epoch(evaluator.lines[-1], last=evaluator.over or log.step == trainer.total_steps)
            resume.after_scoring()


def load_rows(params: Params, inputs: Inputs) -> tuple[Split, dict[str, Split], Split]:
    """The rows to train on, those that every epoch is scored on, by split, and those of test."""
    train, dev, test = [load_split(params, name, inputs.splits, inputs.tokenizer) for name in ("train", "dev", "test")]
    scored = {"dev": dev}
    if params.finetune.select_on == "holdout":
        train, scored["holdout"] = hold_out(train, params.finetune.holdout_fraction, params.runtime.seed)
    if params.finetune.train_metrics:
        scored["train"] = train
    return train, scored, test


def training_cost(trainer: Trainer, runtime: Runtime) -> dict[str, str | float]:
    """What a stage's timing file says of training: device, precision and threads, rows a second, milliseconds a step,
    steps."""
    return {
        **runtime.facts(),
        "rows_per_second": trainer.meter.rows_seen / trainer.meter.seconds,
        "ms_per_step": 1000 * trainer.meter.seconds / trainer.steps_done,
        "steps": trainer.steps_done,
    }


def write_conflicts(rows: list[dict[str, Any]], path: str) -> None:
    """Writes the gradients' inner products as CSV, a row a step and pair of tasks; without any, the header alone."""
    write_csv(pd.DataFrame(rows, columns=CONFLICT_COLUMNS), path)


def score(
    model: MultitaskModel, rows: Split, split: str, params: Params, pause: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """The metrics of one split: by task, and the overall scores where all tasks are there. `pause` as in `predict`."""
    table = predict(model, rows, split, params.finetune.eval_batch_size, pause)
    return evaluate_predictions(table, build_tasks(params))[split]


def write_history(lines: list[dict[str, float]], path: str) -> None:
    """Writes the history as CSV, floats with six significant digits."""
    write_csv(pd.DataFrame(lines), path)
