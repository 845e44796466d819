"""The training loop: outputs -> losses -> gradients -> update, for any schedule of tasks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from bertrio.console import progress
from bertrio.data.batches import BatchStream, Rows
from bertrio.errors import UserError
from bertrio.model.multitask import MultitaskModel
from bertrio.params import OptimizerParams
from bertrio.schedules import Joint
from bertrio.training.optimizer import build_lr_schedule, build_optimizer, clip_gradients

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass
class EpochLog:
    """One epoch of training: `losses` are means over its batches, by task; `lr` is that of its last update."""

    epoch: int
    step: int
    lr: float
    losses: dict[str, float]


@dataclass
class Trainer:
    """Trains `model` by a schedule; `run` yields after each epoch, so that the caller scores and keeps what it wants.

    Args:
        model: on its device.
        schedule: which tasks make which step.
        streams: training batches by task.
        losses: loss by task.
        optimizer_params: the `optimizer` group.
        lr: the peak learning rate.
        epochs: of the schedule.
        max_steps: stop after so many updates; the learning rate is laid out over what is left.
    """

    model: MultitaskModel
    schedule: Joint
    streams: Mapping[str, BatchStream]
    losses: Mapping[str, Loss]
    optimizer_params: OptimizerParams
    lr: float
    epochs: int
    max_steps: int | None = None
    rows_seen: int = 0
    seconds: float = 0.0
    total_steps: int = field(init=False)

    def __post_init__(self) -> None:
        planned = self.epochs * self.schedule.steps_per_epoch
        self.total_steps = min(planned, self.max_steps or planned)
        self.optimizer = build_optimizer(self.model, self.optimizer_params, self.lr)
        self.lr_schedule = build_lr_schedule(self.optimizer, self.optimizer_params, self.total_steps)

    def run(self, description: str) -> Iterator[EpochLog]:
        """Trains epoch by epoch; the last one is cut short where `max_steps` says so."""
        step = 0
        for epoch in range(1, self.epochs + 1):
            steps = min(self.schedule.steps_per_epoch, self.total_steps - step)
            if steps <= 0:
                return
            log = self._epoch(epoch, step, steps, f"{description}, epoch {epoch}/{self.epochs}")
            step = log.step
            yield log

    def _epoch(self, epoch: int, step: int, steps: int, description: str) -> EpochLog:
        sums, counts = dict.fromkeys(self.streams, 0.0), dict.fromkeys(self.streams, 0)
        self.model.train()
        began, seen, lr = time.perf_counter(), self.rows_seen, 0.0
        with progress(description, total=steps) as bar:
            for tasks, _ in zip(self.schedule.epoch(), range(steps)):
                lr = self.optimizer.param_groups[0]["lr"]
                losses = self._step(tasks, step + 1)
                step += 1
                for task, loss in losses.items():
                    sums[task] += loss
                    counts[task] += 1
                rate = (self.rows_seen - seen) / (time.perf_counter() - began)
                bar.advance(note=f"loss {sum(losses.values()):.3f}  {rate:.0f} rows/s")
        self.seconds += time.perf_counter() - began
        return EpochLog(epoch, step, lr, {task: sums[task] / counts[task] for task in sums if counts[task]})

    def _step(self, tasks: tuple[str, ...], step: int) -> dict[str, float]:
        """One update from one batch of each of `tasks`; their losses are summed.

        Each loss runs backward before the next forward pass, which adds up to the gradient of the sum and holds the
        activations of one task at a time.
        """
        losses = {}
        for task in tasks:
            batch = next(self.streams[task]).to(self.model.runtime.device)
            loss = self.losses[task](self.model(task, batch.inputs).outputs, batch.labels)
            losses[task] = loss.item()
            if not math.isfinite(losses[task]):
                ids = ", ".join(self.streams[task].rows.ids[batch.rows][:5])
                raise UserError(
                    f"the loss of {task} is {losses[task]} at step {step} (rows {ids}, ...); try a lower lr"
                )
            loss.backward()
            self.rows_seen += len(batch.rows)
        clip_gradients(self.model, self.optimizer_params.max_grad_norm)
        self.optimizer.step()
        self.lr_schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
        return losses


def infer(model: MultitaskModel, rows: Rows, batch_size: int) -> np.ndarray:
    """The outputs of the rows' own task for all rows, in their order: float64 [N, size]. Dropout is off."""
    outputs = np.empty((len(rows), rows.task.target.size))
    model.eval()
    with torch.inference_mode(), progress(f"{rows.task.name}: predicting", total=len(rows)) as bar:
        for batch in rows.sorted_batches(batch_size):
            batch = batch.to(model.runtime.device)
            outputs[batch.rows] = model(rows.task.name, batch.inputs).outputs.float().cpu().numpy()
            bar.advance(len(batch.rows))
    return outputs
