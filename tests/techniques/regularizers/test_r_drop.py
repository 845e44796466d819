import pytest
import torch
from torch.distributions import Categorical, kl_divergence

from bertrio.techniques.regularizers.divergences import categorical, squared
from bertrio.techniques.regularizers.r_drop import RDrop, RDropOptions
from tests.techniques.regularizers.contexts import Context, setup_of


def r_drop(outputs, second, divergence):
    context = Context(lambda x: x, outputs, None, divergence)
    context.again = lambda: second
    return RDrop(RDropOptions(alpha=1, tasks=None), setup_of())(context)


def test_equals_the_mean_of_the_two_divergences_in_float64():
    outputs, second = torch.randn(2, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).unbind()
    p, q = Categorical(logits=outputs), Categorical(logits=second)
    oracle = 0.5 * (kl_divergence(p, q) + kl_divergence(q, p)).mean()
    assert r_drop(outputs, second, categorical).item() == pytest.approx(oracle.item(), rel=1e-5)


def test_scores_have_half_their_squared_difference_and_both_passes_take_a_gradient():
    outputs, second = (torch.tensor(x, requires_grad=True) for x in ([[1.0], [4.0]], [[3.0], [5.0]]))
    penalty = r_drop(outputs, second, squared)
    assert penalty.item() == 0.5 * (4 + 1) / 2
    penalty.backward()
    assert (outputs.grad < 0).all() and (second.grad > 0).all()  # descent draws them together
