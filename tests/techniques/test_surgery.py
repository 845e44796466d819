import itertools

import pytest
import torch
from torchjd import aggregation
from torchjd.linalg import QuadprogProjector

from bertrio.techniques.surgery import SURGERIES, TORCHJD, Surgery, cagrad, mgda, pcgrad

CONFLICTING = torch.tensor([[1.0, -0.4, -0.3], [-0.4, 2.0, -0.5], [-0.3, -0.5, 0.5]], dtype=torch.float64)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def gradients(tasks, seed, size=4):
    """Task gradients [K, size] whose norms differ by up to a factor of 10."""
    g = torch.randn(tasks, size, dtype=torch.float64, generator=generator(seed))
    return g * torch.logspace(0, -1, tasks, dtype=torch.float64)[:, None]


def gramian(tasks, seed):
    g = gradients(tasks, seed)
    return g @ g.T


def simplex(tasks, steps):
    """All weights [N, K] that are multiples of 1 / steps and sum to 1."""
    grid = itertools.product(range(steps + 1), repeat=tasks - 1)
    points = [(*point, steps - sum(point)) for point in grid if sum(point) <= steps]
    return torch.tensor(points, dtype=torch.float64) / steps


# PCGrad


def literal_pcgrad(g, orders):
    """Algorithm 1 of Yu et al. 2020 on the gradients themselves."""
    total = torch.zeros_like(g[0])
    for i, order in enumerate(orders):
        projected = g[i].clone()
        for j in order:
            if j != i and projected @ g[j] < 0:
                projected -= (projected @ g[j]) / (g[j] @ g[j]) * g[j]
        total += projected
    return total


@pytest.mark.parametrize("tasks", [2, 3, 4])
@pytest.mark.parametrize("seed", range(5))
def test_pcgrad_equals_its_algorithm_on_the_gradients(tasks, seed):
    g = gradients(tasks, seed)
    draws = generator(seed)
    orders = [torch.randperm(tasks, generator=draws).tolist() for _ in range(tasks)]
    weights = pcgrad(g @ g.T, generator(seed))
    torch.testing.assert_close(weights @ g, literal_pcgrad(g, orders), rtol=1e-12, atol=1e-12)


def test_pcgrad_draws_its_order_from_its_own_generator():
    state = torch.get_rng_state()
    runs = [[pcgrad(CONFLICTING, g).tolist() for _ in range(8)] for g in (generator(3), generator(3))]
    assert runs[0] == runs[1]
    assert len({tuple(weights) for weights in runs[0]}) > 1  # the order varies, and matters for three tasks
    assert torch.equal(torch.get_rng_state(), state)
    assert pcgrad(CONFLICTING.abs(), generator()).tolist() == [1.0, 1.0, 1.0], "the plain sum without conflicts"


# The others, on the scale of a sum: K times their papers' weights


@pytest.mark.parametrize("ratio", [1.0, 1e-4])
def test_mgda_meets_the_optimality_condition(ratio):
    """At the shortest vector d, g_k . d is |d|^2 for every task with a weight and no less for the others."""
    for seed in range(20):
        g = gradients(4, seed) * torch.tensor([1.0, 1.0, 1.0, ratio], dtype=torch.float64)[:, None]
        weights = mgda(g @ g.T, generator()) / 4
        d = weights @ g
        slack = (g @ d - d @ d) / (g.norm(dim=1) * g.norm(dim=1).min())
        assert slack.min() >= -1e-9 and (slack * (weights > 0)).abs().max() <= 1e-9


@pytest.mark.parametrize("method", ["upgrad", "dualproj", "cr_mogm"])
@pytest.mark.parametrize("tasks", [2, 3])
@pytest.mark.parametrize("ratio", [1.0, 1e-3])
def test_projections_conflict_with_no_task_even_of_small_gradients(method, tasks, ratio):
    for seed in range(10):
        g = gradients(tasks, seed) * torch.tensor([1.0] * (tasks - 1) + [ratio], dtype=torch.float64)[:, None]
        weights = Surgery(method, "sum", generator())(g @ g.T)
        direction = weights @ g
        along = (g @ direction) / (g.norm(dim=1) * direction.norm())
        assert along.min() >= -1e-4 and weights.min() >= 1 - 1e-6


@pytest.mark.parametrize("tasks", [2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_imtl_g_has_equal_projections_on_unit_gradients(tasks, seed):
    g = gradients(tasks, seed)
    weights = Surgery("imtl_g", "sum", generator())(g @ g.T)
    projections = (weights @ g) @ (g / g.norm(dim=1, keepdim=True)).T
    torch.testing.assert_close(projections, projections[:1].expand(tasks), rtol=1e-8, atol=1e-10)
    assert weights.sum().item() == pytest.approx(tasks)


@pytest.mark.parametrize("tasks", [2, 3])
def test_aligned_mtl_by_its_formula(tasks):
    """Senushkin et al. 2023, algorithm 1: the gradients' singular values all become the smallest of them."""
    g = gradients(tasks, 0)
    values, vectors = torch.linalg.eigh(g @ g.T)
    balance = values[0].sqrt() * vectors @ values.rsqrt().diag() @ vectors.T
    by_hand = tasks * balance @ torch.full((tasks,), 1 / tasks, dtype=torch.float64)
    torch.testing.assert_close(Surgery("aligned_mtl", "sum", generator())(g @ g.T), by_hand)


@pytest.mark.parametrize("c", [0.4, 0.5])
@pytest.mark.parametrize(("tasks", "steps"), [(2, 4000), (3, 200)])
@pytest.mark.parametrize("seed", range(4))
def test_cagrad_equals_brute_force_over_the_simplex(c, tasks, steps, seed):
    g = gradients(tasks, seed)
    mean = g.mean(dim=0)
    radius = c * mean.norm()
    grid = simplex(tasks, steps)
    objective = (grid @ g) @ mean + radius * (grid @ g).norm(dim=1)
    best = grid[objective.argmin()] @ g
    direction = cagrad(g @ g.T, generator(), c) @ g / tasks
    # CAGrad maximises the worst task's gain; by duality the maximum is the objective's minimum.
    assert (g @ direction).min().item() == pytest.approx(objective.min().item(), abs=2e-4)
    assert (direction - mean).norm().item() == pytest.approx(radius.item(), rel=1e-6)
    torch.testing.assert_close(direction, mean + radius * best / best.norm(), rtol=0, atol=0.02)


@pytest.mark.parametrize("tasks", [2, 3])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("method", ["dualproj", "fairgrad", "gradvac", "cr_mogm"])
def test_updates_match_the_aggregators_of_torchjd(method, tasks, seed):
    """Over three steps, on gradients with a mean square of 1, where both are on one scale."""
    exact = QuadprogProjector(reg_eps=1e-7)
    aggregator = {
        "dualproj": aggregation.DualProj(torch.ones(tasks, dtype=torch.float64), exact),
        "fairgrad": aggregation.FairGrad(alpha=2.0),
        "gradvac": aggregation.GradVac(beta=0.5),
        "cr_mogm": lambda g: smoothed(g @ g.T) @ g * tasks,
    }[method]
    smoothed = aggregation.CRMOGMWeighting(aggregation.UPGradWeighting(projector=exact), alpha=0.9)
    surgery, draws = Surgery(method, "sum", generator(7)), generator(7)
    for step in range(3):
        g = gradients(tasks, 10 * seed + step)
        g /= g.square().sum(dim=1).mean().sqrt()
        torch.manual_seed(int(torch.randint(2**62, (1,), generator=draws)))
        torch.testing.assert_close(surgery(g @ g.T) @ g, aggregator(g), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", TORCHJD)
def test_restored_state_continues_and_draws_from_its_own_generator(method):
    matrices, draws, state = [gramian(3, seed) for seed in range(4)], generator(2), torch.get_rng_state()
    surgery, later = (Surgery(method, "sum", draws) for _ in range(2))
    later.load_state_dict(surgery.state_dict())  # before the first step
    before = [surgery(matrix) for matrix in matrices[:2]]
    later.load_state_dict(surgery.state_dict())
    middle, after = draws.get_state(), [surgery(matrix) for matrix in matrices[2:]]
    draws.set_state(middle)
    assert all(map(torch.equal, after, [later(matrix) for matrix in matrices[2:]]))
    assert torch.equal(torch.get_rng_state(), state)
    assert method != "random" or (not torch.equal(*before) and before[0].sum().item() == pytest.approx(3))
    assert surgery(gramian(2, 0)).shape == (2,), "state is reset when a task drops out"


# All of them, as training uses them


@pytest.mark.parametrize("method", [method for method in SURGERIES if method != "random"])
def test_orthonormal_gradients_get_equal_weights(method):
    identity = torch.eye(3, dtype=torch.float64)
    total, mean = (Surgery(method, reduction, generator())(identity) for reduction in ("sum", "mean"))
    # CAGrad lengthens the mean gradient by its radius, here along itself: its weights are 1 + c.
    size = 1.4 if method == "cagrad" else 1.0
    torch.testing.assert_close(total, torch.full((3,), size, dtype=torch.float64), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mean, total / 3)


@pytest.mark.parametrize("method", SURGERIES)
@pytest.mark.parametrize(
    "g",
    [
        torch.zeros(3, 2),
        torch.tensor([[1.0, 2.0], [0.0, 0.0], [-1.0, 1.0]]),  # one task without a gradient
        torch.tensor([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]]),  # all the same
        torch.tensor([[1.0, 2.0], [-1.0, -2.0]]),  # opposite
        torch.tensor([[1e-12, 0.0], [-1e-12, 1e-12]]),
        torch.tensor([[1e8, 0.0], [-1.0, 1e-4]]),
    ],
)
def test_weights_are_finite_for_degenerate_gramians(method, g):
    g = g.double()
    for noise in (0.0, 1e-7):  # of inner products in float32: the Gramian may have a negative eigenvalue
        rounding = torch.randn(len(g), len(g), dtype=torch.float64, generator=generator()) * noise
        matrix = (g @ g.T) * (1 + rounding + rounding.T)
        weights = Surgery(method, "sum", generator())(matrix)
        assert weights.shape == (len(g),) and weights.dtype == torch.float64
        assert weights.isfinite().all()


@pytest.mark.parametrize("norm", [0.0, 1e-8])  # zero, and zero up to rounding
@pytest.mark.parametrize("method", SURGERIES)
def test_a_task_without_gradient_does_not_change_other_weights(method, norm):
    g = torch.cat([gradients(2, 1), norm * gradients(1, 2)])
    two, three = (Surgery(method, "sum", generator())(rows @ rows.T) for rows in (g[:2], g))
    torch.testing.assert_close(three, torch.cat([two, torch.ones(1)]))


@pytest.mark.parametrize("method", SURGERIES)
def test_weights_do_not_depend_on_a_common_scale(method):
    tiny, plain, huge = (Surgery(method, "sum", generator(5))(CONFLICTING * scale) for scale in (1e-10, 1, 1e10))
    torch.testing.assert_close(tiny, plain, rtol=1e-4, atol=0)
    torch.testing.assert_close(huge, plain, rtol=1e-4, atol=0)
