"""The training loop: outputs -> losses -> gradients -> update, for any schedule of tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import zip_longest
from operator import add
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bertrio.config import Params
from bertrio.core.console import progress
from bertrio.data.batches import Batch, BatchStream, Rows
from bertrio.model.multitask import MultitaskModel
from bertrio.training.callbacks import Curves, EpochLog, FiniteCheck, Meter
from bertrio.training.checkpoints import Part
from bertrio.training.objective import StepObjective
from bertrio.training.optimizer import Combiner, Optimization, clip_gradients


@dataclass
class Trainer(Part):
    """Train a model by a plan; `run` yields after each epoch, so that the caller scores and keeps what it wants.

    Where several processes share the run, each takes its part of every pass, gradients are added up before they are
    combined, and all else is the same in all of them.

    Args:
        objective: of a batch; knows the model, which is on its device.
        plan: the steps of each epoch, a step being the tasks whose losses make one update.
        streams: training batches by task.
        optimization: moves weights; knows the norm that gradients are clipped to, and how many steps the run has.
        combiner: makes one gradient of those of the step's tasks.
        penalty: of the parameters that took part in a step; None for no such penalty.
        accumulate: pieces that a batch is cut into, one pass each, for less memory at the same gradient.
        one_pass: let tasks of a step share a pass of the encoder, padded to one width.
        callbacks: called after each update with its number, from 1.
        stateful: what else the steps use and change, by name, for checkpoints: averages, the tracker.
        tracker: gets the curves, see `Meter`.
        checkpoint: called between two steps with the number of steps done; may save `state_dict`.
        lr_param: the param that error messages name.

    Raises:
        UserError: when running, if a loss or a gradient is not finite. On the CPU that is before the update; on a GPU,
            which is not asked after each step, some steps later, and before any checkpoint holds it.
    """

    saved = ("steps_done", "model", "optimization", "objective", "combiner", "meter", "streams", "stateful")
    objective: StepObjective
    plan: Sequence[Sequence[tuple[str, ...]]]
    streams: Mapping[str, BatchStream]
    optimization: Optimization
    combiner: Combiner
    penalty: Callable[[list[nn.Parameter]], Tensor] | None = None
    accumulate: int = 1
    one_pass: bool = False
    callbacks: Sequence[Callable[[int], None]] = ()
    stateful: Mapping[str, Any] = field(default_factory=dict)
    tracker: Curves | None = None
    checkpoint: Callable[[int], None] | None = None
    lr_param: str = "lr"

    def __post_init__(self) -> None:
        self.model, self.runtime = self.objective.model, self.objective.runtime
        self.optimizer, self.total_steps = self.optimization.optimizer, self.optimization.total_steps
        self.meter = Meter(self.tracker)
        self.steps_done = 0
        self._finite = FiniteCheck(
            self.runtime.device, lambda task, rows: self.streams[task].rows.ids[rows], f"try a lower {self.lr_param}"
        )

    def step(self, tasks: tuple[str, ...], number: int) -> dict[str, Tensor]:
        """Make one update from one batch of each of `tasks`; return losses and penalties, for logs."""
        logged = self._add_gradients(tasks, number)  # objective
        self.combiner.combine(number, self._finite)  # sum or surgery
        if self.penalty is not None:
            self._add_penalty(self.penalty)
        norm = clip_gradients(self.model, self.optimization.max_grad_norm)
        self._finite.add("the norm of the gradients", norm)
        self._finite.read_on_cpu()
        self.optimization.step()
        for callback in self.callbacks:  # averages
            callback(number)
        self.steps_done = number
        clips = self.optimization.max_grad_norm is not None
        self.meter.log(number, tasks, logged, self.optimization.last_lr, norm if clips else None)
        return logged

    def run(self, description: str, done: int = 0) -> Iterator[EpochLog]:
        """Train epoch by epoch; the last one is cut short where the optimization has fewer steps than the plan.

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
            if epoch > done and end >= self.steps_done:
                yield self._epoch(epoch, start, steps, f"{description}, epoch {epoch}/{len(self.plan)}")

    def cost(self) -> dict[str, str | float]:
        """Return what a stage's timing file says of training: device, precision, threads, rows a second, ms a step."""
        meter = self.meter
        return {
            **self.runtime.facts(),
            "rows_per_second": meter.rows_seen / meter.seconds,
            "ms_per_step": 1000 * meter.seconds / self.steps_done,
            "steps": self.steps_done,
        }

    def _epoch(self, epoch: int, start: int, steps: Sequence[tuple[str, ...]], description: str) -> EpochLog:
        """Take those of `steps`, of which the first follows update `start`, that are not done."""
        if self.steps_done == start:
            self.meter.begin_epoch()
        self.model.train()
        self.meter.start_clock()
        with progress(description, total=len(steps)) as bar:
            bar.advance(self.steps_done - start)
            for number, tasks in enumerate(steps[self.steps_done - start :], start=self.steps_done + 1):
                self.step(tasks, number)
                note = None
                if self._finite.due(number - start) or number == start + len(steps):
                    self._finite.read()
                    note = self.meter.note()
                bar.advance(note=note)
                if self.checkpoint is not None:
                    self.checkpoint(number)
                    self.meter.start_clock()  # saving is no training
        return self.meter.epoch_log(epoch, self.steps_done)

    def _add_gradients(self, tasks: tuple[str, ...], number: int) -> dict[str, Tensor]:
        """Run forward and backward of each task's batch.

        With `one_pass`, tasks with the same regularizers share a pass of the encoder; surgery needs one for each. Each
        group runs backward before the next one's pass, which adds up to the gradient of the sum and holds the
        activations of one group at a time.
        """
        logged: dict[str, Tensor] = {}
        self.objective.begin(tasks)
        self.runtime.begin_step(number)
        self._finite.begin_step(number)
        together = self.one_pass and not self.combiner.separate
        with self.objective.keeping_casts():
            for group in self.objective.groups(tasks) if together else [[task] for task in tasks]:
                batches = [next(self.streams[task]).to(self.runtime.device) for task in group]
                self._finite.add_rows(batches)
                self._backward(batches, logged)
                self.combiner.take(group)
        return self.runtime.processes.all_reduce_sum(logged)

    def _backward(self, batches: list[Batch], logged: dict[str, Tensor]) -> None:
        """Add the gradients of the objective of `batches`, piece by piece, and its numbers to `logged`.

        A piece counts by its share of the rows, so that the pieces add up to the mean over the batch; and so does this
        process's part of a piece, so that the processes add up to it as well.
        """
        rank, count = self.runtime.processes.rank, self.runtime.processes.world_size
        for pieces in zip_longest(*[batch.pieces(self.accumulate) for batch in batches]):
            present = [(piece, batch) for piece, batch in zip(pieces, batches) if piece is not None]
            shards = [piece.part(rank, count) for piece, _ in present]
            parts = self.objective(*shards)
            sizes = [(len(piece.rows), len(batch.rows)) for piece, batch in present]
            shares = [shard.weight * size / whole for shard, (size, whole) in zip(shards, sizes)]
            for shard, part, share in zip(shards, parts, shares):
                for name, value in part.named(shard.task).items():
                    self._finite.add(f"the loss of {name}", value, [shard.task])
                    logged[name] = logged.get(name, 0.0) + share * value
            self.meter.rows_seen += sum(len(piece.rows) for piece, _ in present)
            self._finite.read_on_cpu()
            reduce(add, (share * part.total for share, part in zip(shares, parts))).backward()

    def _add_penalty(self, weight_penalty: Callable[[list[nn.Parameter]], Tensor]) -> None:
        penalty = weight_penalty([p for p in self.model.parameters() if p.grad is not None])
        if penalty.requires_grad:  # none of those that it is for may have taken part
            penalty.backward()

    def state_dict(self) -> dict[str, Any]:
        """Return the state between two steps.

        Raises:
            UserError: if a number that has not been read yet is not finite.
        """
        self._finite.read()
        return super().state_dict()


def single_task_trainer(
    objective: StepObjective, task: str, stream: BatchStream, group: str, params: Params
) -> Trainer:
    """Return a trainer of one task alone, without weighting, surgery or averages.

    Args:
        objective: of the stream's batches.
        task: what the batches belong to.
        stream: an epoch is one pass over it.
        group: the group of params that names `epochs`, `max_steps` and `lr`: `mlm` or `prefinetune`.
        params: all params.
    """
    options, model = getattr(params, group), objective.model
    plan = [[(task,)] * len(stream)] * options.epochs
    lr = options.lr * params.encoder.lr_factor
    optimization = Optimization(model, params.optimizer, lr, plan, options.max_steps)
    combiner = Combiner(list(model.parameters()), objective.runtime.processes)
    return Trainer(objective, plan, {task: stream}, optimization, combiner, lr_param=f"{group}.lr")


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
