import pytest
import torch
from torch.distributions import Bernoulli, Categorical, kl_divergence

from bertrio.techniques.regularizers.divergences import DIVERGENCES

SIZES = [("categorical", 5), ("categorical", 2), ("bernoulli", 1), ("bernoulli", 2), ("bernoullis", 4), ("squared", 1)]


def pair(size, rows=7, scale=2.0):
    generator = torch.Generator().manual_seed(size)
    return (scale * torch.randn(2, rows, size, generator=generator, dtype=torch.float64)).unbind()


@pytest.mark.parametrize(("name", "size"), SIZES)
def test_divergences_of_bf16_outputs_are_float32_symmetric_positive_and_exactly_zero_for_equal_ones(name, size):
    outputs, others = (values.bfloat16() for values in pair(size))
    divergence = DIVERGENCES[name]
    assert divergence(outputs, others) == divergence(others, outputs) > 0
    assert divergence(outputs, others) == divergence(outputs.float(), others.float())
    assert divergence(outputs, outputs.clone()).item() == 0.0
    assert divergence(outputs, others).dtype == torch.float32


@pytest.mark.parametrize(("name", "size"), SIZES)
def test_extreme_outputs_give_finite_divergences_and_gradients(name, size):
    outputs = torch.full((2, size), -200.0)
    outputs[0, 0] = 200.0
    others = -outputs
    outputs.requires_grad_()
    divergence = DIVERGENCES[name](outputs, others)
    divergence.backward()
    assert divergence.isfinite() and divergence > 0 and outputs.grad.isfinite().all()


@pytest.mark.parametrize(("name", "size"), SIZES)
def test_values_are_those_of_float64_and_so_are_gradients_which_flow_to_both_sides(name, size):
    sides = [side.requires_grad_() for side in pair(size, rows=3)]

    def oracle(outputs, others):
        if name == "squared":
            return (outputs - others).square().mean()
        kind = Bernoulli if name == "bernoullis" or size == 1 else Categorical
        p, q = (kind(logits=x) for x in (outputs, others))
        return (kl_divergence(p, q) + kl_divergence(q, p)).sum() / 3

    assert DIVERGENCES[name](*sides).item() == pytest.approx(oracle(*sides).item(), rel=1e-5)
    expected = torch.autograd.grad(oracle(*sides), sides)
    found = torch.autograd.grad(DIVERGENCES[name](*sides), sides)
    for gradient, by_hand in zip(found, expected):
        assert by_hand.abs().sum() > 0
        torch.testing.assert_close(gradient, by_hand, rtol=1e-4, atol=1e-6)
