"""An exponential moving average of a model's weights."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn


class MovingAverage:
    r"""A copy of a model whose weights follow those of the model slowly.

    .. math:: \tilde\theta \leftarrow \beta \tilde\theta + (1 - \beta) \theta

    with :math:`\tilde\theta = \theta` at the start. Tarvainen and Valpola 2017, "Mean teachers are better role
    models", section 2, eq. for :math:`\theta'_t`. Parameters that modules share are moved once; buffers are copied.

    `model` is the copy: it takes no gradient, and keeps the mode (training or evaluation) that the original had.

    Args:
        model: in float32 or wider: bf16 rounds the small moves of a slow average away.

    Raises:
        ValueError: if a parameter is narrower than float32.
    """

    def __init__(self, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            if parameter.dtype not in (torch.float32, torch.float64):
                raise ValueError(f"MovingAverage: parameters must be float32 or float64, {name} is {parameter.dtype}")
        self.model = copy.deepcopy(model).requires_grad_(False)
        for parameter in self.model.parameters():
            parameter.grad = None

    @torch.no_grad()
    def update(self, model: nn.Module, momentum: float) -> None:
        """Moves the average towards `model`, which has the layout of the original.

        Args:
            model: as it is after an update.
            momentum: beta, 0 (become the model) to 1 (stay).

        Raises:
            ValueError: if `momentum` is out of range or `model` has another layout.
        """
        if not 0 <= momentum <= 1:
            raise ValueError(f"MovingAverage: momentum must be from 0 to 1, got {momentum}")
        averaged, current = list(self.model.parameters()), list(model.parameters())
        if [x.shape for x in averaged] != [x.shape for x in current]:
            raise ValueError("MovingAverage: the model's parameters must be as they were when it was copied")
        torch._foreach_lerp_(averaged, current, 1 - momentum)  # as torch.optim.swa_utils does
        for buffer, now in zip(self.model.buffers(), model.buffers()):
            buffer.copy_(now)

    def state_dict(self) -> dict[str, Any]:
        """The averaged weights and buffers, by name."""
        return self.model.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave, for a model of the same layout."""
        self.model.load_state_dict(state)
