"""Heads: `(*pooled [B, H]) -> HeadOutput`, one a task."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn


class HeadOutput(NamedTuple):
    """A task's `outputs` [B, size], and the raw `cosine` [B] of heads that have one, for the losses that need it."""

    outputs: Tensor
    cosine: Tensor | None = None


class Linear(nn.Module):
    """Dropout, then one linear layer on the pooled vector of a single text or of a cross-encoded pair.

    Args:
        hidden_size: H.
        size: how many outputs the task's target has.
        dropout: rate on the pooled vector.
    """

    def __init__(self, hidden_size: int, size: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(hidden_size, size)

    def forward(self, pooled: Tensor) -> HeadOutput:
        return HeadOutput(self.output(self.dropout(pooled)))


HEADS = {"linear": Linear}
