"""AdamW with parameter groups, and the learning rate over the steps."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from bertrio.config import OptimizerParams


def build_optimizer(
    model: nn.Module, params: OptimizerParams, lr: float, extra: Iterable[nn.Parameter] = (), extra_lr: float = 0.0
) -> AdamW:
    """AdamW (Loshchilov and Hutter 2019) over the parameters that take a gradient.

    Biases and LayerNorm weights, which are the parameters with one dimension, get no weight decay.

    Args:
        model: what is trained; layers of its encoder learn at `lr` times `layer_decay` to the power of their depth
            below the heads, see `layers_below_heads`.
        params: the `optimizer` group.
        lr: the peak rate.
        extra: parameters beside the model, such as loss weights: no weight decay, peak rate `extra_lr`.
    """
    places = layers_below_heads(model)
    groups: dict[tuple[int, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            below = places[name] if params.layer_decay < 1 else 0
            groups.setdefault((below, parameter.ndim > 1), []).append(parameter)
    described = [
        {
            "params": of,
            "lr": lr * params.layer_decay**below,
            "weight_decay": params.weight_decay if decays else 0.0,
        }
        for (below, decays), of in sorted(groups.items(), key=lambda item: (item[0][0], not item[0][1]))
    ]
    beside = list(extra)
    if beside:
        described.append({"params": beside, "lr": extra_lr, "weight_decay": 0.0})
    fused = described[0]["params"][0].device.type in ("cpu", "cuda")
    return AdamW(described, lr=lr, betas=params.betas, eps=params.eps, fused=fused)


def layers_below_heads(model: nn.Module) -> dict[str, int]:
    """How far below the heads each parameter lies: 0 for heads, pooler and a last norm, 1 for the last layer, L + 1 for
    embeddings.

    This is the order of layer-wise rate decay in Sun et al. 2019, "How to Fine-Tune BERT for Text Classification?",
    section 5.3.3. A layer is told by the first number in the parameter's name (`encoder.transformer.encoder.layer.3.`).

    Returns:
        A number for each name in `model.named_parameters()`.
    """
    body = f"{getattr(model, 'base_model_prefix', 'encoder')}."  # what masked-language models call it
    names = [name for name, _ in model.named_parameters()]
    numbers = {name: re.search(r"\.(\d+)\.", name) for name in names if name.startswith(body)}
    layers = 1 + max((int(found[1]) for found in numbers.values() if found), default=-1)

    def below(name: str) -> int:
        if numbers.get(name):
            return layers - int(numbers[name][1])
        on_top = not name.startswith(body) or "pooler" in name or "final_norm" in name
        return 0 if on_top else layers + 1  # what has no layer of its own feeds all of them

    return {name: below(name) for name in names}


def lr_factor(step: int, total: int, warmup: int, params: OptimizerParams, epoch_ends: Sequence[int] = ()) -> float:
    """The share of the peak learning rate at update `step` (0 to total - 1).

    It rises linearly over the first `warmup` updates, the first of which already moves: (step + 1) / (warmup + 1).
    Then, with t going from 0 to 1 over the other updates, it is 1 (`constant`), 1 - t (`linear`), (1 + cos(pi t)) / 2
    (`cosine`, Loshchilov and Hutter 2017, without restarts), or gamma^floor(epochs gone / step_epochs) (`step`).

    Args:
        step: which update.
        total: how many there are.
        warmup: how many of them warm up.
        params: the `optimizer` group.
        epoch_ends: the number of updates after which each epoch ends, rising.
    """
    if step < warmup:
        return (step + 1) / (warmup + 1)
    gone = (step - warmup) / max(1, total - warmup)
    shapes = {
        "constant": lambda: 1.0,
        "linear": lambda: max(0.0, 1 - gone),
        "cosine": lambda: (1 + math.cos(math.pi * min(1.0, gone))) / 2,
        "step": lambda: params.gamma ** (bisect_right(epoch_ends, step) // params.step_epochs),
    }
    return shapes[params.lr_schedule]()


def build_lr_schedule(
    optimizer: AdamW, params: OptimizerParams, total: int, epoch_ends: Sequence[int] = ()
) -> LambdaLR:
    """The learning rate over `total` updates, to be stepped after each of them."""
    warmup = round(params.warmup_fraction * total)
    return LambdaLR(optimizer, lambda step: lr_factor(step, total, warmup, params, epoch_ends))


def optimizer_state(optimizer: AdamW) -> dict[str, Any]:
    """The checkpoint of an optimizer: the rates of the groups, and the moments of each parameter, by its number."""
    return {
        "rates": [group["lr"] for group in optimizer.param_groups],
        "parameters": {str(number): moments for number, moments in optimizer.state_dict()["state"].items()},
    }


def load_optimizer_state(optimizer: AdamW, state: dict[str, Any]) -> None:
    """Restores what `optimizer_state` gave of an optimizer that was built alike.

    A parameter that had no gradient yet has no moments either.
    """
    moments = {int(number): value for number, value in state["parameters"].items()}
    optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
    for group, rate in zip(optimizer.param_groups, state["rates"], strict=True):
        group["lr"] = rate


def clip_gradients(model: nn.Module, max_norm: float | None) -> Tensor:
    """Scales all gradients so that their joint 2-norm is at most `max_norm`; None leaves them.

    A sparse gradient is measured and scaled by the rows that it holds.

    Args:
        model: the one whose gradients these are.
        max_norm: above 0.

    Returns:
        The norm as it was before, on the model's device; not finite if one of the gradients is not.
    """
    numbers = []
    for parameter in model.parameters():
        if _is_sparse(parameter.grad):
            parameter.grad = parameter.grad.coalesce()  # a row that stands twice counts as its sum
            numbers.append(parameter.grad.values())
        elif parameter.grad is not None:
            numbers.append(parameter.grad)
    norm = torch.nn.utils.get_total_norm(numbers)
    if max_norm is not None:
        scale = max_norm / (norm + 1e-6)
        torch._foreach_mul_(numbers, scale.clamp(max=1.0))  # also where it is 1: asking would make a GPU's host wait
    return norm


class RowGradients:
    """Gives the optimizer dense gradients for sparse ones, in memory that is kept and all zero between the steps.

    AdamW moves and decays every row in every step, touched or not, so it must see the zeros; but nothing else needs
    to. What it does is exactly what it does with a dense gradient.
    """

    def __init__(self) -> None:
        self._dense: dict[nn.Parameter, Tensor] = {}

    @contextmanager
    def dense(self, parameters: Iterable[nn.Parameter]) -> Iterator[None]:
        """A context in which sparse gradients of `parameters` are dense."""
        rows = {parameter: parameter.grad.coalesce() for parameter in parameters if _is_sparse(parameter.grad)}
        for parameter, gradient in rows.items():
            if parameter not in self._dense:
                self._dense[parameter] = torch.zeros_like(parameter)
            parameter.grad = self._dense[parameter].index_copy_(0, gradient.indices()[0], gradient.values())
        try:
            yield
        finally:
            for parameter, gradient in rows.items():
                self._dense[parameter].index_fill_(0, gradient.indices()[0], 0.0)
                parameter.grad = gradient


def _is_sparse(gradient: Tensor | None) -> bool:
    return gradient is not None and gradient.is_sparse
