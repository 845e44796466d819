import pytest
import torch
from torch.distributions import Bernoulli, Categorical, kl_divergence
from torch.nn.functional import mse_loss

from bertrio.techniques.regularizers.distillation import teacher_divergence


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def test_classes_are_the_mean_kl_divergence_in_float64():
    outputs, teacher = torch.randn(2, 6, 5, dtype=torch.float64).unbind()
    oracle = kl_divergence(Categorical(logits=teacher), Categorical(logits=outputs)).mean()
    assert teacher_divergence("categorical", outputs, teacher.softmax(-1)).item() == pytest.approx(
        oracle.item(), rel=1e-5
    )


@pytest.mark.parametrize("columns", [1, 2])
def test_one_logit_and_two_are_the_mean_kl_divergence_of_yes_and_no(columns):
    outputs, yes = torch.randn(6, columns, dtype=torch.float64), torch.rand(6, dtype=torch.float64)
    logit = outputs[:, 1] - outputs[:, 0] if columns == 2 else outputs[:, 0]
    oracle = kl_divergence(Bernoulli(yes), Bernoulli(logits=logit)).mean()
    assert teacher_divergence("bernoulli", outputs, torch.stack((1 - yes, yes), 1)).item() == pytest.approx(
        oracle.item(), rel=1e-5
    )


def test_scores_are_the_mean_squared_error():
    outputs, teacher = torch.randn(2, 6, 1).unbind()
    assert teacher_divergence("squared", outputs, teacher).item() == pytest.approx(mse_loss(outputs, teacher).item())


def test_the_gradient_is_the_difference_of_the_distributions_and_sure_teachers_are_finite():
    outputs, teacher = torch.randn(4, 3, requires_grad=True), torch.eye(3)[[0, 2, 1, 1]]
    value = teacher_divergence("categorical", outputs, teacher)
    value.backward()
    torch.testing.assert_close(outputs.grad, (outputs.softmax(-1) - teacher).detach() / 4)
    torch.testing.assert_close(value, torch.nn.functional.cross_entropy(outputs, torch.tensor([0, 2, 1, 1])))


def test_it_is_float32_whatever_goes_in():
    assert (
        teacher_divergence("categorical", torch.randn(2, 3, dtype=torch.bfloat16), torch.full((2, 3), 1 / 3)).dtype
        == torch.float32
    )
