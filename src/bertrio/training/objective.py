"""Objective of a training step: task losses, regularizers and their weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bertrio.core.runtime import Runtime
from bertrio.core.tasks import HeadOutput
from bertrio.data.batches import Batch, BatchShard
from bertrio.model.multitask import MultitaskModel, TokenBlock
from bertrio.techniques.losses import Loss
from bertrio.techniques.regularizers import ForwardContext, Regularizer
from bertrio.techniques.weighting import Fixed
from bertrio.training.checkpoints import Stateful


def positions_of(batches: Sequence[Batch]) -> tuple[Tensor, int] | None:
    """Return the positions of the shards' texts in the block of the whole batches, [N], and the size of that block.

    None if the batches are whole.
    """
    positions, count = [], 0
    for batch in {batch.text_group or batch.task: batch for batch in batches}.values():
        if batch.shard is None:
            return None
        for _ in batch.inputs:
            positions.append(batch.shard.rows + count)
            count += len(batch.shard.whole.rows)
    return torch.cat(positions), count


class BatchLoss(NamedTuple):
    """Objective of one batch.

    Attributes:
        total: weighted sum of loss and penalties, which runs backward.
        loss: the task's loss, unweighted, for logs.
        penalties: penalties by name of the regularizer, unweighted, for logs.
    """

    total: Tensor
    loss: Tensor
    penalties: dict[str, Tensor]

    def named(self, task: str) -> dict[str, Tensor]:
        """Return loss and penalties by their names in logs, detached."""
        penalties = {f"{name}_{task}": value.detach() for name, value in self.penalties.items()}
        return {task: self.loss.detach(), **penalties}


class StepObjective(Stateful):
    """Base class of objectives: `Objective` for labelled rows, `training.mlm.MlmObjective` for text."""

    reads_labels = True
    model: nn.Module
    runtime: Runtime

    def begin(self, tasks: Sequence[str]) -> None:
        """Begin a step of these tasks."""

    def due(self, task: str) -> tuple[str, ...]:
        """Return the regularizers of a task's batch in this step; tasks with the same can share an encoder pass."""
        return ()

    def casting_once(self) -> Any:
        """Return a context in which weights are cast once for all passes of a step, if that is exact."""
        return nullcontext()

    def __call__(self, *batches: Batch) -> list[BatchLoss]:
        """Return the objective of each batch, from one pass of the encoder."""
        raise NotImplementedError


@dataclass
class Objective(StepObjective):
    r"""The objective of a batch of task t: weighting_t(label_weight_t * loss + sum of weight_r * regularizer_r).

    The weight of a task scales its regularizers together with its loss, so that a regularizer's weight is relative to
    the task's loss.

    Args:
        model: the model to train.
        losses: losses by task.
        weighting: module `(task, loss) -> loss`.
        regularizers: regularizers by name.
        whole_batch_tasks: tasks whose loss is not a mean over rows, so that it needs the outputs of the whole batch and
            the numbers of its texts.
        label_weights: weight of the loss on the labels by task, 1 if not named.
    """

    saved = ("turns", "weighting", "regularizers")
    model: MultitaskModel
    losses: Mapping[str, Loss]
    weighting: nn.Module = field(default_factory=lambda: Fixed({}))
    regularizers: Mapping[str, Regularizer] = field(default_factory=dict)
    whole_batch_tasks: Collection[str] = ()
    label_weights: Mapping[str, float] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def __post_init__(self) -> None:
        self.runtime = self.model.runtime

    def casting_once(self) -> Any:
        """Return a context in which weights are cast once for all passes of a step.

        With regularizers, weights are cast for each pass: passes with a common cast would sum their gradients in bf16.
        """
        return nullcontext() if self.regularizers else self.runtime.casting_once()

    def begin(self, tasks: Sequence[str]) -> None:
        """Begin a step of these tasks: count their turns, for regularizers that are not due in every step."""
        for task in tasks:
            self.turns[task] += 1

    def __call__(self, *batches: Batch) -> list[BatchLoss]:
        """Return the objective of each batch, from one pass of the encoder.

        Args:
            batches: batches of tasks with the same regularizers (see `due`), on the model's device; those with the same
                texts share them. If they are shards, all processes of the run must call this with theirs; the results,
                each times the weight of its shard, sum to the result of the whole batches.
        """
        state, names = self.runtime.random_state(), self.due(batches[0].task)
        text_groups = [batch.text_group or batch.task for batch in batches]
        block = TokenBlock.from_batches([(batch.task, batch.inputs) for batch in batches], text_groups)
        embeddings = self.model.embed(block.tokens)
        pooled = self.model.encode(embeddings, block.tokens)
        outputs = self.model.from_pooled(pooled, block)
        rows = [batch.rows for batch in batches]
        context = ForwardContext(self.model, block, embeddings, pooled, outputs, state, rows, positions_of(batches))
        penalties = {name: self.regularizers[name](context) for name in names}
        return [
            self._batch_loss(batch, output, {name: values[index] for name, values in penalties.items()})
            for index, (batch, output) in enumerate(zip(batches, outputs))
        ]

    def _batch_loss(self, batch: Batch, output: HeadOutput, penalties: dict[str, Tensor]) -> BatchLoss:
        rows = batch
        if batch.task in self.whole_batch_tasks:
            if batch.shard is not None:
                output, rows = self._whole_batch(output, batch.shard), batch.shard.whole
            output = output._replace(texts=rows.text_numbers)
        loss = self._label_loss(batch.task, output, rows)
        if rows.labels is None and not penalties:
            return BatchLoss(loss, loss, penalties)  # absent from this step: its weight must not move
        total = self.label_weights.get(batch.task, 1.0) * loss
        for name, penalty in penalties.items():
            total = total + self.regularizers[name].weight * penalty
        return BatchLoss(self.weighting(batch.task, total), loss, penalties)

    def _label_loss(self, task: str, output: HeadOutput, batch: Batch) -> Tensor:
        """Return the loss over the labelled rows times their share of all rows.

        So each labelled row counts the same, however many rows without label come with it; and shards of a batch, and
        pieces of it, sum to the loss of the whole.
        """
        if batch.labels is None or (batch.labelled is not None and not batch.labelled.any()):
            return 0.0 * output.outputs.float().sum()
        if batch.labelled is None:
            return self.losses[task](output, batch.labels)
        rows = batch.labelled
        return rows.float().mean() * self.losses[task](output.take(rows), batch.labels[rows])

    def _whole_batch(self, output: HeadOutput, shard: BatchShard) -> HeadOutput:
        """Return the outputs of all processes for a batch, with a gradient for the rows of this process only.

        Every process computes the loss of the whole batch and multiplies it by the weight of its shard. Their gradients
        must sum to that of the loss, so each is divided by this weight. The values of the outputs do not change.
        """
        scale = 1 / shard.weight if shard.weight else 0.0  # rows of weight 0 are copies of another process's rows

        def gather(values: Tensor) -> Tensor:
            counted = values.detach() if shard.weight else torch.zeros_like(values)
            positions = shard.rows.to(values.device)
            gathered = self.runtime.processes.all_gather_rows(counted, positions, len(shard.whole.rows))
            return gathered.index_add(0, positions, scale * (values - values.detach()))

        if output.cosine is None or output.vectors is None:
            return HeadOutput(gather(output.outputs))
        u, v = output.vectors
        return HeadOutput(gather(output.outputs), gather(output.cosine), (gather(u), gather(v)))

    def due(self, task: str) -> tuple[str, ...]:
        """Return the regularizers of a task's batch in this step."""
        turn = self.turns[task] - 1
        return tuple(name for name, term in self.regularizers.items() if task in term.tasks and turn % term.every == 0)
