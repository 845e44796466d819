"""The encoder's gradients, task by task within one step: kept apart, compared, and put together again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import torch
from torch import Tensor, nn

# Terms of one dot product in float32. Over the 23 million of BERT's word embeddings a single one is off by 1e-4.
CHUNK = 1 << 20
CONFLICT_COLUMNS = ("step", "task_a", "task_b", "dot", "cosine", "norm_a", "norm_b")


class TaskGradients:
    """Keeps the gradients of some parameters apart by task, from each task's backward pass to the update.

    In a step, each task's loss runs backward and `take` follows at once. Then `gramian` says how the tasks'
    gradients lie to each other, and `put` leaves their weighted sum in `.grad`. Parameters that are not given here
    (heads, layers that only some tasks share) add up their gradients in place as ever and are never touched.
    No more is held than one set of gradients a task. A gradient may be sparse, rows of a matrix, as those of word
    embeddings are: rows that it does not hold are zero, and cost nothing. It is so for all tasks or for none.

    Args:
        parameters: those that the tasks share, each once.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self._store: dict[str, list[Tensor | None]] = {}

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks whose gradients are in store, in the order of `take`."""
        return tuple(self._store)

    def take(self, task: str) -> None:
        """Moves the gradients out of `.grad` into store as those of `task`, which comes once in a step."""
        self._store[task] = [parameter.grad for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None

    def gramian(self) -> Tensor:
        """Inner products of the tasks' gradients over all parameters: [K, K] float64 on the CPU, symmetric.

        A parameter without a gradient for a task counts as zero there. Products are taken in float32 (float64 where
        the gradients are) over up to 2^20 numbers at a time and added up in float64.
        """
        # The store keeps sparse gradients as they came, so that weights of 1 add them up as plain training does
        sets = [[_coalesced(gradient) for gradient in gradients] for gradients in self._store.values()]
        pairs = [(i, j) for i in range(len(sets)) for j in range(i + 1)]
        dots: dict[tuple[int, int], list[Tensor]] = {pair: [] for pair in pairs}
        for gradients in zip(*sets):  # parameter by parameter: all pairs while it is in the cache
            for i, j in pairs:
                if gradients[i] is not None and gradients[j] is not None:
                    dots[i, j] += _dots(gradients[i], gradients[j])
        gramian = torch.zeros(len(sets), len(sets), dtype=torch.float64)
        found = [dot for of in dots.values() for dot in of]
        if found:  # the host waits for the device once, not for each pair
            parts = torch.stack(found).cpu().double().split([len(of) for of in dots.values()])
            for (i, j), part in zip(dots, parts):
                gramian[i, j] = gramian[j, i] = part.sum()
        return gramian

    def put(self, weights: Tensor | Sequence[float]) -> None:
        """Sets `.grad` to the sum of the tasks' gradients times `weights` [K], and empties the store.

        A parameter that had a gradient from no task keeps None: the optimizer must not move or decay it. Weights of
        exactly 1 give the plain sum, added up in the order of `tasks`.
        """
        for weight, gradients in zip(torch.as_tensor(weights).tolist(), self._store.values(), strict=True):
            pairs = [(p, g) for p, g in zip(self.parameters, gradients) if g is not None]
            first = [(p, g) for p, g in pairs if p.grad is None]
            sparse = [(p, g) for p, g in pairs if p.grad is not None and p.grad.is_sparse]
            dense = [(p.grad, g) for p, g in pairs if p.grad is not None and not p.grad.is_sparse]
            scaled = [_numbers(g) for _, g in [*first, *sparse]]
            if weight != 1 and scaled:
                torch._foreach_mul_(scaled, weight)
            if dense:
                torch._foreach_add_([total for total, _ in dense], [g for _, g in dense], alpha=weight)
            for parameter, gradient in first:
                parameter.grad = gradient
            for parameter, gradient in sparse:
                assert parameter.grad is not None
                parameter.grad = parameter.grad + gradient
        self._store.clear()


def _coalesced(gradient: Tensor | None) -> Tensor | None:
    """A sparse gradient with each of its rows once, in order; any other as it is."""
    return gradient.coalesce() if gradient is not None and gradient.is_sparse else gradient


def _numbers(gradient: Tensor) -> Tensor:
    """What a gradient holds: its rows, if it is sparse."""
    return gradient._values() if gradient.is_sparse else gradient


def _dots(a: Tensor, b: Tensor) -> Iterator[Tensor]:
    """Scalars that add up to the inner product of two gradients of the same parameter."""
    if a.is_sparse:
        a, b = _shared_rows(a, b)
    dtype = torch.promote_types(a.dtype, torch.float32)
    pieces = (tensor.detach().reshape(-1).split(CHUNK) for tensor in (a, b))
    for left, right in zip(*pieces):
        yield left.to(dtype).dot(right.to(dtype))


def _shared_rows(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The rows that two sparse gradients have in common, [R, H] of each: the others meet zeros."""
    rows_a, rows_b = a.indices()[0], b.indices()[0]
    shared = rows_a[torch.isin(rows_a, rows_b, assume_unique=True)]
    return a.values()[torch.searchsorted(rows_a, shared)], b.values()[torch.searchsorted(rows_b, shared)]


def conflict_rows(step: int, tasks: Sequence[str], gramian: Tensor) -> list[dict[str, object]]:
    """What the Gramian [K, K] of one step says of each pair of tasks, as rows of a table.

    `cosine` is from -1 to 1, below 0 where two tasks conflict, and 0 where a gradient is zero; `dot`, `norm_a` and
    `norm_b` are those of the gradients as they are, after any weights on the losses.
    """
    norms = gramian.diagonal().sqrt().tolist()
    rows: list[dict[str, object]] = []
    for (i, task_a), (j, task_b) in combinations(enumerate(tasks), 2):
        dot, lengths = gramian[i, j].item(), norms[i] * norms[j]
        cosine = min(1.0, max(-1.0, dot / lengths)) if lengths else 0.0  # rounding may pass 1
        rows.append(dict(zip(CONFLICT_COLUMNS, (step, task_a, task_b, dot, cosine, norms[i], norms[j]))))
    return rows
