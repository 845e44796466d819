"""Poolings: `(output of the transformer, attention mask [B, T]) -> one vector a text [B, H]`.

To add one, write the function and add it to `POOLINGS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


def cls(output: Any, mask: Tensor) -> Tensor:
    """The hidden state of the first token."""
    return output.last_hidden_state[:, 0]


def mean(output: Any, mask: Tensor) -> Tensor:
    """The mean of the hidden states, padding left out, summed in float32."""
    weights = mask.unsqueeze(-1).float()
    return (output.last_hidden_state.float() * weights).sum(dim=1) / weights.sum(dim=1)


def pooler(output: Any, mask: Tensor) -> Tensor:
    """The checkpoint's own pooler: for BERT, a dense layer and tanh over the first token."""
    return output.pooler_output


Pooling = Callable[[Any, Tensor], Tensor]
POOLINGS: dict[str, Pooling] = {"cls": cls, "mean": mean, "pooler": pooler}
