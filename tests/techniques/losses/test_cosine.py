import math

import pytest
import torch
from torch.nn import functional as F

from bertrio.core.tasks import HeadOutput
from bertrio.techniques.losses import cosent, cosine_embedding, cosine_mse

LABELS = torch.tensor([0.0, 5.0, 2.5, 2.0, 3.8, 2.0])
OUTPUTS = torch.full((6, 1), torch.nan)  # these losses read the cosine alone


@pytest.fixture
def vectors() -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0)).unbind())


def head(cosine) -> HeadOutput:
    return HeadOutput(OUTPUTS, torch.as_tensor(cosine))


def test_cosine_mse_equals_hand_algebra():
    by_hand = ((0.5 - 1.0) ** 2 + (-0.2 - 0.0) ** 2 + (0.9 - 0.4) ** 2) / 3
    loss = cosine_mse(head([0.5, -0.2, 0.9]), torch.tensor([4.0, -1.0, 1.0]), low=-1, high=4)
    assert loss.item() == pytest.approx(by_hand, rel=1e-6)


@pytest.mark.parametrize(("threshold", "margin"), [(None, 0.0), (2.0, 0.3), (5.0, -0.5), (4.0, 0.0)])
def test_cosine_embedding_equals_torchs_on_the_vectors(vectors, threshold, margin):
    cut = torch.where((2.5 if threshold is None else threshold) <= LABELS, 1, -1)
    torchs = F.cosine_embedding_loss(*vectors, cut, margin=margin)
    ours = cosine_embedding(
        head(F.cosine_similarity(*vectors)), LABELS, threshold=threshold, margin=margin, low=0, high=5
    )
    torch.testing.assert_close(ours, torchs)


@pytest.mark.parametrize("options", [{}, {"temperature": 0.1}])
def test_cosent_and_its_gradient_are_those_of_the_equation_in_float64(vectors, options):
    cosine = F.cosine_similarity(*vectors).requires_grad_()
    loss = cosent(head(cosine), LABELS, **options)
    loss.backward()
    exact = cosine.detach().double().requires_grad_()
    pairs = [(i, j) for i in range(6) for j in range(6) if LABELS[i] > LABELS[j]]
    by_hand = (1 + sum(((exact[j] - exact[i]) / options.get("temperature", 0.05)).exp() for i, j in pairs)).log()
    by_hand.backward()
    assert loss.item() == pytest.approx(by_hand.item(), rel=1e-5)
    torch.testing.assert_close(cosine.grad, exact.grad.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 3])
def test_cosent_without_ordered_rows_is_zero_with_a_gradient_of_zero(rows):
    cosine = torch.linspace(-1, 1, rows).requires_grad_()
    loss = cosent(head(cosine), torch.full((rows,), 2.0))
    loss.backward()
    assert loss.item() == 0.0 and cosine.grad.tolist() == [0.0] * rows


def test_cosent_stays_finite_at_a_temperature_that_overflows_the_exponential():
    cosine = torch.tensor([-1.0, 1.0], requires_grad=True)
    loss = cosent(head(cosine), torch.tensor([1.0, 0.0]), temperature=1e-3)
    loss.backward()
    assert loss.item() == pytest.approx(2000) and cosine.grad.isfinite().all()


@pytest.mark.parametrize(
    "loss",
    [
        lambda *rows: cosine_mse(*rows, low=0, high=5),
        lambda *rows: cosine_embedding(*rows, low=0, high=5),
        cosent,
    ],
)
def test_a_head_without_a_cosine_is_an_error_that_says_which_has_one(loss):
    with pytest.raises(ValueError, match="head cosine, for pairs with encoding bi, does"):
        loss(HeadOutput(torch.zeros(6, 1)), LABELS)


@pytest.mark.parametrize("threshold", [0.0, 5.1, math.nan])
def test_a_threshold_that_leaves_one_side_empty_is_an_error(threshold):
    with pytest.raises(ValueError, match="threshold: expected a label above 0 and at most 5"):
        cosine_embedding(head(torch.zeros(6)), LABELS, threshold=threshold, low=0, high=5)
