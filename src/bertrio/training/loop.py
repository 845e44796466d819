"""The training loop: outputs -> losses -> gradients -> update, for any schedule of tasks."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import accumulate, zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bertrio.config import OptimizerParams
from bertrio.core.console import progress
from bertrio.data.batches import Batch, BatchStream, Rows
from bertrio.model.multitask import MultitaskModel
from bertrio.techniques.gradients import TaskGradients, conflict_rows
from bertrio.training.objective import Objective, Parts
from bertrio.training.optimizer import (
    RowGradients,
    build_lr_schedule,
    build_optimizer,
    clip_gradients,
    load_optimizer_state,
    optimizer_state,
)
from bertrio.training.stateful import Stateful
from bertrio.training.trackers import Tracker
from bertrio.training.watch import Watch, read_every

PROGRESS = ("rows_seen", "steps_done", "seconds")


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
class Running:
    """The epoch that is running: sums and counts of what its steps told, the last rate, and what it cost so far."""

    sums: dict[str, Tensor | float] = field(default_factory=lambda: defaultdict(float))
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    lr: float = 0.0
    rows: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds

    def means(self) -> dict[str, float]:
        """The mean of each number over the steps that told it."""
        return {name: float(total) / self.counts[name] for name, total in self.sums.items()}

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint; sums are float64, so that a float holds them."""
        sums = {name: float(total) for name, total in self.sums.items()}
        return {"sums": sums, "counts": dict(self.counts), "lr": self.lr, "rows": self.rows, "seconds": self.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave."""
        self.sums.update(state["sums"])
        self.counts.update(state["counts"])
        self.lr, self.rows, self.seconds = state["lr"], state["rows"], state["seconds"]


@dataclass
class Trainer:
    """Trains a model by a plan; `run` yields after each epoch, so that the caller scores and keeps what it wants.

    A step is: for each of its tasks the objective of one batch, backward; surgery on the encoder's gradients;
    penalties on weights; clipping; the optimizer; and what follows the weights, such as moving averages. Where several
    processes share the run, each takes its part of every pass, gradients are added up before surgery, and all else is
    the same in all of them.

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
        kept: what else the steps use and change, by name, for checkpoints: averages, generators.
        tracker: gets the curves: `lr`, `loss` (of the step's tasks together), `loss_<task>`, each regularizer's
            `loss_<regularizer>_<task>`, `grad_norm` before clipping, and `rows_per_second` since the epoch began.
        checkpoint: called between two steps with the number of steps done; may save `state_dict`.

    Raises:
        UserError: when running, if a loss or a gradient is not finite. On the CPU that is before the update; on a GPU,
            which is not asked after each step, some steps later, and before any checkpoint holds it.
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
    kept: Mapping[str, Stateful] = field(default_factory=dict)
    tracker: Tracker | None = None
    checkpoint: Callable[[int], None] | None = None
    conflicts: list[dict[str, Any]] = field(default_factory=list)
    rows_seen: int = 0
    steps_done: int = 0
    seconds: float = 0.0
    total_steps: int = field(init=False)

    def __post_init__(self) -> None:
        self.model: MultitaskModel = self.objective.model
        ends = list(accumulate(len(epoch) for epoch in self.plan))
        self.total_steps = min(ends[-1], self.max_steps or ends[-1])
        learned = list(self.objective.weighting.parameters())
        self.optimizer = build_optimizer(self.model, self.optimizer_params, self.lr, learned, self.weighting_lr)
        self.lr_schedule = build_lr_schedule(self.optimizer, self.optimizer_params, self.total_steps, ends)
        separate = self.surgery is not None or self.log_conflicts
        live = [parameter for parameter in self.model.encoder.parameters() if parameter.requires_grad]
        self._gradients = TaskGradients(live) if separate else None
        apart = {id(parameter) for parameter in live} if separate else set()
        self._others = [p for p in [*self.model.parameters(), *learned] if id(p) not in apart]
        self._processes = self.model.runtime.processes
        self._rows = RowGradients()
        self._norm: Tensor | None = None  # of the gradients of the last step, before clipping
        self._read_every = read_every(self.model.runtime.device)
        self._watch = Watch(lambda task, rows: self.streams[task].rows.ids[rows], "try a lower lr")
        self._running = Running()
        self._clock = time.perf_counter()

    def run(self, description: str, done: int = 0) -> Iterator[EpochLog]:
        """Trains epoch by epoch; the last one is cut short where `max_steps` says so.

        Args:
            description: for the terminal.
            done: epochs that the caller has dealt with. After `load_state_dict` training goes on behind the last step;
                if that ended an epoch beyond `done`, the epoch is yielded (again) first.
        """
        end = 0
        for epoch, planned in enumerate(self.plan, start=1):
            steps = planned[: self.total_steps - end]
            if not steps:
                return
            start, end = end, end + len(steps)
            if epoch > done:
                yield self._epoch(epoch, start, steps, f"{description}, epoch {epoch}/{len(self.plan)}")

    def _epoch(self, epoch: int, start: int, steps: Sequence[tuple[str, ...]], description: str) -> EpochLog:
        """Takes those of `steps`, of which the first follows update `start`, that are not done."""
        if self.steps_done == start:
            self._running = Running()
        self.model.train()
        self._clock = time.perf_counter()
        with progress(description, total=len(steps)) as bar:
            bar.advance(self.steps_done - start)
            for step, tasks in enumerate(steps[self.steps_done - start :], start=self.steps_done + 1):
                loss = self._told_step(tasks, step)
                note = None
                if (step - start) % self._read_every == 0 or step == start + len(steps):
                    self._watch.read()
                    self._tick()
                    note = f"loss {float(loss):.3f}  {self._running.rate:.0f} rows/s"
                bar.advance(note=note)
                if self.checkpoint is not None:
                    self.checkpoint(step)
                    self._clock = time.perf_counter()  # saving is no training
        return EpochLog(epoch, self.steps_done, self._running.lr, self._running.means())

    def _told_step(self, tasks: tuple[str, ...], step: int) -> Tensor:
        """A step with all that is written down of it; the loss of its tasks together."""
        running, seen = self._running, self.rows_seen
        running.lr = self.optimizer.param_groups[0]["lr"]
        told = self._step(tasks, step)
        exact = self.model.runtime.device.type != "mps"  # which has no float64
        for name, value in told.items():
            running.sums[name] += value.double() if exact else value
            running.counts[name] += 1
        running.rows += self.rows_seen - seen
        self._tick()
        loss = sum(told[task] for task in tasks)
        if self.tracker is not None:
            norm = {} if self.optimizer_params.max_grad_norm is None else {"grad_norm": self._norm}
            curves = {f"loss_{name}": value for name, value in told.items()}
            values = {"lr": running.lr, "loss": loss, **norm, **curves, "rows_per_second": running.rate}
            self.tracker.log(step, values)
        return loss

    def _tick(self) -> None:
        """Counts the time since the last tick as time of training."""
        now = time.perf_counter()
        self._running.seconds += now - self._clock
        self.seconds += now - self._clock
        self._clock = now

    def _step(self, tasks: tuple[str, ...], step: int) -> dict[str, Tensor]:
        """One update from one batch of each of `tasks`, their losses summed unless surgery combines them otherwise.

        With `one_pass`, tasks with the same regularizers share a pass of the encoder; surgery needs one for each. Each
        group runs backward before the next one's pass, which adds up to the gradient of the sum and holds the
        activations of one group at a time.
        """
        told: dict[str, Tensor] = {}
        rows: dict[str, np.ndarray] = {}
        self.objective.begin(tasks)
        self.model.runtime.begin_step(step)
        together = self.one_pass and self._gradients is None
        # Passes that go backward together, as those of regularizers, would add up their gradients in bf16
        with nullcontext() if self.objective.regularizers else self.model.runtime.casting_once():
            for group in self.objective.groups(tasks) if together else [[task] for task in tasks]:
                batches = [next(self.streams[task]).to(self.model.runtime.device) for task in group]
                rows.update({batch.task: batch.rows for batch in batches})
                self._backward(batches, step, told)
                if self._gradients is not None:
                    self._processes.all_reduce_gradients(self._gradients.parameters)
                    self._gradients.take(*group)
        self._processes.all_reduce_gradients(self._others)
        told = self._processes.all_reduce_sum(told)
        if self._gradients is not None:
            self._combine(step, rows)
        if self.penalty is not None:
            penalty = self.penalty([p for p in self.model.parameters() if p.grad is not None])
            if penalty.requires_grad:  # none of those that it is for may have taken part
                penalty.backward()
        norm = clip_gradients(self.model, self.optimizer_params.max_grad_norm)
        self._norm = norm.to(self.model.runtime.device)
        self._watch.add(step, "the norm of the gradients", rows, self._norm)
        self._read_on_cpu()
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

        A piece counts by its share of the rows, so that the pieces add up to the mean over the batch; and so does this
        process's part of a piece, so that the processes add up to it as well.
        """
        rank, count = self._processes.rank, self._processes.world_size
        for pieces in zip_longest(*[batch.pieces(self.accumulate) for batch in batches]):
            present = [(piece, batch) for piece, batch in zip(pieces, batches) if piece is not None]
            own = [piece.part(rank, count) for piece, _ in present]
            parts = self.objective(*own)
            shares = [of.weight * len(piece.rows) / len(batch.rows) for of, (piece, batch) in zip(own, present)]
            for of, part, share in zip(own, parts, shares):
                for name, value in self._told(of, part, step).items():
                    told[name] = told.get(name, 0.0) + share * value
            self.rows_seen += sum(len(piece.rows) for piece, _ in present)
            self._read_on_cpu()
            sum(share * part.total for share, part in zip(shares, parts)).backward()

    def _told(self, batch: Batch, parts: Parts, step: int) -> dict[str, Tensor]:
        """The numbers of a batch for the log, which are to be watched."""
        told = {batch.task: parts.loss.detach()}
        told.update({f"{name}_{batch.task}": value.detach() for name, value in parts.penalties.items()})
        for name, value in told.items():
            self._watch.add(step, f"the loss of {name}", {batch.task: batch.rows}, value)
        return told

    def _read_on_cpu(self) -> None:
        """Looks at the numbers where that makes nobody wait: what is not finite goes no further."""
        if self._read_every == 1:
            self._watch.read()

    def _combine(self, step: int, rows: Mapping[str, np.ndarray]) -> None:
        """Gives the encoder one gradient out of those of the step's tasks."""
        gradients = self._gradients
        gramian, tasks = gradients.gramian(), gradients.tasks
        for task, square in zip(tasks, gramian.diagonal().tolist()):
            if not math.isfinite(square):
                self._watch.read()  # a loss that is not finite says more
                what = f"the square of the norm of the encoder's gradient of {task}"
                raise self._watch.error(step, what, {task: rows[task]}, square)
        if self.log_conflicts:
            self.conflicts += conflict_rows(step, tasks, gramian)
        plain = torch.ones(len(tasks), dtype=gramian.dtype)
        gradients.put(plain if self.surgery is None else self.surgery(gramian))

    def state_dict(self) -> dict[str, Any]:
        """All that decides what is still to come, between two steps; data and plan are built again.

        Raises:
            UserError: if a number that nobody had looked at is not finite.
        """
        self._watch.read()
        return {
            "model": self.model.state_dict(),
            "optimizer": optimizer_state(self.optimizer),
            "lr_schedule": self.lr_schedule.state_dict(),
            "objective": self.objective.state_dict(),
            "streams": {task: stream.state_dict() for task, stream in self.streams.items()},
            "kept": {name: of.state_dict() for name, of in self.kept.items()},
            "running": self._running.state_dict(),
            "conflicts": self.conflicts,
            "progress": {name: getattr(self, name) for name in PROGRESS},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where a trainer that was built alike was; before `run`."""
        self.model.load_state_dict(state["model"])
        load_optimizer_state(self.optimizer, state["optimizer"])
        self.lr_schedule.load_state_dict(state["lr_schedule"])
        self.objective.load_state_dict(state["objective"])
        for task, stream in self.streams.items():
            stream.load_state_dict(state["streams"][task])
        for name, of in self.kept.items():
            of.load_state_dict(state["kept"][name])
        self._running = Running()
        self._running.load_state_dict(state["running"])
        self.conflicts = state["conflicts"]
        for name in PROGRESS:
            setattr(self, name, state["progress"][name])


def infer(model: MultitaskModel, rows: Rows, batch_size: int, pause: Callable[[], None] = lambda: None) -> np.ndarray:
    """The outputs of the rows' own task for all rows, in their order: float64 [N, size of its head]. No dropout.

    Where several processes share the run, they take batches in turn, and all get all outputs. `pause` is called after
    each batch, or each round of them, and may end it all by an exception, but not change the weights: casts of those
    that train are kept to the end, which is also why no other autocast context may be around this.
    """
    processes = model.runtime.processes
    found: list[tuple[np.ndarray, np.ndarray]] = []
    model.eval()
    # Not inference_mode, in which autocast keeps no casts
    with torch.no_grad(), model.runtime.casting_once(), progress(f"{rows.task.name}: predicting", len(rows)) as bar:
        for number, batch in enumerate(rows.sorted_batches(batch_size)):
            turn = number % processes.world_size
            if turn == processes.rank:
                batch = batch.to(model.runtime.device)
                found.append((batch.rows, model(rows.task.name, batch.inputs).outputs.float().cpu().numpy()))
            bar.advance(len(batch.rows))
            if turn == processes.world_size - 1:
                pause()
    outputs = np.zeros((len(rows), processes.all_reduce_max(found[0][1].shape[1] if found else 0)))
    for places, values in found:
        outputs[places] = values
    return processes.all_reduce_sum(torch.from_numpy(outputs)).numpy()
