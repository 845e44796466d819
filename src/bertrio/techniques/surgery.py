"""Gradient surgery: weights of the tasks' gradients in one update, computed from their inner products.

All methods are linear in the task gradients: the combined gradient is sum_k w_k g_k, and the weights w depend only on
the Gramian [K, K] of inner products g_i . g_j. The papers use two scales: PCGrad's weights are those of a sum (all 1
without conflicts), the others' those of a mean (about 1 / K each). Here, all weights have the scale of a sum, so that a
method replaces the sum of the losses at the same learning rate; `Surgery` also offers the scale of a mean. To add a
method, write the function and add it to `METHODS`, or name a weighting of TorchJD in `TORCHJD`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from bertrio.core.options import Group, one_of

Method = Callable[[Tensor, torch.Generator], Tensor]
ROUNDING = 1e-6  # a norm below this share of the largest is rounding of float32 (1.2e-7 for each operation)


def pcgrad(gramian: Tensor, generator: torch.Generator) -> Tensor:
    r"""Projecting conflicting gradients (PCGrad): remove conflicting components of each gradient, and sum the results.

    For each task i, starting from g = g_i, for the other tasks j in random order, if g . g_j < 0:

    .. math:: g \leftarrow g - \frac{g \cdot g_j}{\lVert g_j \rVert^2} \, g_j

    Yu et al. 2020, "Gradient Surgery for Multi-Task Learning", Algorithm 1: g_j is task j's gradient before any
    projection, and the results are summed. Without a conflict every weight is exactly 1.

    Args:
        gramian: [K, K], float64, with no zero on the diagonal.
        generator: generator of the orders, one permutation of all tasks per task, which is skipped in its own.

    Returns:
        Weights [K], at least 1 each.
    """
    count = len(gramian)
    projected = torch.eye(count, dtype=gramian.dtype)  # row i: the projected g_i in terms of the original gradients
    for i in range(count):
        for j in torch.randperm(count, generator=generator).tolist():
            dot = projected[i] @ gramian[j]
            if j != i and dot < 0:
                projected[i, j] -= dot / gramian[j, j]
    return projected.sum(dim=0)


def mgda(gramian: Tensor, generator: torch.Generator) -> Tensor:
    r"""Shortest weighted mean of the gradients (MGDA), along which no task's loss rises.

    .. math:: w = K \operatorname{argmin}_{\alpha \ge 0, \, \sum \alpha = 1} \lVert \sum_k \alpha_k g_k \rVert^2

    Désidéri 2012, "Multiple-gradient descent algorithm (MGDA) for multiobjective optimization"; Sener and Koltun 2018,
    "Multi-Task Learning as Multi-Objective Optimization", Section 3. Small gradients get large weights.

    Args:
        gramian: [K, K], float64, with no zero on the diagonal.
        generator: not used.

    Returns:
        Weights [K], not below 0, summing to K.

    Departs from Sener and Koltun: they approach the minimum by Frank-Wolfe steps, which for more than two tasks of
    different norms remain far from it after hundreds of steps. Here it is the exact solution of a non-negative
    least-squares problem.
    """
    from scipy.optimize import nnls  # a slow import

    # Minimise |sum_k y_k g_k|^2 + (sum_k y_k - 1)^2 over y >= 0. For y = s alpha and |sum_k alpha_k g_k|^2 = q, the
    # best s leaves q / (1 + q), which rises with q: the solution is alpha = y / sum(y). Lengths are in units of the
    # shortest gradient, and the unknowns are y_k |g_k|, so that each column has a length of about 1.
    norms = gramian.diagonal().sqrt()
    values, vectors = torch.linalg.eigh(gramian / norms.outer(norms))
    unit_gradients = values.clamp(min=0).sqrt()[:, None] * vectors.T  # [K, K]: one column per gradient, in K dimensions
    shares = norms.min() / norms
    matrix = torch.cat([unit_gradients, shares[None]]).numpy()
    solution, _ = nnls(matrix, [0.0] * len(norms) + [1.0], maxiter=1000)
    y = torch.as_tensor(solution) * shares
    return len(y) * y / y.sum()


def upgrad(gramian: Tensor, generator: torch.Generator) -> Tensor:
    r"""Sum of the gradients' projections onto the directions along which no task's loss rises (UPGrad).

    .. math::

        \sum_k w_k g_k = \sum_i \pi(g_i), \quad
        \pi(g) = \operatorname{argmin}_{d: \, d \cdot g_j \ge 0 \, \forall j} \lVert d - g \rVert

    Quinton and Rey 2024, "Jacobian Descent For Multi-Objective Optimization", eq. 3 for the projection and
    Proposition 1 for its weights: the v that minimise v' G v with v >= e_i. Solved by TorchJD.

    Args:
        gramian: [K, K], float64, with no zero on the diagonal.
        generator: not used.

    Returns:
        Weights [K], at least 1 each except for rounding.

    Departs from TorchJD: the problem is stated in gradients of length 1 (x_k = v_k |g_k|, which changes nothing in
    exact arithmetic), so that the small constant that the solver adds to the diagonal does not dominate a task whose
    gradient is much smaller than the others'.
    """
    return _projected("UPGradWeighting", gramian)


def dualproj(gramian: Tensor, generator: torch.Generator) -> Tensor:
    """Sum of the gradients, projected onto the directions along which no task's loss rises.

    Lopez-Paz and Ranzato 2017, "Gradient Episodic Memory for Continual Learning", eq. 11. Arguments, weights and the
    departure from TorchJD are those of `upgrad`.
    """
    return _projected("DualProjWeighting", gramian)


def _projected(weighting: str, gramian: Tensor) -> Tensor:
    """Return the weights of a projection of TorchJD, stated in gradients of length 1."""
    from torchjd import aggregation
    from torchjd.linalg import QuadprogProjector

    norms = gramian.diagonal().sqrt()
    # 1e-5 is above the rounding errors of inner products in float32, which can make an eigenvalue negative
    solver = getattr(aggregation, weighting)(pref_vector=norms, projector=QuadprogProjector(reg_eps=1e-5))
    return solver(gramian / norms.outer(norms)) / norms


def cagrad(gramian: Tensor, generator: torch.Generator, c: float = 0.4) -> Tensor:
    r"""Mean gradient, moved towards the task that gains least by at most a share of its length (CAGrad).

    .. math::

        d = \operatorname{argmax}_d \min_i \, g_i \cdot d \quad \text{with} \quad
        \lVert d - g_0 \rVert \le c \lVert g_0 \rVert

        d = g_0 + \frac{\sqrt\phi}{\lVert g_\alpha \rVert} g_\alpha, \quad \alpha =
        \operatorname{argmin}_{\alpha \ge 0, \, \sum \alpha = 1} g_\alpha \cdot g_0 + \sqrt\phi \lVert g_\alpha \rVert

    with g_0 the mean of the gradients, g_alpha their mean weighted by alpha, and phi = c^2 |g_0|^2; K d is the
    update. Liu et al. 2021, "Conflict-Averse Gradient Descent for Multi-task Learning", Algorithm 1.
    The problem in alpha has K unknowns and is convex; it is solved by sequential quadratic programming, as in the
    authors' code.

    Args:
        gramian: [K, K], float64, with no zero on the diagonal.
        generator: not used.
        c: radius of the ball around the mean gradient as a share of its length, from 0 (plain sum) to below 1. The
            paper uses 0.4 and 0.5.

    Returns:
        Weights [K], at least 1 each.

    Departs from the authors' code: d is not divided by 1 + c^2, as in the paper. If g_alpha vanishes (a
    Pareto-stationary point), its length is taken as 1e-4 of the gradients' root mean square.
    """
    from scipy.optimize import minimize  # a slow import

    count = len(gramian)
    g = (gramian / gramian.diagonal().mean()).numpy()
    to_mean = g.mean(axis=1)  # [K]: g_k . g_0
    radius = c * max(to_mean.mean(), 0.0) ** 0.5

    def length(alpha: Any) -> Any:
        return max(alpha @ g @ alpha, 1e-8) ** 0.5

    solution = minimize(
        lambda alpha: alpha @ to_mean + radius * length(alpha),
        x0=[1 / count] * count,
        jac=lambda alpha: to_mean + radius * (g @ alpha) / length(alpha),
        method="SLSQP",
        bounds=[(0, 1)] * count,
        constraints={"type": "eq", "fun": lambda alpha: alpha.sum() - 1, "jac": lambda alpha: [1.0] * count},
        options={"ftol": 1e-12, "maxiter": 200},
    )
    return torch.as_tensor(1 + count * radius / length(solution.x) * solution.x)


class TorchJD:
    r"""Adapter of a weighting of `torchjd.aggregation`, by name, as a method with a state of its own.

    - `imtl_g`: the same projection of the update on every gradient,
      $g_i / \lVert g_i \rVert \cdot \sum_k w_k g_k$ equal for all i. Liu et al. 2021, "Towards Impartial Multi-task
      Learning", the gradient balance (IMTL-G); in the form of Quinton and Rey 2024, w proportional to the
      pseudo-inverse of G times the norms. The weights sum to K, and some may be below 0; all are 0 if no such weights
      exist (two opposite gradients).
    - `aligned_mtl`: sum of the nearest orthogonal gradients of equal length,
      $w = \sqrt{\lambda_{\min}} \, V \Lambda^{-1/2} V^\top \mathbf{1}$ with $G = V \Lambda V^\top$. Senushkin et al.
      2023, "Independent Component Alignment for Multi-Task Learning", Algorithm 1, with the smallest non-zero
      eigenvalue as the scale. The weights sum to K for orthogonal gradients of equal length, and to less the more the
      gradients align or differ in length.
    - `fairgrad`: $G w = w^{-1/\alpha}$, alpha-fairness of the tasks' gains, here with alpha = 2. Ban and Ji 2024, "Fair
      Resource Allocation in Multi-Task Learning", eq. 4.
    - `gradvac`: as PCGrad, but towards a cosine that is a moving average of the pair's past ones, not 0. Wang et al.
      2021, "Gradient Vaccine: Investigating and Improving Multi-task Optimization in Massively Multilingual Models",
      Algorithm 1; has a state.
    - `random`: softmax of normal draws. Lin et al. 2022, "Reasonable Effectiveness of Random Weighting: A Litmus Test
      for Multi-Task Learning", Section 3.
    - `cr_mogm`: moving average, $\lambda_k = 0.9 \lambda_{k-1} + 0.1 w$, of the weights w of `upgrad`. Zhou et al.
      2022, "On the Convergence of Stochastic Multi-Objective Gradient Manipulation and Beyond"; has a state.

    The Gramian is divided by the mean of its diagonal, which makes weights free of a common scale of the gradients;
    weights that sum to 1 for orthogonal gradients of equal length are multiplied by K. A state starts afresh in a step
    with another number of gradients. Other weightings of TorchJD need more than a Gramian and a number: the gradients
    of several batches (MoDo, SDMGrad), all gradients of the past (ExcessMTL), a primary task (PCD), or more than two
    gradients (Krum).
    """

    def __init__(self, name: str) -> None:
        from torchjd import aggregation

        build, self._of_mean = TORCHJD[name]
        self._weighting, self._count = build(aggregation), 0

    def __call__(self, gramian: Tensor, generator: torch.Generator) -> Tensor:
        """Return the weights [K] for a Gramian [K, K]; draws come from `generator`."""
        count = len(gramian)
        if count != self._count and hasattr(self._weighting, "reset"):
            self._weighting.reset()
        self._count = count
        with torch.random.fork_rng(devices=[]):  # it draws from the global generator
            torch.default_generator.manual_seed(int(torch.randint(2**62, (1,), generator=generator)))
            weights = self._weighting(gramian / gramian.diagonal().mean())
        return weights * count if self._of_mean else weights

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"count": self._count, "weighting": self._weighting.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        if state["count"]:
            self(torch.eye(state["count"], dtype=torch.float64), torch.Generator())  # makes the tensors to load into
            self._weighting.load_state_dict(state["weighting"])


# Constructors, given the module, and whether the weights have the scale of a mean
TORCHJD: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "imtl_g": (lambda jd: jd.IMTLGWeighting(), True),
    "aligned_mtl": (lambda jd: jd.AlignedMTLWeighting(), True),
    "fairgrad": (lambda jd: jd.FairGradWeighting(alpha=2.0), False),
    "gradvac": (lambda jd: jd.GradVacWeighting(), False),
    "random": (lambda jd: jd.RandomWeighting(), True),
    "cr_mogm": (lambda jd: jd.CRMOGMWeighting(lambda gramian: upgrad(gramian, torch.Generator())), False),
}
METHODS: dict[str, Method] = {
    "pcgrad": pcgrad,
    "mgda": mgda,
    "upgrad": upgrad,
    "cagrad": cagrad,
    "dualproj": dualproj,
}
SURGERIES = (*METHODS, *TORCHJD)


class SurgeryOptions(Group):
    """The block `surgery` of params.yaml."""

    method: Annotated[str, one_of(dict.fromkeys(("none", *SURGERIES)))]
    reduction: Literal["sum", "mean"]
    log_conflicts: bool


class Surgery:
    """Gradient surgery: from a Gramian [K, K] to the weights [K] of the gradients, both float64 on the CPU.

    A task with a zero gradient conflicts with none and is left out of the problem. This keeps the weights finite and,
    with MGDA, lets the other tasks train. Its own weight is that of the plain sum or mean, as is that of a single task
    in a step. A norm of at most `ROUNDING` times the largest counts as zero: the direction of such a gradient is noise.

    Args:
        method: a name in `SURGERIES`.
        reduction: `sum` for weights of about 1, to replace the sum of the losses; `mean` for about 1 / K, to replace
            their mean.
        generator: generator of methods that draw; the caller saves its state.
    """

    def __init__(self, method: str, reduction: Literal["sum", "mean"], generator: torch.Generator) -> None:
        self._method: Any = TorchJD(method) if method in TORCHJD else METHODS[method]
        self._reduction, self._generator = reduction, generator

    def __call__(self, gramian: Tensor) -> Tensor:
        """Return the weights [K] for a Gramian [K, K]."""
        weights = torch.ones(len(gramian), dtype=torch.float64)
        norms = gramian.diagonal().sqrt()
        live = norms > ROUNDING * norms.max()
        if live.sum() > 1:
            weights[live] = self._method(gramian[live][:, live], self._generator)
        return weights / len(gramian) if self._reduction == "mean" else weights

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the method for a checkpoint; empty for most."""
        return self._method.state_dict() if isinstance(self._method, TorchJD) else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        if state:
            self._method.load_state_dict(state)
