"""Update of the weights: combined gradients, clipping, AdamW and the learning-rate schedule."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from bertrio.config import OptimizerParams
from bertrio.core.distributed import Processes
from bertrio.techniques.gradients import TaskGradients, conflict_rows
from bertrio.techniques.surgery import Surgery
from bertrio.training.checkpoints import Stateful
from bertrio.training.monitoring import FiniteCheck

BETAS = (0.9, 0.999)  # of AdamW
# Norm behind the last layer, in the transformer: of RoBERTa-PreLayerNorm, EuroBERT, ModernBERT, XLM-RoBERTa-XL,
# Megatron-BERT and Reformer
FINAL_NORM = r"(transformer\.)?(LayerNorm|norm|final_norm|encoder\.(LayerNorm|ln|layer_norm))\.(weight|bias)"


def build_optimizer(
    model: nn.Module, params: OptimizerParams, lr: float, extra: Mapping[nn.Parameter, float] | None = None
) -> AdamW:
    """Build AdamW (Loshchilov and Hutter 2019) over the parameters that require a gradient.

    Biases and LayerNorm weights, the parameters with one dimension, have no weight decay.

    Args:
        model: the model to train. The learning rate of a layer is `lr` times `layer_decay` to the power of its depth
            below the heads, see `layers_below_heads`.
        params: the `optimizer` group.
        lr: peak learning rate.
        extra: parameters outside the model, such as loss weights, and their peak learning rates; they have no weight
            decay.
    """
    depths = layers_below_heads(model)
    groups: dict[tuple[int, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            depth = depths[name] if params.layer_decay < 1 else 0
            groups.setdefault((depth, parameter.ndim > 1), []).append(parameter)
    param_groups: list[dict[str, Any]] = [
        {"params": groups[key], "lr": lr * params.layer_decay ** key[0], "weight_decay": params.weight_decay * key[1]}
        for key in sorted(groups, key=lambda key: (key[0], not key[1]))
    ]
    rates = extra or {}
    for rate in dict.fromkeys(rates.values()):
        chosen = [parameter for parameter, own in rates.items() if own == rate]
        param_groups.append({"params": chosen, "lr": rate, "weight_decay": 0.0})
    fused = param_groups[0]["params"][0].device.type in ("cpu", "cuda")
    return AdamW(param_groups, lr=lr, betas=BETAS, eps=params.eps, fused=fused)


def layers_below_heads(model: nn.Module) -> dict[str, int]:
    """Return the depth of each parameter below the heads, by name.

    It is 0 for heads, pooler and a final norm (`FINAL_NORM`), 1 for the last layer, and L + 1 for all others, such as
    embeddings: the order of layer-wise learning-rate decay in Sun et al. 2019, "How to Fine-Tune BERT for Text
    Classification?", section 5.3.3. The layer is the first number in the parameter's name
    (`encoder.transformer.encoder.layer.3.`).

    Departs from the paper, whose last layer has the base rate: here heads have it, and the last layer has
    `layer_decay` times the base rate.

    A final norm with another name counts as an embedding. DeBERTa's `encoder.LayerNorm` is none: it normalizes the
    relative positions that feed all layers.
    """
    names = [name for name, _ in model.named_parameters()]
    numbers = {name: re.search(r"\.(\d+)\.", name) for name in names if name.startswith("encoder.")}
    layers = 1 + max((int(number[1]) for number in numbers.values() if number), default=-1)
    relative = any("rel_embeddings" in name for name in names)  # DeBERTa

    def depth(name: str) -> int:
        number = numbers.get(name)
        if number:
            return layers - int(number[1])
        final_norm = re.fullmatch(FINAL_NORM, name.removeprefix("encoder.")) and not relative
        on_top = not name.startswith("encoder.") or "pooler" in name or final_norm
        return 0 if on_top else layers + 1  # parameters outside of layers feed the first one

    return {name: depth(name) for name in names}


def lr_factor(step: int, total: int, warmup: int, params: OptimizerParams, epoch_ends: Sequence[int] = ()) -> float:
    """Return the learning rate at update `step` as a share of the peak.

    It rises linearly over the first `warmup` updates, from above 0: (step + 1) / (warmup + 1). Then, with t from 0 to
    1 over the remaining updates, it is 1 (`constant`), 1 - t (`linear`), (1 + cos(pi t)) / 2 (`cosine`, Loshchilov and
    Hutter 2017, without restarts), or gamma^floor(finished epochs / step_epochs) (`step`).

    Args:
        step: number of updates done, from 0 to `total`.
        total: number of updates.
        warmup: number of warm-up updates.
        params: the `optimizer` group.
        epoch_ends: number of updates up to the end of each epoch, rising.
    """
    if step < warmup:
        return (step + 1) / (warmup + 1)
    t = (step - warmup) / max(1, total - warmup)
    shapes = {
        "constant": lambda: 1.0,
        "linear": lambda: 1 - t,
        "cosine": lambda: (1 + math.cos(math.pi * t)) / 2,
        "step": lambda: params.gamma ** (bisect_right(epoch_ends, step) // params.step_epochs),
    }
    return shapes[params.lr_schedule]()


def clip_gradients(model: nn.Module, max_norm: float | None) -> Tensor:
    """Scale all gradients so that their joint 2-norm is at most `max_norm`.

    Of sparse gradients, the stored rows are measured and scaled.

    Args:
        model: the model whose gradients are clipped.
        max_norm: maximum norm, above 0; None does not clip.

    Returns:
        The norm before clipping, on the model's device; not finite if a gradient is not.
    """
    values = []
    for parameter in model.parameters():
        if _is_sparse(parameter.grad):
            parameter.grad = parameter.grad.coalesce()  # sums duplicate rows
            values.append(parameter.grad.values())
        elif parameter.grad is not None:
            values.append(parameter.grad)
    norm = torch.nn.utils.get_total_norm(values)
    if max_norm is not None:
        scale = max_norm / (norm + 1e-6)
        torch._foreach_mul_(values, scale.clamp(max=1.0))  # even if it is 1, since a check would wait for the GPU
    return norm


class RowGradients:
    """Dense copies of sparse gradients, in buffers that are reused and all zero between steps.

    AdamW updates and decays every row in every step, so it needs the zero rows too. Its update is exactly that for a
    dense gradient.
    """

    def __init__(self) -> None:
        self._dense: dict[nn.Parameter, Tensor] = {}

    @contextmanager
    def dense(self, parameters: Iterable[nn.Parameter]) -> Iterator[None]:
        """Context in which the sparse gradients of `parameters` are dense."""
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


def _is_sparse(gradient: Tensor | None) -> TypeGuard[Tensor]:
    return gradient is not None and gradient.is_sparse


class Combiner(Stateful):
    """Sum the gradients of a step's tasks, and of the processes that share the run.

    Attributes:
        separate: whether each task needs its own backward pass.
        conflicts: inner products of the tasks' gradients, one row per step and pair of tasks, if they are logged.
    """

    separate = False

    def __init__(self, parameters: Sequence[nn.Parameter], processes: Processes) -> None:
        self._parameters, self._processes = list(parameters), processes
        self.conflicts: list[dict[str, Any]] = []

    def begin(self, tasks: Sequence[str]) -> None:
        """Begin a step of these tasks, in whose order their gradients are combined."""

    def take(self, task: str) -> None:
        """Collect the gradients of a task after its backward pass."""

    def combine(self, step: int, finite: FiniteCheck) -> None:
        """Leave the combined gradients in `.grad`."""
        self._processes.all_reduce_gradients(self._parameters)


class GramianCombiner(Combiner):
    """Combine the tasks' gradients of shared parameters by surgery on their Gramian, and log conflicts.

    Args:
        parameters: all trained parameters; gradients of those not in `shared` are summed.
        processes: processes that share the run.
        shared: parameters of the encoder.
        surgery: function from the Gramian [K, K] to weights [K]; None sums the gradients. Its state is saved.
        generator: generator of surgery, saved in checkpoints.
        log_conflicts: append the inner products of every step to `conflicts`.
    """

    separate = True
    saved = ("_generator", "_surgery", "conflicts")

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        processes: Processes,
        shared: Sequence[nn.Parameter],
        surgery: Surgery | None,
        generator: torch.Generator,
        log_conflicts: bool,
    ) -> None:
        shared_ids = {id(parameter) for parameter in shared}
        super().__init__([parameter for parameter in parameters if id(parameter) not in shared_ids], processes)
        self._gradients, self._surgery, self._generator = TaskGradients(shared), surgery, generator
        self._log_conflicts = log_conflicts

    def begin(self, tasks: Sequence[str]) -> None:
        self._gradients.begin(tasks)

    def take(self, task: str) -> None:
        self._processes.all_reduce_gradients(self._gradients.parameters)
        self._gradients.take(task)

    def combine(self, step: int, finite: FiniteCheck) -> None:
        super().combine(step, finite)
        gramian, tasks = self._gradients.gramian(), self._gradients.tasks
        for task, square in zip(tasks, gramian.diagonal()):
            finite.add(f"the squared norm of the encoder's gradient of {task}", square, [task])
        finite.read()  # no further wait: the Gramian is on the CPU
        if self._log_conflicts:
            self.conflicts += conflict_rows(step, tasks, gramian)
        plain = torch.ones(len(tasks), dtype=gramian.dtype)
        self._gradients.put(plain if self._surgery is None else self._surgery(gramian))


def total_steps(plan: Sequence[Sequence[Any]], max_steps: int | None) -> int:
    """Return the number of updates of a plan, cut off at `max_steps`."""
    steps = sum(map(len, plan))
    return min(steps, max_steps or steps)


class Optimization(Stateful):
    """AdamW, its learning-rate schedule, and the maximum gradient norm of a run.

    Args:
        model: the model to train.
        params: the `optimizer` group.
        lr: peak learning rate.
        plan: the steps of each epoch.
        max_steps: maximum number of updates; the learning-rate schedule covers the actual number.
        extra: as in `build_optimizer`.
    """

    saved = ("optimizer", "lr_schedule")

    def __init__(
        self,
        model: nn.Module,
        params: OptimizerParams,
        lr: float,
        plan: Sequence[Sequence[Any]],
        max_steps: int | None = None,
        extra: Mapping[nn.Parameter, float] | None = None,
    ) -> None:
        ends = list(accumulate(len(epoch) for epoch in plan))
        self.total_steps = total_steps(plan, max_steps)
        self.max_grad_norm, self._model, self._rows = params.max_grad_norm, model, RowGradients()
        self._peak = lr
        self.optimizer = build_optimizer(model, params, lr, extra)
        warmup = round(params.warmup_fraction * self.total_steps)
        self.lr_schedule = LambdaLR(
            self.optimizer, lambda step: lr_factor(step, self.total_steps, warmup, params, ends)
        )

    def step(self) -> float:
        """Update the weights and clear the gradients; return the learning rate of this update, that of the heads."""
        lr: float = self._peak * self.lr_schedule.lr_lambdas[0](self.lr_schedule.last_epoch)
        with self._rows.dense(self._model.parameters()):
            self.optimizer.step()
        self.lr_schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
        return lr
