import pytest
import torch
from torch.distributions import Bernoulli, Categorical, kl_divergence
from torch.nn.functional import mse_loss

from bertrio.techniques.regularizers.distillation import teacher_divergence

ORACLES = {
    ("categorical", 5): lambda outputs, t: kl_divergence(Categorical(t), Categorical(logits=outputs)).mean(),
    ("bernoulli", 2): lambda outputs, t: kl_divergence(Categorical(t), Categorical(logits=outputs)).mean(),
    ("bernoulli", 1): lambda outputs, t: kl_divergence(Bernoulli(t[:, 1]), Bernoulli(logits=outputs[:, 0])).mean(),
    ("squared", 1): mse_loss,
}


@pytest.mark.parametrize(("name", "size"), ORACLES)
def test_value_and_gradient_are_those_of_the_divergence_in_float64(name, size):
    outputs, teacher = torch.randn(2, 6, max(2, size), generator=torch.Generator().manual_seed(0)).double().unbind()
    outputs = outputs[:, :size].requires_grad_()
    teacher = teacher[:, :1] if name == "squared" else teacher.softmax(-1)
    found, expected = teacher_divergence(name, outputs, teacher), ORACLES[name, size](outputs, teacher)
    assert found.dtype == torch.float32 and found.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(
        *(torch.autograd.grad(value, outputs)[0] for value in (found, expected)), rtol=1e-4, atol=1e-6
    )


def test_sure_teachers_are_finite():
    outputs, labels = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    found = teacher_divergence("categorical", outputs, torch.eye(3)[labels])
    torch.testing.assert_close(found, torch.nn.functional.cross_entropy(outputs, labels))
