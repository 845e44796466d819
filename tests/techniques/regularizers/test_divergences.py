import pytest
import torch
from torch.distributions import Bernoulli, Categorical, kl_divergence

from bertrio.techniques.regularizers.divergences import DIVERGENCES

SIZES = [("categorical", 5), ("categorical", 2), ("bernoulli", 1), ("bernoulli", 2), ("bernoullis", 4), ("squared", 1)]


def pair(size, rows=7, scale=2.0):
    generator = torch.Generator().manual_seed(size)
    return (scale * torch.randn(2, rows, size, generator=generator, dtype=torch.float64)).unbind()


@pytest.mark.parametrize(("name", "size"), SIZES)
def test_bf16_outputs_give_symmetric_float32_divergences(name, size):
    outputs, others = (values.bfloat16() for values in pair(size))
    divergence = DIVERGENCES[name]
    assert divergence(outputs, others) == divergence(others, outputs) > 0
    assert divergence(outputs, others) == divergence(outputs.float(), others.float())
    assert divergence(outputs, outputs.clone()).item() == 0.0
    assert divergence(outputs, others).dtype == torch.float32


@pytest.mark.parametrize(("name", "size"), SIZES)
def test_extreme_outputs_have_finite_divergences_and_gradients(name, size):
    outputs = torch.full((2, size), -200.0)
    outputs[0, 0] = 200.0
    others = -outputs
    outputs.requires_grad_()
    divergence = DIVERGENCES[name](outputs, others)
    divergence.backward()
    assert divergence.isfinite() and divergence > 0 and outputs.grad.isfinite().all()


@pytest.mark.parametrize(("name", "size"), SIZES)
def test_values_and_gradients_of_both_sides_match_torch_distributions(name, size):
    sides = [side.requires_grad_() for side in pair(size, rows=3)]

    def oracle(outputs, others):
        if name == "squared":
            return (outputs - others).square().mean()
        kind = Bernoulli if name == "bernoullis" or size == 1 else Categorical
        p, q = (kind(logits=x) for x in (outputs, others))
        return (kl_divergence(p, q) + kl_divergence(q, p)).sum() / 3

    assert DIVERGENCES[name](*sides).item() == pytest.approx(oracle(*sides).item(), rel=1e-5)
    expected = torch.autograd.grad(oracle(*sides), sides)
    assert all(gradient.abs().sum() > 0 for gradient in expected)
    gradients = torch.autograd.grad(DIVERGENCES[name](*sides), sides)
    torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-6)
