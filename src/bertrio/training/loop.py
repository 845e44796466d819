"""The training loop: outputs -> losses -> gradients -> update, for any schedule of tasks.

`Trainer.step` makes one update. `Trainer.run` repeats it over a plan, which lists the tasks of every step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertrio.config import Params
from bertrio.core.console import progress
from bertrio.data.batches import Batch, BatchStream, Rows
from bertrio.model.multitask import MultitaskModel
from bertrio.training.checkpoints import Stateful
from bertrio.training.monitoring import Curves, EpochLog, FiniteCheck, Meter
from bertrio.training.objective import StepObjective
from bertrio.training.optimizer import Combiner, Optimization, clip_gradients


@dataclass
class Trainer(Stateful):
    """Train a model for the epochs of a plan; `run` yields after each one, so that the caller can score the model.

    If several processes share the run, each computes its shard of every batch. Gradients are summed over the processes
    before they are combined. Everything else is the same in every process.

    Args:
        objective: computes losses and penalties of batches; holds the model, which is on its device.
        plan: the steps of each epoch. A step is a tuple of tasks, whose losses make one update.
        streams: training batches by task.
        optimization: optimizer, learning rate, maximum gradient norm and number of steps.
        combiner: combines the gradients of a step's tasks, by sum or surgery.
        penalize_weights: adds the gradient of a penalty on the weights, such as L2, after surgery and before clipping;
            None for no penalty.
        accumulate: number of pieces that a batch is cut into. Each has a pass of its own, which saves memory and leaves
            the gradient the same.
        one_pass: let all tasks of a step share one pass of the encoder, padded to one width.
        callbacks: functions called after each update with its number, from 1.
        stateful: further state that steps change, by name, for checkpoints: averages, the tracker.
        tracker: records training curves, see `Meter`.
        lr_param: name of the learning rate in params.yaml, for error messages.

    Raises:
        UserError: while running, if a loss or a gradient is not finite. The CPU checks before the update; a GPU checks
            every few steps, and always before a checkpoint is saved.
    """

    saved = ("steps_done", "model", "optimization", "objective", "combiner", "meter", "streams", "stateful")
    objective: StepObjective
    plan: Sequence[Sequence[tuple[str, ...]]]
    streams: Mapping[str, BatchStream]
    optimization: Optimization
    combiner: Combiner
    penalize_weights: Callable[[], None] | None = None
    accumulate: int = 1
    one_pass: bool = False
    callbacks: Sequence[Callable[[int], None]] = ()
    stateful: Mapping[str, Any] = field(default_factory=dict)
    tracker: Curves | None = None
    lr_param: str = "finetune.lr"

    def __post_init__(self) -> None:
        self.model, self.runtime = self.objective.model, self.objective.runtime
        self.total_steps, self.steps_done = self.optimization.total_steps, 0
        self.meter = Meter(self.tracker)
        self._finite = FiniteCheck(
            self.runtime.device, lambda task, rows: self.streams[task].rows.ids[rows], f"try a lower {self.lr_param}"
        )

    def step(self, tasks: tuple[str, ...], number: int) -> dict[str, Tensor]:
        """Make update `number` from one batch of each task; return the losses and penalties to log."""
        logged = self._add_gradients(tasks, number)  # objective
        self.combiner.combine(number, self._finite)  # sum or surgery
        if self.penalize_weights is not None:
            self.penalize_weights()
        norm = clip_gradients(self.model, self.optimization.max_grad_norm)
        self._finite.add("the norm of the gradients", norm)
        self._finite.read_on_cpu()
        lr = self.optimization.step()
        for callback in self.callbacks:  # averages
            callback(number)
        self.steps_done = number
        self.meter.log(number, tasks, logged, lr, norm)
        return logged

    def run(
        self, description: str, done: int = 0, between_steps: Callable[[int], None] = lambda step: None
    ) -> Iterator[EpochLog]:
        """Train epoch by epoch and yield the log of each. The run ends early if it has fewer steps than the plan.

        After `load_state_dict`, training continues with the next step. If the last step ended an epoch that the caller
        has not processed, that epoch is yielded first.

        Args:
            description: label of the progress bar.
            done: number of epochs that the caller has processed.
            between_steps: function called after each step with the number of steps done; may save `state_dict`.
        """
        end = 0
        for epoch, planned in enumerate(self.plan, start=1):
            steps = planned[: self.total_steps - end]
            if not steps:
                return
            start, end = end, end + len(steps)
            if epoch > done and end >= self.steps_done:
                self._train(steps, start, f"{description}, epoch {epoch}/{len(self.plan)}", between_steps)
                yield EpochLog(epoch, self.steps_done, self.meter.lr, self.meter.losses.means())

    def tasks_of(self, epochs: int) -> set[str]:
        """Return the tasks that take part in the steps of the first `epochs` epochs."""
        steps = islice(chain.from_iterable(self.plan[:epochs]), self.total_steps)
        return set(chain.from_iterable(steps))

    def cost(self) -> dict[str, str | float]:
        """Return the figures for a stage's timing file: device, precision, threads, rows per second, ms per step."""
        meter = self.meter
        return {
            **self.runtime.facts(),
            "rows_per_second": meter.rows_seen / meter.seconds,
            "ms_per_step": 1000 * meter.seconds / self.steps_done,
            "steps": self.steps_done,
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
        }

    def _train(
        self, steps: Sequence[tuple[str, ...]], start: int, description: str, between_steps: Callable[[int], None]
    ) -> None:
        """Run the remaining `steps` of an epoch that begins after update `start`."""
        if self.steps_done == start:
            self.meter.losses.clear()
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
                between_steps(number)
                self.meter.start_clock()  # leaves saving out of the training time

    def _add_gradients(self, tasks: tuple[str, ...], number: int) -> dict[str, Tensor]:
        """Run forward and backward passes over one batch of each task; return the values to log.

        Each group of `_groups` shares a pass of the encoder and runs backward before the next runs forward: gradients
        accumulate to that of the summed loss, with one group's activations in memory. Tasks with the same texts take
        the rows that the first of them draws.
        """
        logged: dict[str, Tensor] = {}
        self.objective.begin(tasks)
        self.combiner.begin(tasks)
        self.runtime.begin_step(number)
        self._finite.begin_step(number)
        drawn: dict[str, Batch] = {}
        with self.objective.casting_once():
            for group in self._groups(tasks):
                batches = [self._batch(task, drawn).to(self.runtime.device) for task in group]
                self._finite.add_rows(batches)
                self._backward(batches, logged)
                self.combiner.take(group[-1])
        return self.runtime.processes.all_reduce_sum(logged)

    def _groups(self, tasks: tuple[str, ...]) -> list[list[str]]:
        """Group the tasks of a step that share a pass: those with the same texts, or all with `one_pass`.

        Tasks of a group have the same regularizers. Surgery needs a backward pass of each task, so with it only tasks
        with the same texts share a forward pass, and none if batches are cut into pieces.
        """
        separate, groups = self.combiner.separate, defaultdict[Any, list[str]](list)
        for task in tasks:
            text_group = task if separate and self.accumulate > 1 else self.streams[task].rows.text_group
            groups[self.objective.due(task), (self.one_pass and not separate) or text_group].append(task)
        return list(groups.values())

    def _batch(self, task: str, drawn: dict[str, Batch]) -> Batch:
        """Return the next batch of a task: the one in `drawn` of the same texts, with its labels, if there is one."""
        rows = self.streams[task].rows
        if rows.text_group in drawn:
            return rows.relabelled(drawn[rows.text_group])
        drawn[rows.text_group] = batch = next(self.streams[task])
        return batch

    def _backward(self, batches: list[Batch], logged: dict[str, Tensor]) -> None:
        """Accumulate the gradients of the objective of `batches`, piece by piece, and add its values to `logged`.

        Each piece is weighted by its share of the batch's rows, so that the pieces sum to the mean over the batch. In
        the same way, each process's shard of a piece is weighted so that the processes sum to the whole piece.
        """
        rank, count = self.runtime.processes.rank, self.runtime.processes.world_size
        for pieces in zip_longest(*[batch.pieces(self.accumulate) for batch in batches]):
            present = [(piece, batch) for piece, batch in zip(pieces, batches) if piece is not None]
            shards = [piece.part(rank, count) for piece, _ in present]
            losses = self.objective(*shards)
            shares = [
                shard.weight * len(piece.rows) / len(batch.rows) for shard, (piece, batch) in zip(shards, present)
            ]
            for (_, batch), shard, loss, share in zip(present, shards, losses, shares):
                for name, value in loss.named(shard.task).items():
                    self._finite.add(f"the loss of {name}", value, [shard.task])
                    if name == batch.task and self.objective.reads_labels:
                        if batch.labels is None:
                            continue
                        value = value / batch.labelled_share  # the mean over rows with a label
                    logged[name] = logged.get(name, 0.0) + share * value
            self.meter.rows_seen += sum(len(piece.rows) for piece, _ in present)
            self._finite.read_on_cpu()
            totals = [share * loss.total for share, loss in zip(shares, losses)]
            if self.combiner.separate:
                for total, shard in zip(totals[:-1], shards):  # of the same texts
                    total.backward(retain_graph=True)
                    self.combiner.take(shard.task)
                totals = totals[-1:]
            sum(totals[1:], totals[0]).backward()

    def state_dict(self) -> dict[str, Any]:
        """Return the state between two steps.

        Raises:
            UserError: if a value that has not been checked yet is not finite.
        """
        self._finite.read()
        return super().state_dict()


def single_task_trainer(
    objective: StepObjective, task: str, stream: BatchStream, group: str, params: Params
) -> Trainer:
    """Return a trainer of a single task, without weighting, surgery or averages.

    Args:
        objective: computes the loss of the stream's batches.
        task: name of the stream's task.
        stream: training batches; an epoch is one pass over them.
        group: group of params with `epochs`, `max_steps` and `lr`: `mlm` or `prefinetune`.
        params: all params.
    """
    options, model = getattr(params, group), objective.model
    plan = [[(task,)] * len(stream)] * options.epochs
    lr = options.lr * params.encoder.lr_factor
    optimization = Optimization(model, params.optimizer, lr, plan, options.max_steps)
    combiner = Combiner(list(model.parameters()), objective.runtime.processes)
    return Trainer(objective, plan, {task: stream}, optimization, combiner, lr_param=f"{group}.lr")


def infer(model: MultitaskModel, rows: Rows, batch_size: int, pause: Callable[[], None] = lambda: None) -> np.ndarray:
    """Return the outputs of the task's head for all rows, in their order, without dropout: float64 [N, size].

    If several processes share the run, they take batches in turn, and every process gets all outputs.

    Args:
        model: the model, which is left in evaluation mode.
        rows: rows of one task.
        batch_size: rows per batch.
        pause: function called after each batch, or each round of batches of all processes. It may raise an exception,
            but must not change weights: their casts are cached until the end. For the same reason, do not call `infer`
            inside another autocast context.
    """
    processes = model.runtime.processes
    outputs_by_batch: list[tuple[np.ndarray, np.ndarray]] = []
    model.eval()
    # no_grad, since autocast caches no casts under inference_mode
    with torch.no_grad(), model.runtime.casting_once(), progress(f"{rows.task.name}: predicting", len(rows)) as bar:
        for number, batch in enumerate(rows.sorted_batches(batch_size)):
            turn = number % processes.world_size
            if turn == processes.rank:
                batch = batch.to(model.runtime.device)
                values = model(rows.task.name, batch.inputs).outputs.float().cpu().numpy()
                outputs_by_batch.append((batch.rows, values))
            bar.advance(len(batch.rows))
            if turn == processes.world_size - 1:
                pause()
    size = outputs_by_batch[0][1].shape[1] if outputs_by_batch else 0
    outputs = np.zeros((len(rows), processes.all_reduce_max(size)))
    for positions, values in outputs_by_batch:
        outputs[positions] = values
    return processes.all_reduce_sum(torch.from_numpy(outputs)).numpy()
