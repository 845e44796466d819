"""Poolings: `(output of the transformer, attention mask [B, T]) -> pooled vectors [B, H]`.

To add one, write the function and add it to `POOLINGS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


def cls(output: Any, mask: Tensor) -> Tensor:
    """Return the hidden state of the first token."""
    return output.last_hidden_state[:, 0]


def mean(output: Any, mask: Tensor) -> Tensor:
    """Return the mean of the hidden states without padding, computed in float32."""
    weights = mask.unsqueeze(-1).float()
    return (output.last_hidden_state.float() * weights).sum(dim=1) / weights.sum(dim=1)


def pooler(output: Any, mask: Tensor) -> Tensor:
    """Return the output of the checkpoint's pooler: for BERT, a dense layer and tanh on the first token."""
    return output.pooler_output


Pooling = Callable[[Any, Tensor], Tensor]
POOLINGS: dict[str, Pooling] = {"cls": cls, "mean": mean, "pooler": pooler}
