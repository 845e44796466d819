"""Gradients of the encoder by task: store them during a step, compare and combine them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import torch
from torch import Tensor, nn

# Terms of one product in float32: they stay in the cache, and its error is about 1e-7 of the product of the norms. A
# single one over BERT's 23 million word embeddings would have 1e-4.
CHUNK = 1 << 15
FEW = 6  # tasks up to which separate products are faster on a CPU than one product of matrices
CONFLICT_COLUMNS = ("step", "task_a", "task_b", "dot", "cosine", "norm_a", "norm_b")


class TaskGradients:
    """Gradients of shared parameters by task, from each task's backward pass to the update.

    In a step, call `take` after the backward pass of each task. Then `gramian` returns the inner products of the tasks'
    gradients, and `put` writes their weighted sum to `.grad`. Other parameters (heads, layers that only some tasks
    share) accumulate gradients as usual and are not touched. One set of gradients per task is in memory. The gradient
    of a parameter may be sparse, such as that of word embeddings, but then it must be sparse for all tasks: rows that
    it does not store are zero, and cost nothing.

    Args:
        parameters: parameters that the tasks share, each once.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self._store: dict[str, list[Tensor | None]] = {}

    @property
    def tasks(self) -> tuple[str, ...]:
        """Tasks whose gradients are stored, in the order of `take`."""
        return tuple(self._store)

    def begin(self, tasks: Sequence[str]) -> None:
        """Set the order of `tasks` for this step; without it, it is that of `take`."""
        self._store = {task: [] for task in tasks}

    def take(self, task: str) -> None:
        """Move the gradients from `.grad` to the store as those of `task`. Call once per task and step."""
        self._store[task] = [parameter.grad for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None

    def gramian(self) -> Tensor:
        """Return the inner products of the tasks' gradients over all parameters: [K, K] float64 on the CPU, symmetric.

        A missing gradient counts as zero. Products of up to 2^15 terms are computed in float32 (float64 for gradients
        in float64), those of many tasks as one product of matrices, and summed in float64.
        """
        # The store holds sparse gradients uncoalesced, so that weights of 1 sum them exactly as plain training does
        sets = [
            [gradient.coalesce() if gradient is not None and gradient.is_sparse else gradient for gradient in gradients]
            for gradients in self._store.values()
        ]
        parameters = [gradients for gradients in zip(*sets) if any(gradient is not None for gradient in gradients)]
        products = [product for gradients in parameters for product in _products(gradients)]
        if not products:
            return torch.zeros(len(sets), len(sets), dtype=torch.float64)
        lower = torch.stack(products).cpu().double().sum(dim=0).tril()  # one transfer: the host waits for the GPU once
        return lower + lower.tril(-1).T

    def put(self, weights: Tensor | Sequence[float]) -> None:
        """Set `.grad` to the sum of the tasks' gradients times `weights` [K], and clear the store.

        A parameter without a gradient from any task keeps None: the optimizer must not update or decay it. Weights of
        exactly 1 give the plain sum, in the order of `tasks`.
        """
        for weight, gradients in zip(torch.as_tensor(weights).tolist(), self._store.values(), strict=True):
            pairs = [(p, g) for p, g in zip(self.parameters, gradients) if g is not None]
            first = [(p, g) for p, g in pairs if p.grad is None]
            sparse = [(p, g) for p, g in pairs if p.grad is not None and p.grad.is_sparse]
            dense = [(p.grad, g) for p, g in pairs if p.grad is not None and not p.grad.is_sparse]
            scaled = [g._values() if g.is_sparse else g for _, g in [*first, *sparse]]
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


def _products(gradients: Sequence[Tensor | None]) -> Iterator[Tensor]:
    """Yield matrices [K, K] whose lower triangles sum to the products of the tasks' gradients of one parameter."""
    for pieces in zip(*[gradient.detach().reshape(-1).split(CHUNK) for gradient in _dense(gradients)]):
        rows = [piece.to(torch.promote_types(piece.dtype, torch.float32)) for piece in pieces]
        if len(rows) <= FEW and rows[0].is_cpu:
            zero = rows[0].new_zeros(())
            dots = [a.dot(b) if j <= i else zero for i, a in enumerate(rows) for j, b in enumerate(rows)]
            yield torch.stack(dots).view(len(rows), len(rows))
        else:
            matrix = torch.stack(rows)
            yield matrix @ matrix.T


def _dense(gradients: Sequence[Tensor | None]) -> list[Tensor]:
    """Return dense gradients of one shape, zero for None; of sparse ones, only the rows that any of them stores."""
    present = [gradient for gradient in gradients if gradient is not None]
    if not present[0].is_sparse:
        return [torch.zeros_like(present[0]) if gradient is None else gradient for gradient in gradients]
    rows = torch.cat([gradient.indices()[0] for gradient in present]).unique()
    dense = [present[0].values().new_zeros(len(rows), present[0].shape[1]) for _ in gradients]
    for values, gradient in zip(dense, gradients):
        if gradient is not None:
            values[torch.searchsorted(rows, gradient.indices()[0])] = gradient.values()
    return dense


def conflict_rows(step: int, tasks: Sequence[str], gramian: Tensor) -> list[dict[str, object]]:
    """Return the table rows of one step, one per pair of tasks, from the Gramian [K, K].

    `cosine` is from -1 to 1, below 0 if the tasks conflict, and 0 if a gradient is zero. `dot`, `norm_a` and `norm_b`
    are those of the gradients after any weighting of the losses.
    """
    norms = gramian.diagonal().sqrt().tolist()
    rows: list[dict[str, object]] = []
    for (i, task_a), (j, task_b) in combinations(enumerate(tasks), 2):
        dot, lengths = gramian[i, j].item(), norms[i] * norms[j]
        cosine = min(1.0, max(-1.0, dot / lengths)) if lengths else 0.0  # rounding may exceed 1
        rows.append(dict(zip(CONFLICT_COLUMNS, (step, task_a, task_b, dot, cosine, norms[i], norms[j]))))
    return rows
