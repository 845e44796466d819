"""From gradients to an update: combining those of tasks, clipping, AdamW, and the learning rate over the steps."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from bertrio.training.callbacks import FiniteCheck
from bertrio.training.checkpoints import Part

BETAS = (0.9, 0.999)  # of AdamW


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
    described: list[dict[str, Any]] = [
        {"params": groups[key], "lr": lr * params.layer_decay ** key[0], "weight_decay": params.weight_decay * key[1]}
        for key in sorted(groups, key=lambda key: (key[0], not key[1]))
    ]
    if beside := list(extra):
        described.append({"params": beside, "lr": extra_lr, "weight_decay": 0.0})
    fused = described[0]["params"][0].device.type in ("cpu", "cuda")
    return AdamW(described, lr=lr, betas=BETAS, eps=params.eps, fused=fused)


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
        found = numbers.get(name)
        if found:
            return layers - int(found[1])
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


def _is_sparse(gradient: Tensor | None) -> TypeGuard[Tensor]:
    return gradient is not None and gradient.is_sparse


class Combiner(Part):
    """Add up the gradients of a step's tasks, and of the processes that share the run.

    Attributes:
        separate: whether each task needs a pass of its own.
        conflicts: inner products of the tasks' gradients, a row a step and pair of tasks, if they are logged.
    """

    separate = False

    def __init__(self, parameters: Sequence[nn.Parameter], processes: Processes) -> None:
        self._parameters, self._processes = list(parameters), processes
        self.conflicts: list[dict[str, Any]] = []

    def take(self, tasks: Sequence[str]) -> None:
        """Take the gradients of a backward pass of these tasks."""

    def combine(self, step: int, finite: FiniteCheck) -> None:
        """Leave the combined gradients in `.grad`."""
        self._processes.all_reduce_gradients(self._parameters)


class GramianCombiner(Combiner):
    """Combine the gradients that tasks have for shared parameters by surgery on their Gramian, and log conflicts.

    Args:
        parameters: all that train; gradients of those beside `shared` are added up.
        processes: that share the run.
        shared: the encoder's.
        surgery: `gramian [K, K] -> weights [K]`; None takes the sum.
        generator: that surgery draws from.
        log_conflicts: keep the gradients' inner products of every step, in `conflicts`.
    """

    separate = True
    saved = ("_generator", "conflicts")

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        processes: Processes,
        shared: Sequence[nn.Parameter],
        surgery: Callable[[Tensor], Tensor] | None,
        generator: torch.Generator,
        log_conflicts: bool,
    ) -> None:
        apart = {id(parameter) for parameter in shared}
        super().__init__([parameter for parameter in parameters if id(parameter) not in apart], processes)
        self._gradients, self._surgery, self._generator = TaskGradients(shared), surgery, generator
        self._log_conflicts = log_conflicts

    def take(self, tasks: Sequence[str]) -> None:
        (task,) = tasks
        self._processes.all_reduce_gradients(self._gradients.parameters)
        self._gradients.take(task)

    def combine(self, step: int, finite: FiniteCheck) -> None:
        super().combine(step, finite)
        gramian, tasks = self._gradients.gramian(), self._gradients.tasks
        for task, square in zip(tasks, gramian.diagonal()):
            finite.add(f"the squared norm of the encoder's gradient of {task}", square, [task])
        finite.read()  # costs no wait: the Gramian is on the CPU
        if self._log_conflicts:
            self.conflicts += conflict_rows(step, tasks, gramian)
        plain = torch.ones(len(tasks), dtype=gramian.dtype)
        self._gradients.put(plain if self._surgery is None else self._surgery(gramian))


class Optimization(Part):
    """The updates of a run: AdamW, its learning rate, and the norm that gradients are clipped to before.

    Args:
        model: what is trained.
        params: the `optimizer` group.
        lr: the peak learning rate.
        plan: the steps of each epoch.
        max_steps: stop after so many updates; the learning rate is laid out over what is left.
        extra, extra_lr: as `build_optimizer`.
    """

    saved = ("optimizer", "lr_schedule")

    def __init__(
        self,
        model: nn.Module,
        params: OptimizerParams,
        lr: float,
        plan: Sequence[Sequence[Any]],
        max_steps: int | None = None,
        extra: Iterable[nn.Parameter] = (),
        extra_lr: float = 0.0,
    ) -> None:
        ends = list(accumulate(len(epoch) for epoch in plan))
        self.total_steps = min(ends[-1], max_steps or ends[-1])
        self.max_grad_norm, self._model, self._rows = params.max_grad_norm, model, RowGradients()
        self.optimizer = build_optimizer(model, params, lr, extra, extra_lr)
        warmup = round(params.warmup_fraction * self.total_steps)
        self.lr_schedule = LambdaLR(
            self.optimizer, lambda step: lr_factor(step, self.total_steps, warmup, params, ends)
        )
        self.last_lr = 0.0

    def step(self) -> None:
        """Move the weights by their gradients, which are then gone."""
        self.last_lr = self.optimizer.param_groups[0]["lr"]
        with self._rows.dense(self._model.parameters()):
            self.optimizer.step()
        self.lr_schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
