"""Exponential moving average of a model's weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

Tensors = list[Tensor] | tuple[Tensor, ...]


def moving_average(model: nn.Module, momentum: Callable[[], float]) -> AveragedModel:
    r"""Return a copy of a model whose weights are a moving average of the model's, updated by `update_parameters`.

    .. math:: \tilde\theta \leftarrow \beta \tilde\theta + (1 - \beta) \theta

    with :math:`\tilde\theta = \theta` at the start. Tarvainen and Valpola 2017, "Mean teachers are better role
    models", section 2, eq. for :math:`\theta'_t`. Buffers are copied. `module` of the result is the copy; it
    requires no gradient and stays in the mode (training or evaluation) of the model.

    Args:
        model: a model in float32 or wider, since bf16 would round away the small changes of a slow average.
        momentum: function that returns beta of the next update.
    """

    def update(averages: Tensors, current: Tensors, count: Tensor | int) -> None:
        torch._foreach_lerp_(averages, current, 1 - momentum())  # as torch's get_ema_multi_avg_fn does

    average = AveragedModel(model, multi_avg_fn=update).requires_grad_(False)
    average.n_averaged.fill_(1)  # with 0, the first update would copy the model
    return average
