"""Fine-tuning: puts data, model, schedule and losses together, keeps the best epoch, and predicts dev and test."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from torch import Tensor

from bertrio.console import say
from bertrio.evaluation.metrics import evaluate_predictions, selection_score
from bertrio.evaluation.predictions import prediction_rows, write_predictions
from bertrio.files import write_csv, write_json
from bertrio.model.multitask import MultitaskModel, build_model, load_heads, save_model
from bertrio.params import Params, build_tasks
from bertrio.runtime import Runtime
from bertrio.training.build import build_trainer, fine_enough
from bertrio.training.data import Split, hold_out, load_split
from bertrio.training.loop import EpochLog, Trainer, infer
from bertrio.training.trackers import build_tracker

CONFLICT_COLUMNS = ("step", "task_a", "task_b", "dot", "cosine", "norm_a", "norm_b")


@dataclass(frozen=True)
class Inputs:
    """The folders that the training stages read."""

    splits: str = "data/splits"
    tokenizer: str = "models/tokenizer"
    encoder: str = "models/encoder"
    prefinetuned: str = "models/prefinetuned"


def predict(model: MultitaskModel, rows: Split, split: str, batch_size: int) -> pd.DataFrame:
    """The prediction table of one split, its tasks one after the other."""
    tables = [
        prediction_rows(of.task, split, of.ids, of.label_values, infer(model, of, batch_size)) for of in rows.values()
    ]
    return pd.concat(tables, ignore_index=True)


@dataclass
class Selection:
    """Keeps the weights of the best epoch and what they predict, the earlier one among equals; `last` keeps the last.

    Args:
        by: `overall_normalized`, `overall_mean`, a task (its first metric), or `last`.
        on: the split that it is measured on.
    """

    by: str
    on: str
    best_epoch: int = 0
    best_score: float = float("-inf")
    weights: dict[str, Tensor] = field(default_factory=dict)
    predictions: pd.DataFrame | None = None

    def offer(
        self, model: MultitaskModel, epoch: int, scores: dict[str, Any], tasks: dict, predictions: pd.DataFrame
    ) -> bool:
        """Takes the epoch, with its predictions for dev, if it is the best so far; says whether it was."""
        score = float(epoch) if self.by == "last" else selection_score(scores[self.on], self.by, tasks)
        if score <= self.best_score:
            return False
        self.best_epoch, self.best_score, self.predictions = epoch, score, predictions
        if self.by != "last":  # the last epoch's weights are in the model anyway
            self.weights = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
        return True

    def restore(self, model: MultitaskModel) -> None:
        """Puts the kept weights back."""
        if self.weights:
            model.load_state_dict(self.weights)


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

    Args:
        params: as the member sees them (`load_member`).
        runtime: device and precision.
        inputs: the folders to read.
        model_folder: gets encoder/, heads.safetensors, bertrio.json.
        predictions: a folder that gets predictions.parquet (dev and test) and summary.json.
        history: a CSV file, one row an epoch.
        conflicts: a CSV file, one row a step and pair of tasks if `surgery.log_conflicts`.
        steps: a CSV file, the curves of training, one row every `tracking.every` steps.

    Returns:
        What the stage's timing file reports besides seconds and memory.
    """
    tasks = build_tasks(params)
    train, dev, test = [load_split(params, name, inputs.splits, inputs.tokenizer) for name in ("train", "dev", "test")]
    scored = {"dev": dev}
    if params.finetune.select_on == "holdout":
        train, scored["holdout"] = hold_out(train, params.finetune.holdout_fraction, params.runtime.seed)
    if params.finetune.train_metrics:
        scored["train"] = train
    runtime = fine_enough(params, runtime)
    model = build_model(params, f"{inputs.prefinetuned}/encoder", runtime)
    load_heads(model, inputs.prefinetuned)
    tracker = build_tracker(params, steps)
    trainer, kept = build_trainer(params, model, {task: train[task] for task in params.trains}, tracker)
    say(f"finetune: {trainer.total_steps} steps on {runtime.describe()}")
    selection, lines = Selection(params.finetune.select, params.finetune.select_on), []
    with closing(tracker):
        for log in trainer.run("finetune"):
            tables = {name: predict(kept, rows, name, params.finetune.eval_batch_size) for name, rows in scored.items()}
            scores = {name: evaluate_predictions(table, tasks)[name] for name, table in tables.items()}
            best = selection.offer(kept, log.epoch, scores, tasks, tables["dev"])
            lines.append(history_line(log, scores))
            say(f"epoch {log.epoch}: {told(log, scores['dev'])}{' (best so far)' if best else ''}")
            if params.finetune.patience and log.epoch - selection.best_epoch >= params.finetune.patience:
                say(f"finetune: no better for {params.finetune.patience} epochs, stopped")
                break
    selection.restore(kept)
    written = [selection.predictions, *([predict(kept, test, "test", params.finetune.eval_batch_size)] if test else [])]
    save_model(kept, model_folder, _about(params))
    write_predictions(pd.concat(written, ignore_index=True), f"{predictions}/predictions.parquet")
    selected = {"rows": selection.on, "by": selection.by}
    write_json(f"{predictions}/summary.json", {"best_epoch": selection.best_epoch, "selected_on": selected})
    write_history(lines, history)
    write_conflicts(trainer.conflicts, conflicts)
    return training_cost(trainer)


def training_cost(trainer: Trainer) -> dict[str, float]:
    """What a stage's timing file says of training itself: rows a second, milliseconds a step, steps."""
    return {
        "rows_per_second": trainer.rows_seen / trainer.seconds,
        "ms_per_step": 1000 * trainer.seconds / trainer.steps_done,
        "steps": trainer.steps_done,
    }


def write_conflicts(rows: list[dict[str, Any]], path: str) -> None:
    """Writes the gradients' inner products as CSV, a row a step and pair of tasks; without any, the header alone."""
    write_csv(pd.DataFrame(rows, columns=CONFLICT_COLUMNS), path)


def score(model: MultitaskModel, rows: Split, split: str, params: Params) -> dict[str, Any]:
    """The metrics of one split: by task, and the overall scores where all tasks are there."""
    table = predict(model, rows, split, params.finetune.eval_batch_size)
    return evaluate_predictions(table, build_tasks(params))[split]


def history_line(log: EpochLog, scores: dict[str, dict[str, Any]]) -> dict[str, float]:
    """A row of the history: epoch, step, lr, `train_loss_<task>`, `<split>_<task>_<metric>`, `<split>_overall_*`."""
    line: dict[str, float] = {"epoch": log.epoch, "step": log.step, "lr": log.lr}
    line.update({f"train_loss_{task}": loss for task, loss in log.losses.items()})
    for split, of in scores.items():
        for name, value in of.items():
            values = (
                {f"{name}_{metric}": score for metric, score in value.items()}
                if isinstance(value, dict)
                else {name: value}
            )
            line.update({f"{split}_{key}": score for key, score in values.items()})
    return line


def write_history(lines: list[dict[str, float]], path: str) -> None:
    """Writes the history as CSV, floats with six significant digits."""
    write_csv(pd.DataFrame(lines), path)


def told(log: EpochLog, dev: dict[str, Any]) -> str:
    """An epoch in a line: loss and first metric of each task."""
    parts = [f"{task} loss {loss:.4f}" for task, loss in log.losses.items()]
    for task, metrics in dev.items():
        if isinstance(metrics, dict):
            metric, value = next(iter(metrics.items()))
            parts.append(f"{task} {metric} {value:.4f}")
    return ", ".join(parts)


def _about(params: Params) -> dict[str, Any]:
    """What a later reader of the model folder must know to run it: tasks, pooling, lengths."""
    return {
        "tasks": {name: task.model_dump(exclude={"batch_size", "epochs"}) for name, task in params.tasks.items()},
        "sharing": params.sharing.model_dump(),
        "encoder": {"pooling": params.encoder.pooling, "max_length": params.encoder.max_length},
    }
