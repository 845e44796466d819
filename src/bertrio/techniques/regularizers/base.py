"""What a regularizer is, and what it sees of a training step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from bertrio.core.options import Count, Group, NotNegative
from bertrio.core.tasks import HeadOutput
from bertrio.techniques.regularizers.divergences import DIVERGENCES


class BatchOutputs(NamedTuple):
    """The clean outputs for one batch.

    Attributes:
        task: of the batch.
        divergence: name of its target's divergence.
        rows: positions of its rows in the task's table.
        outputs: [B, size].
    """

    task: str
    divergence: str
    rows: np.ndarray
    outputs: Tensor


@dataclass(frozen=True)
class ForwardContext:
    """One clean pass over the K batches of a step, and the ways in which regularizers repeat it.

    Attributes:
        model: what is trained, a `model.multitask.MultitaskModel`.
        block: the texts of the batches, a `model.multitask.Block`.
        embeddings: word embeddings of all texts of the block, [N, T, H].
        clean: the heads' outputs for each batch.
        state: of the dropout generator before the pass.
        rows: positions of the rows of each batch in its task's table.
        positions: of the texts in the block that the processes of the run share, [N] on the CPU, and how many those
            are; None if it is all here.
    """

    model: Any
    block: Any
    embeddings: Tensor
    clean: list[HeadOutput]
    state: Tensor
    rows: list[np.ndarray]
    positions: tuple[Tensor, int] | None = None

    @property
    def mask(self) -> Tensor:
        """The attention mask of the embeddings, [N, T]."""
        return self.block.tokens["attention_mask"]

    @property
    def batches(self) -> list[BatchOutputs]:
        """The clean outputs, batch by batch."""
        tasks = [task for task, _ in self.block.layout]
        return [
            BatchOutputs(task, self.model.targets[task].divergence, rows, output.outputs)
            for task, rows, output in zip(tasks, self.rows, self.clean)
        ]

    @property
    def outputs(self) -> Tensor:
        """The clean outputs of all batches, flat, with their graph."""
        return flat(self.clean)

    def divergence(self, outputs: Tensor, others: Tensor) -> Tensor:
        """Return how far apart two flat outputs are, by the divergence of each batch's target: [K]."""
        shapes = [output.outputs.shape for output in self.clean]
        pairs = zip(*[each.split([shape.numel() for shape in shapes]) for each in (outputs, others)])
        return torch.stack(
            [
                DIVERGENCES[batch.divergence](one.view(shape), other.view(shape))
                for batch, shape, (one, other) in zip(self.batches, shapes, pairs)
            ]
        )

    def from_embeddings(self, embeddings: Tensor) -> Tensor:
        """Return the outputs for other embeddings under the dropout masks of the clean pass."""
        with self.model.runtime.replayed(self.state):
            return flat(self.model.from_embeddings(embeddings, self.block))

    def of_model(self, model: Any) -> Tensor:
        """Return the outputs of another model under the same dropout masks, without gradient."""
        with self.model.runtime.replayed(self.state), torch.no_grad():
            return flat(model.from_embeddings(model.embed(self.block.tokens), self.block))

    def again(self) -> Tensor:
        """Return the outputs under fresh dropout masks."""
        return flat(self.model.from_embeddings(self.embeddings, self.block))


def flat(outputs: Sequence[HeadOutput]) -> Tensor:
    """Return the outputs of several batches, each [B, size], one after the other in one dimension."""
    return torch.cat([output.outputs.reshape(-1) for output in outputs])


@dataclass(frozen=True)
class RunSetup:
    """What regularizers are built from besides their options.

    Attributes:
        model: before the first update.
        tasks: those that train.
        total_steps: updates of the run.
        generator: returns a generator of its own for a name.
        teacher_predictions: of `distill.teacher` for the training rows, by task.
    """

    model: nn.Module
    tasks: Sequence[str]
    total_steps: int
    generator: Callable[[str], torch.Generator]
    teacher_predictions: Mapping[str, Tensor]


class RegularizerOptions(Group):
    """Options that all regularizers have.

    Attributes:
        weight: of the penalty beside the loss; 0 turns it off.
        tasks: that it is for; None for all that train.
        every: it is part of a task's first step and of each `every`-th after it.
    """

    weight: NotNegative
    tasks: list[str] | None
    every: Count = 1


class Regularizer:
    """A penalty on a step's outputs, added to the loss of each task times `weight`.

    A regularizer is a class of this kind in a file of its own, with its equation and its `Options`, and a line in
    `REGULARIZERS`; its block of params.yaml has the same name.
    """

    Options: ClassVar[type[RegularizerOptions]]

    def __init__(self, options: Any, setup: RunSetup) -> None:
        self.options = options
        self.weight, self.every = options.weight, options.every
        self.tasks = frozenset(setup.tasks if options.tasks is None else options.tasks)

    def __call__(self, context: ForwardContext) -> Tensor:
        """Return the penalty of each batch in float32: [K], at least 0."""
        raise NotImplementedError

    def after_step(self, model: nn.Module, step: int) -> None:
        """Follow the model after update number `step`, from 1."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must hold."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
