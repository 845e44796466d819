"""A training step's context with a small model in place of the encoder and heads."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
from torch import Tensor

from bertrio.techniques.regularizers.divergences import categorical


@dataclass
class Context:
    """One batch of one task: `model` maps embeddings [B, T, H] to outputs [B, size]."""

    model: Callable[[Tensor], Tensor]
    embeddings: Tensor
    mask: Tensor
    distance: Callable[[Tensor, Tensor], Tensor] = categorical
    positions: tuple[Tensor, int] | None = None
    passes: list[Tensor] = field(default_factory=list)  # embeddings of each pass but the clean one

    def __post_init__(self) -> None:
        self.outputs = [self.model(self.embeddings)]

    def divergence(self, outputs, others):
        return torch.stack([self.distance(*pair) for pair in zip(outputs, others)])

    def from_embeddings(self, embeddings):
        self.passes.append(embeddings.detach())
        return [self.model(embeddings)]

    def outputs_of(self, model):
        with torch.no_grad():
            return [model(self.embeddings)]

    with_new_dropout = outputs_of

    @property
    def noises(self):
        """The noise of each pass, in order."""
        return [noisy - self.embeddings.detach() for noisy in self.passes]


def setup_of(model=None, total_steps=10):
    """Return the setup that regularizers are built from."""
    draws = lambda name: torch.Generator().manual_seed(1)  # noqa: E731
    return SimpleNamespace(model=model, tasks=["sst"], total_steps=total_steps, generator=draws)
