"""Score a run epoch by epoch and keep the best one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from bertrio.config import Params, build_tasks
from bertrio.core.console import say
from bertrio.core.tasks import Task
from bertrio.data.batches import Split
from bertrio.evaluation.metrics import evaluate_predictions, selection_score
from bertrio.evaluation.predictions import object_column, prediction_rows
from bertrio.model.multitask import MultitaskModel
from bertrio.training.callbacks import EpochLog
from bertrio.training.loop import infer


def predict(
    model: MultitaskModel, rows: Split, split: str, batch_size: int, pause: Callable[[], None] = lambda: None
) -> pd.DataFrame:
    """The prediction table of one split, its tasks one after the other; `pause` is called after each batch."""
    tables = [
        prediction_rows(of.task, split, of.ids, of.label_values, infer(model, of, batch_size, pause))
        for of in rows.values()
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

    def summary(self) -> dict[str, Any]:
        """Which epoch is kept, and how it was chosen: `last` on no rows."""
        rows = "none" if self.by == "last" else self.on
        return {"best_epoch": self.best_epoch, "selected_on": {"rows": rows, "by": self.by}}

    def state_dict(self) -> dict[str, Any]:
        """What was kept, for a checkpoint."""
        predictions = None if self.predictions is None else _columns(self.predictions)
        best = {"epoch": self.best_epoch, "score": self.best_score}
        return {"best": best, "weights": self.weights, "predictions": predictions}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave."""
        self.best_epoch, self.best_score = state["best"]["epoch"], state["best"]["score"]
        self.weights = state["weights"]
        self.predictions = None if state["predictions"] is None else _table(state["predictions"])


@dataclass
class EpochEvaluator:
    """The epochs that are scored: which one is kept, and the history's lines.

    Args:
        params: as the member sees them.
        model: what is scored.
        scored: the splits that it is scored on, by name; dev is one of them.
        selection: keeps the best epoch.
    """

    params: Params
    model: MultitaskModel
    scored: Mapping[str, Split]
    selection: Selection
    lines: list[dict[str, float]] = field(default_factory=list)

    @property
    def tasks(self) -> dict[str, Task]:
        """All tasks."""
        return build_tasks(self.params)

    @property
    def over(self) -> bool:
        """Whether patience has come to its end."""
        patience = self.params.finetune.patience
        return patience is not None and len(self.lines) - self.selection.best_epoch >= patience

    def score(self, log: EpochLog, pause: Callable[[], None]) -> None:
        """Scores an epoch that has just ended; `pause` is called now and then, while nothing of it is kept yet."""
        size = self.params.finetune.eval_batch_size
        tables = {name: predict(self.model, rows, name, size, pause) for name, rows in self.scored.items()}
        scores = {name: evaluate_predictions(table, self.tasks)[name] for name, table in tables.items()}
        best = self.selection.offer(self.model, log.epoch, scores, self.tasks, tables["dev"])
        self.lines.append(history_line(log, scores))
        say(f"epoch {log.epoch}: {describe_epoch(log, scores['dev'])}{' (best so far)' if best else ''}")
        if self.over:
            say(f"finetune: no better for {self.params.finetune.patience} epochs, stopped")

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"selection": self.selection.state_dict(), "lines": self.lines}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave."""
        self.selection.load_state_dict(state["selection"])
        self.lines = state["lines"]


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


def describe_epoch(log: EpochLog, dev: dict[str, Any]) -> str:
    """An epoch in a line: loss and first metric of each task."""
    parts = [  # a penalty of 1e-7 is not 0
        f"{task} loss {loss:.1e}" if 0 < abs(loss) < 1e-3 else f"{task} loss {loss:.4f}"
        for task, loss in log.losses.items()
    ]
    for task, metrics in dev.items():
        if isinstance(metrics, dict):
            metric, value = next(iter(metrics.items()))
            parts.append(f"{task} {metric} {value:.4f}")
    return ", ".join(parts)


def _columns(table: pd.DataFrame) -> dict[str, Any]:
    """A prediction table as a checkpoint can hold it: the rows' probabilities, of unlike lengths, as one array."""
    columns = {name: table[name].tolist() for name in ("id", "task", "split")}
    columns |= {name: table[name].to_numpy(np.float64) for name in ("label", "prediction", "score")}
    probabilities = [np.empty(0) if of is None else of for of in table["probabilities"]]
    return columns | {"probabilities": np.concatenate(probabilities), "classes": [len(of) for of in probabilities]}


def _table(columns: dict[str, Any]) -> pd.DataFrame:
    """The prediction table that `_columns` was given."""
    parts = np.split(columns["probabilities"], np.cumsum(columns["classes"])[:-1])
    table = pd.DataFrame({name: of for name, of in columns.items() if name != "classes" and name != "probabilities"})
    table.insert(5, "probabilities", object_column([of if len(of) else None for of in parts]))
    return table
