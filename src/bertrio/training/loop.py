"""The training loop: outputs -> losses -> gradients -> update, for any schedule of tasks."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bertrio.combining.gradients import TaskGradients, conflict_rows
from bertrio.console import progress
from bertrio.data.batches import Batch, BatchStream, Rows
from bertrio.errors import UserError
from bertrio.model.multitask import MultitaskModel
from bertrio.params import OptimizerParams
from bertrio.training.objective import Objective, Parts
from bertrio.training.optimizer import RowGradients, build_lr_schedule, build_optimizer, clip_gradients
from bertrio.training.trackers import Tracker

# Steps between two looks at the losses on a GPU: each makes the host wait, and the GPU run dry. A loss that is not
# finite is found so many steps late; on the CPU, before the update.
READ_EVERY = 16


@dataclass
class EpochLog:
    """One epoch of training; `lr` is that of its last update.

    `losses` are means over the batches, by task; those of regularizers, unweighted, are named `<regularizer>_<task>`.
    """

    epoch: int
    step: int
    lr: float
    losses: dict[str, float]


@dataclass
class Trainer:
    """Trains a model by a plan; `run` yields after each epoch, so that the caller scores and keeps what it wants.

    A step is: for each of its tasks the objective of one batch, backward; surgery on the encoder's gradients;
    penalties on weights; clipping; the optimizer; and what follows the weights, such as moving averages.

    Args:
        objective: of a batch; knows the model, which is on its device.
        plan: the steps of each epoch, a step being the tasks whose losses make one update.
        streams: training batches by task.
        optimizer_params: the `optimizer` group.
        lr: the peak learning rate.
        max_steps: stop after so many updates; the learning rate is laid out over what is left.
        accumulate: pieces that a batch is cut into, one pass each, for less memory at the same gradient.
        one_pass: let tasks of a step share a pass of the encoder, padded to one width.
        weighting_lr: the peak rate of what the weighting of losses learns.
        surgery: `gramian [K, K] -> weights [K]` of the tasks' gradients; None takes their sum.
        log_conflicts: keep the gradients' inner products of every step, in `conflicts`.
        penalty: of the parameters that took part in a step; None for no such penalty.
        after_step: called after each update with its number, from 1.
        tracker: gets the curves: `lr`, `loss` (of the step's tasks together), `loss_<task>`, each regularizer's
            `loss_<regularizer>_<task>`, `grad_norm` before clipping, and `rows_per_second` since the epoch began.
    """

    objective: Objective
    plan: Sequence[Sequence[tuple[str, ...]]]
    streams: Mapping[str, BatchStream]
    optimizer_params: OptimizerParams
    lr: float
    max_steps: int | None = None
    accumulate: int = 1
    one_pass: bool = False
    weighting_lr: float = 0.0
    surgery: Callable[[Tensor], Tensor] | None = None
    log_conflicts: bool = False
    penalty: Callable[[list[nn.Parameter]], Tensor] | None = None
    after_step: Sequence[Callable[[int], None]] = ()
    tracker: Tracker | None = None
    conflicts: list[dict[str, Any]] = field(default_factory=list)
    rows_seen: int = 0
    steps_done: int = 0
    seconds: float = 0.0
    total_steps: int = field(init=False)

    def __post_init__(self) -> None:
        self.model: MultitaskModel = self.objective.model
        ends = list(accumulate(len(epoch) for epoch in self.plan))
        self.total_steps = min(ends[-1], self.max_steps or ends[-1])
        learned = self.objective.weighting.parameters()
        self.optimizer = build_optimizer(self.model, self.optimizer_params, self.lr, learned, self.weighting_lr)
        self.lr_schedule = build_lr_schedule(self.optimizer, self.optimizer_params, self.total_steps, ends)
        separate = self.surgery is not None or self.log_conflicts
        live = [parameter for parameter in self.model.encoder.parameters() if parameter.requires_grad]
        self._gradients = TaskGradients(live) if separate else None
        self._rows = RowGradients()
        self._norm: Tensor | None = None  # of the gradients of the last step, where they are clipped
        self._read_every = 1 if self.model.runtime.device.type == "cpu" else READ_EVERY
        self._unread: list[tuple[int, str, np.ndarray, str, Tensor]] = []  # numbers that nobody has looked at yet

    def run(self, description: str) -> Iterator[EpochLog]:
        """Trains epoch by epoch; the last one is cut short where `max_steps` says so."""
        step = 0
        for epoch, planned in enumerate(self.plan, start=1):
            steps = planned[: self.total_steps - step]
            if not steps:
                return
            log = self._epoch(epoch, step, steps, f"{description}, epoch {epoch}/{len(self.plan)}")
            step = log.step
            yield log

    def _epoch(self, epoch: int, step: int, steps: Sequence[tuple[str, ...]], description: str) -> EpochLog:
        sums: dict[str, Tensor | float] = defaultdict(float)
        counts: dict[str, int] = defaultdict(int)
        self.model.train()
        began, seen, lr = time.perf_counter(), self.rows_seen, 0.0
        exact = self.model.runtime.device.type != "mps"  # which has no float64
        with progress(description, total=len(steps)) as bar:
            for number, tasks in enumerate(steps, start=1):
                lr = self.optimizer.param_groups[0]["lr"]
                step += 1
                told = self._step(tasks, step)
                for name, value in told.items():
                    sums[name] += value.double() if exact else value
                    counts[name] += 1
                rate = (self.rows_seen - seen) / (time.perf_counter() - began)
                loss = sum(told[task] for task in tasks)
                if self.tracker is not None:
                    norm = {} if self._norm is None else {"grad_norm": self._norm}
                    curves = {f"loss_{name}": value for name, value in told.items()}
                    self.tracker.log(step, {"lr": lr, "loss": loss, **norm, **curves, "rows_per_second": rate})
                note = None
                if number % self._read_every == 0 or number == len(steps):
                    self._read()
                    note = f"loss {float(loss):.3f}  {rate:.0f} rows/s"
                bar.advance(note=note)
        self.seconds += time.perf_counter() - began
        return EpochLog(epoch, step, lr, {name: float(sums[name]) / counts[name] for name in sums})

    def _step(self, tasks: tuple[str, ...], step: int) -> dict[str, Tensor]:
        """One update from one batch of each of `tasks`, their losses summed unless surgery combines them otherwise.

        With `one_pass`, tasks with the same regularizers share a pass of the encoder; surgery needs one for each. Each
        group runs backward before the next one's pass, which adds up to the gradient of the sum and holds the
        activations of one group at a time.
        """
        told: dict[str, Tensor] = {}
        self.objective.begin(tasks)
        together = self.one_pass and self._gradients is None
        for group in self.objective.groups(tasks) if together else [[task] for task in tasks]:
            batches = [next(self.streams[task]).to(self.model.runtime.device) for task in group]
            self._backward(batches, step, told)
            if self._gradients is not None:
                self._gradients.take(*group)
        if self._gradients is not None:
            self._combine(step)
        if self.penalty is not None:
            penalty = self.penalty([p for p in self.model.parameters() if p.grad is not None])
            if penalty.requires_grad:  # none of those that it is for may have taken part
                penalty.backward()
        self._norm = clip_gradients(self.model, self.optimizer_params.max_grad_norm)
        with self._rows.dense(self.model.parameters()):
            self.optimizer.step()
        self.lr_schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
        for follow in self.after_step:
            follow(step)
        self.steps_done = step
        return told

    def _backward(self, batches: list[Batch], step: int, told: dict[str, Tensor]) -> None:
        """Adds the gradients of the objective of `batches`, piece by piece, and what the log tells of it to `told`.

        A piece counts by its share of the rows, so that the pieces add up to the mean over the batch.
        """
        for pieces in zip_longest(*[batch.pieces(self.accumulate) for batch in batches]):
            present = [(piece, batch) for piece, batch in zip(pieces, batches) if piece is not None]
            parts = self.objective(*[piece for piece, _ in present])
            shares = [len(piece.rows) / len(batch.rows) for piece, batch in present]
            for (piece, _), part, share in zip(present, parts, shares):
                for name, value in self._told(piece, part, step).items():
                    told[name] = told.get(name, 0.0) + share * value
                self.rows_seen += len(piece.rows)
            if self._read_every == 1:
                self._read()
            sum(share * part.total for share, part in zip(shares, parts)).backward()

    def _told(self, batch: Batch, parts: Parts, step: int) -> dict[str, Tensor]:
        """The numbers of a batch for the log, which `_read` is to check."""
        told = {batch.task: parts.loss.detach()}
        told.update({f"{name}_{batch.task}": value.detach() for name, value in parts.penalties.items()})
        self._unread += [(step, batch.task, batch.rows, name, value) for name, value in told.items()]
        return told

    def _read(self) -> None:
        """Checks that all numbers told since the last time are finite, at the price of one wait for the device.

        Raises:
            UserError: naming the first that is not, its step and its rows.
        """
        if not self._unread:
            return
        values = torch.stack([value.float() for *_, value in self._unread]).tolist()
        for (step, task, rows, name, _), value in zip(self._unread, values):
            if not math.isfinite(value):
                ids = ", ".join(self.streams[task].rows.ids[rows][:5])
                raise UserError(f"the loss of {name} is {value} at step {step} (rows {ids}, ...); try a lower lr")
        self._unread.clear()

    def _combine(self, step: int) -> None:
        """Gives the encoder one gradient out of those of the step's tasks."""
        gradients = self._gradients
        gramian, tasks = gradients.gramian(), gradients.tasks
        if self.log_conflicts:
            self.conflicts += conflict_rows(step, tasks, gramian)
        plain = torch.ones(len(tasks), dtype=gramian.dtype)
        gradients.put(plain if self.surgery is None else self.surgery(gramian))


def infer(model: MultitaskModel, rows: Rows, batch_size: int) -> np.ndarray:
    """The outputs of the rows' own task for all rows, in their order: float64 [N, size of its head]. No dropout."""
    found: list[tuple[np.ndarray, np.ndarray]] = []
    model.eval()
    with torch.inference_mode(), progress(f"{rows.task.name}: predicting", total=len(rows)) as bar:
        for batch in rows.sorted_batches(batch_size):
            batch = batch.to(model.runtime.device)
            found.append((batch.rows, model(rows.task.name, batch.inputs).outputs.float().cpu().numpy()))
            bar.advance(len(batch.rows))
    outputs = np.empty((len(rows), found[0][1].shape[1]))
    for places, values in found:
        outputs[places] = values
    return outputs
