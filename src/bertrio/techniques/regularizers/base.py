"""What a regularizer is, and what it sees of a training step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from bertrio.core.options import Count, Group, NotNegative


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


class ForwardContext(Protocol):
    """One forward pass over the K batches of a step, and the ways in which regularizers repeat it.

    Attributes:
        embeddings: word embeddings of all texts, [N, T, H].
        mask: their attention mask, [N, T].
        positions: rows of the texts among those of all processes, [N] on the CPU, and how many those are; None if one
            process has them all.
    """

    @property
    def embeddings(self) -> Tensor: ...

    @property
    def positions(self) -> tuple[Tensor, int] | None: ...

    @property
    def mask(self) -> Tensor: ...

    @property
    def batches(self) -> list[BatchOutputs]: ...

    @property
    def outputs(self) -> Tensor:
        """The clean outputs of all batches, flat, with their graph."""

    def divergence(self, outputs: Tensor, others: Tensor) -> Tensor:
        """Return how far apart two flat outputs are, by the divergence of each batch's target: [K]."""

    def from_embeddings(self, embeddings: Tensor) -> Tensor:
        """Return the outputs for other embeddings under the dropout masks of the clean pass."""

    def of_model(self, model: nn.Module) -> Tensor:
        """Return the outputs of another model under the same dropout masks, without gradient."""

    def again(self) -> Tensor:
        """Return the outputs under fresh dropout masks."""


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
