"""A step's context with a small model in place of the encoder and heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
from torch import Tensor

from bertrio.techniques.regularizers.divergences import categorical


@dataclass
class Context:
    """One batch of one task: `model` makes outputs [B, size] of embeddings [B, T, H]."""

    model: Callable[[Tensor], Tensor]
    embeddings: Tensor
    mask: Tensor
    distance: Callable[[Tensor, Tensor], Tensor] = categorical
    positions: tuple[Tensor, int] | None = None
    passes: list[Tensor] = field(default_factory=list)  # embeddings of every pass beside the clean one

    def __post_init__(self) -> None:
        self.outputs = self.model(self.embeddings)

    def divergence(self, outputs, others):
        return self.distance(outputs, others)[None]

    def from_embeddings(self, embeddings):
        self.passes.append(embeddings.detach())
        return self.model(embeddings)

    def of_model(self, model):
        with torch.no_grad():
            return model(self.embeddings)

    again = of_model

    @property
    def noises(self):
        """The noise of every pass, the last one's last."""
        return [noisy - self.embeddings.detach() for noisy in self.passes]


def setup_of(model=None, **changes):
    """What regularizers are built from."""
    usual = {"model": model, "tasks": ["sst"], "total_steps": 10}
    return SimpleNamespace(**{**usual, "generator": lambda name: torch.Generator().manual_seed(1), **changes})
