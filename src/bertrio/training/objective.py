"""What one batch adds to a step: the task's loss, the regularizers on top of it, and the weight of both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from bertrio.config import Params
from bertrio.core.runtime import generator
from bertrio.core.tasks import HeadOutput
from bertrio.data.batches import Batch, Place
from bertrio.model.multitask import Block, MultitaskModel
from bertrio.techniques.losses import Loss
from bertrio.techniques.regularizers.bregman import Bregman
from bertrio.techniques.regularizers.distillation import DISTILLATIONS
from bertrio.techniques.regularizers.divergences import DIVERGENCES
from bertrio.techniques.regularizers.r_drop import r_drop
from bertrio.techniques.regularizers.smart import Smart
from bertrio.techniques.weighting import Fixed
from bertrio.training.stateful import Stateful


@dataclass(frozen=True)
class Pass:
    """One clean pass over the batches of a block, and the ways in which regularizers repeat it.

    Regularizers see the outputs of all batches as one flat tensor, and divergences of it as one number a batch, [K].

    Attributes:
        embeddings: word embeddings of all texts of the block, [N, T, H].
        clean: what the heads made of them.
        state: of the dropout generator before the pass.
        rows: positions of the rows of each batch in its task's table.
        place: where the texts stand in the block that the processes of the run share, [N] on the CPU, and of how many;
            None if it is all here.
    """

    model: MultitaskModel
    block: Block
    embeddings: Tensor
    clean: list[HeadOutput]
    state: Tensor
    rows: list[np.ndarray]
    place: tuple[Tensor, int] | None = None

    @property
    def outputs(self) -> Tensor:
        """The clean outputs, flat."""
        return flat(self.clean)

    @property
    def mask(self) -> Tensor:
        """The attention mask of the block, [N, T]."""
        return self.block.tokens["attention_mask"]

    def divergence(self, outputs: Tensor, others: Tensor) -> Tensor:
        """How far apart two flat outputs are, by the divergence of each batch's target: [K]."""
        shapes = [output.outputs.shape for output in self.clean]
        parts = zip(*[of.split([shape.numel() for shape in shapes]) for of in (outputs, others)])
        targets = [self.model.targets[task] for task, _ in self.block.layout]
        return torch.stack(
            [
                DIVERGENCES[target.divergence](one.view(shape), other.view(shape))
                for target, shape, (one, other) in zip(targets, shapes, parts)
            ]
        )

    def distance_from(self, taught: Mapping[str, Tensor]) -> Tensor:
        """How far each batch's outputs are from what is taught of its rows, by its target's distillation: [K].

        Args:
            taught: by task, of all rows of its table.
        """
        parts = []
        for (task, _), rows, output in zip(self.block.layout, self.rows, self.clean):
            distillation = DISTILLATIONS[self.model.targets[task].divergence]
            parts.append(distillation(output.outputs, taught[task][rows].to(output.outputs.device)))
        return torch.stack(parts)

    def from_embeddings(self, embeddings: Sequence[Tensor]) -> Tensor:
        """The outputs for other embeddings (one tensor), under the dropout masks of the clean pass."""
        with self.model.runtime.replayed(self.state):
            return flat(self.model.from_embeddings(*embeddings, self.block))

    def by(self, model: MultitaskModel) -> Tensor:
        """The outputs of another model for the block, under the dropout masks of the clean pass."""
        with self.model.runtime.replayed(self.state), torch.no_grad():
            return flat(model.from_embeddings(model.embed(self.block.tokens), self.block))

    def again(self) -> Tensor:
        """The outputs under fresh dropout masks."""
        return flat(self.model.from_embeddings(self.embeddings, self.block))


def flat(outputs: Sequence[HeadOutput]) -> Tensor:
    """The outputs of several batches, each [B, size], one after the other in one dimension."""
    return torch.cat([output.outputs.reshape(-1) for output in outputs])


def place_of(batches: Sequence[Batch]) -> tuple[Tensor, int] | None:
    """Where the texts of a block stand in the one that the whole batches would make, [N], and how many that has; None
    if the batches are whole."""
    if batches[0].place is None:
        return None
    places, count = [], 0
    for batch in batches:
        for _ in batch.inputs:
            places.append(batch.place.rows + count)
            count += batch.place.count
    return torch.cat(places), count


class Term(NamedTuple):
    """A regularizer as it stands in the objective: its weight, the tasks it is for, what computes it and what it keeps.

    It counts in a task's first step and in each `every`-th after it. Steps that the task has no part in do not count,
    or a round robin would give the penalty to one task alone.
    """

    weight: float
    tasks: frozenset[str]
    compute: Callable[[Pass], Tensor]  # [K], one a batch
    every: int = 1
    kept: Stateful | None = None


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
        of_batches: tasks whose loss is one number for a batch, and not (or not for sure) a mean over its rows.
    """

    model: MultitaskModel
    losses: Mapping[str, Loss]
    weighting: nn.Module = field(default_factory=lambda: Fixed({}))
    terms: Mapping[str, Term] = field(default_factory=dict)
    of_batches: Collection[str] = ()
    turns: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def begin(self, tasks: Sequence[str]) -> None:
        """Tells that a step of these tasks begins."""
        for task in tasks:
            self.turns[task] += 1

    def __call__(self, *batches: Batch) -> list[Parts]:
        """The parts for each of the batches, which share one pass of the encoder and the same terms.

        Args:
            batches: on the model's device, of different tasks; several only as `groups` puts them together. If they are
                parts of others, all processes of the run must call with theirs, and what they get, each part times its
                weight, adds up to what the whole batches give.
        """
        runtime, names = self.model.runtime, self._terms_of(batches[0].task)
        state = runtime.random_state()
        block = Block.of([(batch.task, batch.inputs) for batch in batches])
        embeddings = self.model.embed(block.tokens)
        outputs = self.model.from_embeddings(embeddings, block)
        rows = [batch.rows for batch in batches]
        clean = Pass(self.model, block, embeddings, outputs, state, rows, place_of(batches))
        penalties = {name: self.terms[name].compute(clean) for name in names}
        return [
            self._parts(batch, output, {name: of[place] for name, of in penalties.items()})
            for place, (batch, output) in enumerate(zip(batches, outputs))
        ]

    def _parts(self, batch: Batch, output: HeadOutput, penalties: dict[str, Tensor]) -> Parts:
        if batch.place is not None and batch.task in self.of_batches:
            output, labels = self._of_whole_batch(output, batch.place), batch.place.labels
        else:
            labels = batch.labels
        loss = total = self.losses[batch.task](output, labels)
        for name, penalty in penalties.items():
            total = total + self.terms[name].weight * penalty
        return Parts(self.weighting(batch.task, total), loss, penalties)

    def _of_whole_batch(self, output: HeadOutput, place: Place) -> HeadOutput:
        """The outputs of all processes for a batch, with the gradient of this one's own rows.

        The loss of them all is the same in each process, and the processes' parts of it, each times its weight, add up
        to it; so must their gradients, and the gradient is divided by the weight. Numbers stay as they are.
        """
        scale = 1 / place.weight if place.weight else 0.0  # rows of weight 0 are others' rows, and leave no trace

        def whole(own: Tensor | None) -> Tensor | None:
            if own is None:
                return None
            counted = own.detach() if place.weight else torch.zeros_like(own)
            at = place.rows.to(own.device)
            values = self.model.runtime.processes.put_together(counted, at, place.count)
            return values.index_add(0, at, scale * (own - own.detach()))

        return HeadOutput(*map(whole, output))

    def groups(self, tasks: Sequence[str]) -> list[list[str]]:
        """The tasks of a step, those with the same regularizers together: one pass does for each group."""
        groups: dict[tuple[str, ...], list[str]] = {}
        for task in tasks:
            groups.setdefault(self._terms_of(task), []).append(task)
        return list(groups.values())

    def state_dict(self) -> dict[str, Any]:
        """All but the model: turns, what the weighting has learned, and what regularizers keep."""
        return {
            "turns": dict(self.turns),
            "weighting": self.weighting.state_dict(),
            "terms": {name: term.kept.state_dict() for name, term in self.terms.items() if term.kept is not None},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave."""
        self.turns.update(state["turns"])
        self.weighting.load_state_dict(state["weighting"])
        for name, of in state["terms"].items():
            self.terms[name].kept.load_state_dict(of)

    def _terms_of(self, task: str) -> tuple[str, ...]:
        turn = max(0, self.turns[task] - 1)
        return tuple(name for name, term in self.terms.items() if task in term.tasks and turn % term.every == 0)


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
        eps=options.eps,
        generator=generator(params.runtime.seed, "smart noise"),
    )

    def compute(of: Pass) -> Tensor:
        return smart(
            of.from_embeddings, (of.embeddings,), (of.mask,), of.outputs, of.divergence, of.place and (of.place,)
        )

    tasks = _tasks(options.tasks, params.trains)
    return Term(options.strength, tasks, compute, options.every, smart)


def bregman_term(params: Params, bregman: Bregman | None) -> Term | None:
    """The proximal penalty that `bregman` asks for, against the teacher that it holds; None if it is off."""
    if bregman is None:
        return None
    return Term(
        params.bregman.mu,
        _tasks(params.bregman.tasks, params.trains),
        lambda of: bregman(of.by(bregman.teacher.model), of.outputs, of.divergence),
        kept=bregman,
    )


def r_drop_term(params: Params) -> Term | None:
    """The penalty on disagreement between dropout masks that `r_drop` asks for; None if it is off."""
    if not params.r_drop.alpha:
        return None
    return Term(
        params.r_drop.alpha,
        _tasks(params.r_drop.tasks, params.trains),
        lambda of: r_drop(of.outputs, of.again(), of.divergence),
    )


def distill_term(params: Params, taught: Mapping[str, Tensor]) -> Term | None:
    """The distance from a teacher that `distill` asks for, see `training.teacher.taught`; None if it is off."""
    if not params.distill.weight:
        return None
    tasks = _tasks(params.distill.tasks, params.trains)
    return Term(params.distill.weight, tasks, lambda of: of.distance_from(taught))


def _tasks(chosen: Sequence[str] | None, trains: Sequence[str]) -> frozenset[str]:
    return frozenset(trains if chosen is None else chosen)
