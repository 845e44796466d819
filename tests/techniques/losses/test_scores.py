import numpy as np
import pytest
import torch
from scipy.stats import pearsonr

from bertrio.core.tasks import HeadOutput
from bertrio.techniques.losses import mse, pearson

LABELS = torch.tensor([0.0, 5.0, 3.2, 3.2, 1.4, 4.0])


@pytest.fixture
def scores() -> torch.Tensor:
    return 2.5 + 2 * torch.randn(6, 1, generator=torch.Generator().manual_seed(0))


def test_mse_equals_hand_algebra():
    output = HeadOutput(torch.tensor([[1.0], [4.0]]))
    assert mse(output, torch.tensor([3.0, 5.0]), low=0, high=5).item() == (4 + 1) / 2


def test_mse_on_the_unit_scale_is_that_of_both_sides_mapped_to_the_unit_range(scores):
    unit = mse(HeadOutput(scores), LABELS - 1, scale="unit", low=-1, high=4)
    mapped = HeadOutput((scores + 1) / 5)
    torch.testing.assert_close(unit, mse(mapped, LABELS / 5, low=0, high=1))
    torch.testing.assert_close(unit, mse(HeadOutput(scores), LABELS - 1, low=-1, high=4) / 25)


def test_pearson_is_one_minus_scipys_correlation(scores):
    r = pearsonr(scores.squeeze(1).double(), LABELS.double()).statistic
    assert pearson(HeadOutput(scores), LABELS).item() == pytest.approx(1 - r, rel=1e-5)


def test_the_gradient_of_pearson_equals_its_derivative_by_hand(scores):
    scores.requires_grad_()
    pearson(HeadOutput(scores), LABELS).backward()
    x, y = (side.detach().double().numpy().ravel() for side in (scores, LABELS))
    x, y = x - x.mean(), y - y.mean()
    r = x @ y / np.sqrt(x @ x * (y @ y))
    by_hand = r * x / (x @ x) - y / np.sqrt(x @ x * (y @ y))
    np.testing.assert_allclose(scores.grad.numpy().ravel(), by_hand, rtol=1e-4, atol=1e-7)


def test_pearson_is_invariant_to_rising_affine_maps_and_mirrored_by_falling_ones(scores):
    loss = pearson(HeadOutput(scores), LABELS)
    torch.testing.assert_close(pearson(HeadOutput(30 * scores - 7), LABELS), loss, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(pearson(HeadOutput(scores), 0.1 * LABELS + 4), loss, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(pearson(HeadOutput(1 - scores), LABELS), 2 - loss, rtol=1e-5, atol=1e-6)
    assert pearson(HeadOutput(2 * LABELS.unsqueeze(1) + 1), LABELS).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("scores", "labels"),
    [
        ([0.0, 0.0, 0.0], [1.0, 2.0, 3.0]),
        ([3.3] * 7, [1.0, 2.0, 3.0, 4.0, 5.0, 0.0, 0.0]),  # whose float32 mean is not 3.3
        ([1.0, 2.0, 3.0, 4.0, 5.0, 0.0, 0.0], [3.3] * 7),
        ([1.0, 2.0, 3.0], [3.3, 3.3, 3.3]),
        ([3.3] * 7, [3.3] * 7),
        ([2.0], [3.0]),
    ],
)
def test_without_variance_pearson_is_one_with_a_gradient_of_zero(scores, labels):
    outputs = torch.tensor(scores).unsqueeze(1).requires_grad_()
    loss = pearson(HeadOutput(outputs), torch.tensor(labels))
    loss.backward()
    assert loss.item() == 1.0
    assert torch.equal(outputs.grad, torch.zeros_like(outputs))


@pytest.mark.parametrize("loss", [lambda *rows: mse(*rows, low=0, high=5), pearson])
def test_extreme_scores_have_a_finite_gradient(loss):
    outputs = torch.tensor([[200.0], [-200.0], [200.0]], requires_grad=True)
    value = loss(HeadOutput(outputs), torch.tensor([0.0, 5.0, 2.0]))
    value.backward()
    assert value.isfinite() and outputs.grad.isfinite().all() and outputs.grad.any()
