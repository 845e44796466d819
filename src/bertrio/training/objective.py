"""What one batch adds to a step: the task's loss, the regularizers on top of it, and the weight of both."""

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
from bertrio.model.multitask import Block, MultitaskModel
from bertrio.techniques.losses import Loss
from bertrio.techniques.regularizers import ForwardContext, Regularizer
from bertrio.techniques.weighting import Fixed
from bertrio.training.checkpoints import Part


def positions_of(batches: Sequence[Batch]) -> tuple[Tensor, int] | None:
    """Return the positions of a block's texts in the block of the whole batches, [N], and its size; None if the batches
    are whole."""
    positions, count = [], 0
    for batch in batches:
        if batch.shard is None:
            return None
        for _ in batch.inputs:
            positions.append(batch.shard.rows + count)
            count += batch.shard.count
    return torch.cat(positions), count


class Parts(NamedTuple):
    """The objective of one batch: `total` goes backward; `loss` and `penalties` are what logs tell, unweighted."""

    total: Tensor
    loss: Tensor
    penalties: dict[str, Tensor]

    def named(self, task: str) -> dict[str, Tensor]:
        """Return loss and penalties by the name that logs give them, without their graph."""
        penalties = {f"{name}_{task}": value.detach() for name, value in self.penalties.items()}
        return {task: self.loss.detach(), **penalties}


class StepObjective(Part):
    """What a step minimises: `Objective` of labelled rows, `training.mlm.MlmObjective` of text."""

    model: nn.Module
    runtime: Runtime

    def begin(self, tasks: Sequence[str]) -> None:
        """Count a step of these tasks."""

    def groups(self, tasks: Sequence[str]) -> list[list[str]]:
        """Return the tasks of a step, those together that can share a pass of the encoder."""
        return [list(tasks)]

    def keeping_casts(self) -> Any:
        """Return a context in which weights are cast once for all passes of a step, where that is exact."""
        return nullcontext()

    def __call__(self, *batches: Batch) -> list[Parts]:
        """Return the objective of each batch, from one pass of the encoder."""
        raise NotImplementedError


@dataclass
class Objective(StepObjective):
    r"""The objective of a batch of task t: weighting_t(loss + sum of weight_r * regularizer_r).

    The weight of a task scales its regularizers with its loss, so that `smart.lambda` keeps its meaning, a share of
    the task's own loss, whatever the weight is.

    Args:
        model: what is trained.
        losses: loss by task.
        weighting: a module `(task, loss) -> loss`.
        regularizers: by name.
        of_batches: tasks whose loss is one number for a batch, and not (or not for sure) a mean over its rows.
    """

    saved = ("turns", "weighting", "regularizers")
    model: MultitaskModel
    losses: Mapping[str, Loss]
    weighting: nn.Module = field(default_factory=lambda: Fixed({}))
    regularizers: Mapping[str, Regularizer] = field(default_factory=dict)
    of_batches: Collection[str] = ()
    turns: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def __post_init__(self) -> None:
        self.runtime = self.model.runtime

    def keeping_casts(self) -> Any:
        """Return a context in which weights are cast once for all passes of a step.

        Not with regularizers: passes that go backward together would add up their gradients in bf16.
        """
        return nullcontext() if self.regularizers else self.runtime.casting_once()

    def begin(self, tasks: Sequence[str]) -> None:
        """Tells that a step of these tasks begins."""
        for task in tasks:
            self.turns[task] += 1

    def __call__(self, *batches: Batch) -> list[Parts]:
        """The parts for each of the batches, which share one pass of the encoder and the same regularizers.

        Args:
            batches: on the model's device, of different tasks; several only as `groups` puts them together. If they are
                parts of others, all processes of the run must call with theirs, and what they get, each part times its
                weight, adds up to what the whole batches give.
        """
        state, names = self.runtime.random_state(), self._due(batches[0].task)
        block = Block.from_batches([(batch.task, batch.inputs) for batch in batches])
        embeddings = self.model.embed(block.tokens)
        outputs = self.model.from_embeddings(embeddings, block)
        rows = [batch.rows for batch in batches]
        context = ForwardContext(self.model, block, embeddings, outputs, state, rows, positions_of(batches))
        penalties = {name: self.regularizers[name](context) for name in names}
        return [
            self._parts(batch, output, {name: values[index] for name, values in penalties.items()})
            for index, (batch, output) in enumerate(zip(batches, outputs))
        ]

    def _parts(self, batch: Batch, output: HeadOutput, penalties: dict[str, Tensor]) -> Parts:
        if batch.shard is not None and batch.task in self.of_batches:
            output, labels = self._of_whole_batch(output, batch.shard), batch.shard.labels
        else:
            labels = batch.labels
        assert labels is not None  # rows that train have labels
        loss = total = self.losses[batch.task](output, labels)
        for name, penalty in penalties.items():
            total = total + self.regularizers[name].weight * penalty
        return Parts(self.weighting(batch.task, total), loss, penalties)

    def _of_whole_batch(self, output: HeadOutput, shard: BatchShard) -> HeadOutput:
        """The outputs of all processes for a batch, with the gradient of this one's own rows.

        The loss of them all is the same in each process, and the processes' parts of it, each times its weight, add up
        to it; so must their gradients, and the gradient is divided by the weight. Numbers stay as they are.
        """
        scale = 1 / shard.weight if shard.weight else 0.0  # rows of weight 0 are others' rows, and leave no trace

        def whole(own: Tensor) -> Tensor:
            counted = own.detach() if shard.weight else torch.zeros_like(own)
            at = shard.rows.to(own.device)
            values = self.runtime.processes.all_gather_rows(counted, at, shard.count)
            return values.index_add(0, at, scale * (own - own.detach()))

        return HeadOutput(whole(output.outputs), None if output.cosine is None else whole(output.cosine))

    def groups(self, tasks: Sequence[str]) -> list[list[str]]:
        """The tasks of a step, those with the same regularizers together: one pass does for each group."""
        groups: dict[tuple[str, ...], list[str]] = {}
        for task in tasks:
            groups.setdefault(self._due(task), []).append(task)
        return list(groups.values())

    def _due(self, task: str) -> tuple[str, ...]:
        turn = max(0, self.turns[task] - 1)
        return tuple(name for name, each in self.regularizers.items() if task in each.tasks and turn % each.every == 0)
