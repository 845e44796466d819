"""Base class of regularizers, and the forward pass that they receive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from bertrio.core.options import Count, Group, NotNegative
from bertrio.core.tasks import HeadOutput
from bertrio.techniques.regularizers.divergences import DIVERGENCES


@dataclass(frozen=True)
class ForwardContext:
    """Clean forward pass over K batches of a step, with methods that repeat it: each returns the outputs by batch.

    Attributes:
        model: the model that is trained, a `model.multitask.MultitaskModel`.
        block: texts of the batches, a `model.multitask.TokenBlock`.
        embeddings: word embeddings of all texts of the block, [N, T, H].
        pooled: pooled vectors of all texts of the block, [N, H], in float32.
        clean: outputs of the heads for each batch.
        state: state of the dropout generator before the pass.
        rows: positions of the rows of each batch in its task's table.
        positions: if several processes share the batches, positions of the texts in the block of the whole batches, [N]
            on the CPU, and the size of that block; else None.
    """

    model: Any
    block: Any
    embeddings: Tensor
    pooled: Tensor
    clean: list[HeadOutput]
    state: Tensor
    rows: list[np.ndarray]
    positions: tuple[Tensor, int] | None = None

    @property
    def mask(self) -> Tensor:
        """Attention mask of the embeddings, [N, T]."""
        return self.block.tokens["attention_mask"]

    @property
    def tasks(self) -> list[str]:
        """Task of each batch."""
        return [task for task, _ in self.block.layout]

    @property
    def divergences(self) -> list[str]:
        """Name of the divergence of each batch's target."""
        return [self.model.targets[task].divergence for task in self.tasks]

    @property
    def vectors(self) -> list[Tensor]:
        """Pooled vectors by batch, [B, texts, H]; a cross-encoded pair is one text."""
        return [torch.stack(vectors, dim=1) for vectors in self.block.split(self.pooled)]

    @property
    def outputs(self) -> list[Tensor]:
        """Clean outputs by batch, each [B, size], with their graph."""
        return [output.outputs for output in self.clean]

    def divergence(self, outputs: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor:
        """Return the divergence of two outputs of each batch, by that of its target: [K]."""
        batches = zip(self.divergences, outputs, others)
        return torch.stack([DIVERGENCES[name](one, other) for name, one, other in batches])

    def from_embeddings(self, embeddings: Tensor) -> list[Tensor]:
        """Return the outputs for other embeddings, with the dropout masks of the clean pass."""
        with self.model.runtime.replayed(self.state):
            return [output.outputs for output in self.model.from_embeddings(embeddings, self.block)]

    def outputs_of(self, model: Any) -> list[Tensor]:
        """Return the outputs of another model with the same dropout masks, without gradient."""
        with self.model.runtime.replayed(self.state), torch.no_grad():
            return [output.outputs for output in model.from_embeddings(model.embed(self.block.tokens), self.block)]

    def with_new_dropout(self) -> list[Tensor]:
        """Return the outputs with new dropout masks."""
        return [output.outputs for output in self.model.from_embeddings(self.embeddings, self.block)]


class TeacherOutputs(NamedTuple):
    """Outputs of `distill.teacher` for the training rows, by task, on the CPU.

    Attributes:
        predictions: probabilities [N, C] of classes (binary: no, yes), or scores [N, 1].
        vectors: pooled vectors [N, texts, H]; empty if they are not distilled.
    """

    predictions: Mapping[str, Tensor]
    vectors: Mapping[str, Tensor]


@dataclass(frozen=True)
class RunSetup:
    """Values that regularizers are built from, besides their options.

    Attributes:
        model: the model before the first update.
        tasks: tasks that train.
        total_steps: number of updates of the run.
        generator: function that returns a random generator for a name.
        teacher: outputs of `distill.teacher` for the training rows.
    """

    model: Any
    tasks: Sequence[str]
    total_steps: int
    generator: Callable[[str], torch.Generator]
    teacher: TeacherOutputs


class RegularizerOptions(Group):
    """Options that all regularizers have.

    Attributes:
        weight: factor of the penalty in the objective; 0 turns it off.
        tasks: tasks with the penalty; None for all that train.
        every: interval of steps of a task with the penalty, starting at the first.
    """

    weight: NotNegative
    tasks: list[str] | None
    every: Count = 1


class Regularizer:
    """A penalty on a step's outputs, added to the loss of each task times `weight`.

    To add a regularizer, write a subclass with its equation and `Options` in a new file, and add it to `REGULARIZERS`.
    Its block in params.yaml has the same name.
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
        """Update own state after update number `step` of the model, from 1."""

    def parameters(self) -> Iterable[nn.Parameter]:
        """Return own parameters that are trained with the model."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
