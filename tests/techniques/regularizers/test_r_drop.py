import pytest
import torch
from torch.distributions import Categorical, kl_divergence

from bertrio.techniques.regularizers.divergences import bernoulli, categorical, squared
from bertrio.techniques.regularizers.r_drop import r_drop


def test_equals_the_mean_of_the_two_divergences_in_float64():
    torch.manual_seed(0)
    outputs, second = torch.randn(2, 6, 5, dtype=torch.float64).unbind()
    p, q = Categorical(logits=outputs), Categorical(logits=second)
    oracle = 0.5 * (kl_divergence(p, q) + kl_divergence(q, p)).mean()
    assert r_drop(outputs, second, categorical).item() == pytest.approx(oracle.item(), rel=1e-5)


def test_scores_have_half_their_squared_difference():
    assert r_drop(torch.tensor([[1.0], [4.0]]), torch.tensor([[3.0], [5.0]]), squared).item() == 0.5 * (4 + 1) / 2


@pytest.mark.parametrize("divergence", [bernoulli, squared])
def test_equal_passes_cost_nothing_and_both_take_a_gradient(divergence):
    outputs, second = torch.tensor([[1.0]], requires_grad=True), torch.tensor([[2.0]], requires_grad=True)
    assert r_drop(outputs, outputs, divergence).item() == 0.0
    r_drop(outputs, second, divergence).backward()
    assert outputs.grad < 0 < second.grad  # descent draws them together
