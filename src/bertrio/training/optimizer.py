"""AdamW with parameter groups, and the learning rate over the steps."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from bertrio.params import OptimizerParams


def build_optimizer(model: nn.Module, params: OptimizerParams, lr: float) -> AdamW:
    """AdamW (Loshchilov and Hutter 2019) over the parameters that take a gradient.

    Biases and LayerNorm weights, which are the parameters with one dimension, get no weight decay.
    """
    live = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in live if p.ndim > 1], "weight_decay": params.weight_decay},
        {"params": [p for p in live if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=lr, betas=params.betas, eps=params.eps, fused=live[0].device.type in ("cpu", "cuda"))


def lr_factor(step: int, total: int, warmup: int, schedule: str) -> float:
    """The share of the peak learning rate at update `step` (0 to total - 1).

    It rises linearly over the first `warmup` updates, the first of which already moves: (step + 1) / (warmup + 1).
    Then it stays (`constant`) or falls linearly, to reach 0 just after the last update (`linear`).
    """
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return 1.0 if schedule == "constant" else max(0.0, (total - step) / (total - warmup))


def build_lr_schedule(optimizer: AdamW, params: OptimizerParams, total: int) -> LambdaLR:
    """The learning rate over `total` updates, to be stepped after each of them."""
    warmup = round(params.warmup_fraction * total)
    return LambdaLR(optimizer, lambda step: lr_factor(step, total, warmup, params.lr_schedule))


def clip_gradients(model: nn.Module, max_norm: float | None) -> None:
    """Scales all gradients so that their joint 2-norm is at most `max_norm`; None leaves them."""
    if max_norm is not None:
        torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], max_norm)
