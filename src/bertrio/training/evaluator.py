"""Score a run epoch by epoch and select the best epoch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from torch import Tensor

from bertrio.config import Params, build_tasks
from bertrio.core.console import say
from bertrio.data.batches import Split
from bertrio.evaluation.metrics import evaluate_predictions, selection_score
from bertrio.evaluation.predictions import prediction_rows
from bertrio.model.multitask import MultitaskModel
from bertrio.training.checkpoints import Stateful
from bertrio.training.loop import infer
from bertrio.training.monitoring import EpochLog


def predict(
    model: MultitaskModel, rows: Split, split: str, batch_size: int, pause: Callable[[], None] = lambda: None
) -> pd.DataFrame:
    """Return the predictions table of one split, task by task; `pause` is called after each batch."""
    tables = [
        prediction_rows(part.task, split, part.ids, part.label_values, infer(model, part, batch_size, pause))
        for part in rows.values()
    ]
    return pd.concat(tables, ignore_index=True)


@dataclass
class Selection(Stateful):
    """Weights and predictions of the best epoch so far; the first of equally good epochs counts as best.

    Args:
        by: score that is compared: `overall_normalized`, `overall_mean` or a task (its main metric); or `last`, which
            selects the last epoch.
        on: split that it is measured on.
    """

    saved = ("best_epoch", "best_score", "weights", "predictions")
    by: str
    on: str
    best_epoch: int = 0
    best_score: float = float("-inf")
    weights: dict[str, Tensor] = field(default_factory=dict)
    predictions: pd.DataFrame | None = None

    def offer(
        self, model: MultitaskModel, epoch: int, scores: dict[str, Any], tasks: dict, predictions: pd.DataFrame
    ) -> bool:
        """Select the epoch, with its predictions for dev, if it is the best so far; return whether it is."""
        score = float(epoch) if self.by == "last" else selection_score(scores[self.on], self.by, tasks)
        if score <= self.best_score:
            return False
        self.best_epoch, self.best_score, self.predictions = epoch, score, predictions
        if self.by != "last":  # the last epoch's weights are in the model anyway
            self.weights = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
        return True

    def restore(self, model: MultitaskModel) -> None:
        """Load the selected weights into the model."""
        if self.weights:
            model.load_state_dict(self.weights)

    def summary(self) -> dict[str, Any]:
        """Return the selected epoch and the rows and score that selected it; `last` uses no rows."""
        rows = "none" if self.by == "last" else self.on
        return {"best_epoch": self.best_epoch, "selected_on": {"rows": rows, "by": self.by}}


@dataclass
class EpochEvaluator(Stateful):
    """Score epochs, select the best one and collect the lines of the history.

    Args:
        params: the member's params.
        model: the model to score.
        scored: splits to score it on, by name, with dev among them.
        selection: selects the best epoch.
        patience: epochs in a row without improvement after which training stops; None never stops.
    """

    saved = ("selection", "lines", "scores")
    params: Params
    model: MultitaskModel
    scored: Mapping[str, Split]
    selection: Selection
    patience: int | None = None
    lines: list[dict[str, float]] = field(default_factory=list)
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)  # of the last epoch, by split
    began: float = field(default_factory=time.monotonic)

    @property
    def stopped_early(self) -> bool:
        """True once `patience` has run out."""
        return self.patience is not None and len(self.lines) - self.selection.best_epoch >= self.patience

    def score(self, log: EpochLog, pause: Callable[[], None]) -> None:
        """Score the epoch that has just ended; `pause` is called after each batch, before any state changes."""
        size = self.params.finetune.eval_batch_size
        tables = {name: predict(self.model, rows, name, size, pause) for name, rows in self.scored.items()}
        tasks = build_tasks(self.params)
        self.scores = {name: evaluate_predictions(table, tasks).get(name, {}) for name, table in tables.items()}
        best = self.selection.offer(self.model, log.epoch, self.scores, tasks, tables["dev"])
        self.lines.append(history_line(log, self.scores))
        now = time.monotonic()
        mark = " (best so far)" if best and self.selection.by != "last" else ""
        scores = f"{describe_epoch(log, self.scores['dev'])}{mark}"
        say(f"epoch {log.epoch} ({now - self.began:.0f} s): {scores}")
        self.began = now
        if self.stopped_early:
            say(f"no better for {self.patience} epochs, stopped")


def history_line(log: EpochLog, scores: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Return a row of the history: epoch, step, lr, `train_loss_<task>`, `<split>_<task>_<metric>`,
    `<split>_overall_*`."""
    line: dict[str, float] = {"epoch": log.epoch, "step": log.step, "lr": log.lr}
    line |= {f"train_loss_{task}": loss for task, loss in log.losses.items()}
    for split, parts in scores.items():
        for name, value in parts.items():
            metrics = value if isinstance(value, dict) else {"": value}
            line |= {"_".join(filter(None, (split, name, metric))): score for metric, score in metrics.items()}
    return line


def describe_epoch(log: EpochLog, dev: dict[str, Any]) -> str:
    """Return the loss and the main metric of each task, in one line."""
    parts = [f"{task} loss {loss:.4g}" for task, loss in log.losses.items()]
    main_metrics = {task: next(iter(metrics.items())) for task, metrics in dev.items() if isinstance(metrics, dict)}
    return ", ".join([*parts, *(f"{task} {metric} {value:.4f}" for task, (metric, value) in main_metrics.items())])
