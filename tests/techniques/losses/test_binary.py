import math

import pytest
import torch

from bertrio.core.tasks import HeadOutput
from bertrio.techniques.losses import bce, siamese_softmax

LABELS = torch.tensor([1.0, 0.0, 0.0, 1.0])


def test_bce_equals_hand_algebra():
    logits = torch.tensor([[2.0], [-1.0]])
    by_hand = -(math.log(1 / (1 + math.exp(-2))) + math.log(1 - 1 / (1 + math.exp(1)))) / 2
    assert bce(HeadOutput(logits), torch.tensor([1.0, 0.0])).item() == pytest.approx(by_hand, rel=1e-6)


@pytest.mark.parametrize("weights", [None, torch.tensor([0.5, 3.0])])
def test_siamese_softmax_is_bce_of_the_difference_of_its_logits(weights):
    logits = 3 * torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    difference = logits[:, 1:] - logits[:, :1]
    torch.testing.assert_close(
        siamese_softmax(HeadOutput(logits), LABELS, weights=weights),
        bce(HeadOutput(difference), LABELS, weights=weights),
    )


def test_weights_multiply_the_rows_of_no_and_of_yes():
    logits = torch.tensor([[0.5], [-1.0], [2.0], [0.0]])
    no, yes = (bce(HeadOutput(logits[rows]), LABELS[rows]) for rows in (LABELS == 0, LABELS == 1))
    loss = bce(HeadOutput(logits), LABELS, weights=torch.tensor([0.5, 3.0]))
    torch.testing.assert_close(loss, (0.5 * no + 3 * yes) / 2)


@pytest.mark.parametrize(("loss", "size", "cost"), [(bce, 1, 200.0), (siamese_softmax, 2, 400.0)])
def test_a_certain_wrong_answer_is_finite_and_its_gradient_points_away(loss, size, cost):
    logits = torch.full((2, size), 200.0)
    logits[0] *= -1
    logits[:, 0] *= -1 if size == 2 else 1
    logits.requires_grad_()
    value = loss(HeadOutput(logits), torch.tensor([1.0, 0.0]))
    value.backward()
    assert value.item() == cost
    assert logits.grad.isfinite().all() and logits.grad[0, -1] < 0 < logits.grad[1, -1]
