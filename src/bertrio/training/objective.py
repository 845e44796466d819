"""What one batch adds to a step: the task's loss, the regularizers on top of it, and the weight of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor, nn

from bertrio.combining.weighting import Fixed
from bertrio.data.batches import Batch
from bertrio.losses import Loss
from bertrio.model.multitask import MultitaskModel
from bertrio.params import Params
from bertrio.regularizers.bregman import Bregman
from bertrio.regularizers.divergences import DIVERGENCES, Divergence
from bertrio.regularizers.r_drop import r_drop
from bertrio.regularizers.smart import Smart
from bertrio.runtime import generator
from bertrio.tasks import HeadOutput


@dataclass(frozen=True)
class Pass:
    """One clean pass over a batch, and the ways in which regularizers repeat it.

    Attributes:
        embeddings: word embeddings of each of the batch's inputs, [B, T, H].
        output: what the head made of them.
        state: of the dropout generator before the pass.
        divergence: how far apart two outputs of this task are.
    """

    model: MultitaskModel
    batch: Batch
    embeddings: tuple[Tensor, ...]
    output: HeadOutput
    state: Tensor
    divergence: Divergence

    def from_embeddings(self, embeddings: tuple[Tensor, ...]) -> Tensor:
        """The outputs for other embeddings, under the dropout masks of the clean pass."""
        with self.model.runtime.replayed(self.state):
            return self.model.from_embeddings(self.batch.task, embeddings, self.batch.inputs).outputs

    def by(self, model: MultitaskModel) -> Tensor:
        """The outputs of another model for this batch, under the dropout masks of the clean pass."""
        with self.model.runtime.replayed(self.state):
            return model(self.batch.task, self.batch.inputs).outputs

    def again(self) -> Tensor:
        """The outputs under fresh dropout masks."""
        return self.model.from_embeddings(self.batch.task, self.embeddings, self.batch.inputs).outputs

    @property
    def masks(self) -> tuple[Tensor, ...]:
        """The attention mask of each of the batch's inputs, [B, T]."""
        return tuple(tokens["attention_mask"] for tokens in self.batch.inputs)


class Term(NamedTuple):
    """A regularizer as it stands in the objective: its weight, the tasks it is for, and what computes it."""

    weight: float
    tasks: frozenset[str]
    compute: Callable[[Pass], Tensor]


class Parts(NamedTuple):
    """The objective of one batch: `total` goes backward; `loss` and `penalties` are what logs tell, unweighted."""

    total: Tensor
    loss: Tensor
    penalties: dict[str, Tensor]


@dataclass
class Objective:
    r"""The objective of a batch of task t: weighting_t(loss + sum of weight_r * regularizer_r).

    The weight of a task scales its regularizers with its loss, so that `smart.lambda` keeps its meaning, a share of
    the task's own loss, whatever the weight is.

    Args:
        model: what is trained.
        losses: loss by task.
        weighting: a module `(task, loss) -> loss`.
        terms: regularizers by name.
    """

    model: MultitaskModel
    losses: Mapping[str, Loss]
    weighting: nn.Module = field(default_factory=lambda: Fixed({}))
    terms: Mapping[str, Term] = field(default_factory=dict)

    def __call__(self, batch: Batch) -> Parts:
        """The parts for one batch on the model's device."""
        state = self.model.runtime.random_state()
        embeddings = tuple(self.model.embed(tokens) for tokens in batch.inputs)
        output = self.model.from_embeddings(batch.task, embeddings, batch.inputs)
        loss = total = self.losses[batch.task](output, batch.labels)
        divergence = DIVERGENCES[self.model.targets[batch.task].divergence]
        clean = Pass(self.model, batch, embeddings, output, state, divergence)
        penalties = {name: term.compute(clean) for name, term in self.terms.items() if batch.task in term.tasks}
        for name, penalty in penalties.items():
            total = total + self.terms[name].weight * penalty
        return Parts(self.weighting(batch.task, total), loss, penalties)


def smart_term(params: Params) -> Term | None:
    """The smoothness penalty that `smart` asks for; None if it is off."""
    options = params.smart
    if not options.strength:
        return None
    smart = Smart(
        eta=options.eta,
        sigma=options.sigma,
        radius=options.radius,
        norm=options.norm,
        steps=options.steps,
        projection=options.projection,
        guard=options.guard,
        generator=generator(params.runtime.seed, "smart noise"),
    )
    return Term(
        options.strength,
        _tasks(options.tasks, params.trains),
        lambda of: smart(of.from_embeddings, of.embeddings, of.masks, of.output.outputs, of.divergence),
    )


def bregman_term(params: Params, bregman: Bregman | None) -> Term | None:
    """The proximal penalty that `bregman` asks for, against the teacher that it holds; None if it is off."""
    if bregman is None:
        return None
    return Term(
        params.bregman.mu,
        _tasks(params.bregman.tasks, params.trains),
        lambda of: bregman(of.by(bregman.teacher.model), of.output.outputs, of.divergence),
    )


def r_drop_term(params: Params) -> Term | None:
    """The penalty on disagreement between dropout masks that `r_drop` asks for; None if it is off."""
    if not params.r_drop.alpha:
        return None
    return Term(
        params.r_drop.alpha,
        _tasks(params.r_drop.tasks, params.trains),
        lambda of: r_drop(of.output.outputs, of.again(), of.divergence),
    )


def _tasks(chosen: Sequence[str] | None, trains: Sequence[str]) -> frozenset[str]:
    return frozenset(trains if chosen is None else chosen)
