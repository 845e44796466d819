import math

import pytest
import torch

from bertrio.losses import LOSSES, bce, cross_entropy, mse


def test_cross_entropy_equals_hand_algebra():
    logits = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]).log()
    by_hand = -(math.log(0.3) + math.log(0.8)) / 2
    assert cross_entropy(logits, torch.tensor([1, 2])).item() == pytest.approx(by_hand, rel=1e-6)


def test_bce_equals_hand_algebra_and_stays_finite():
    logits = torch.tensor([[2.0], [-1.0]])
    by_hand = -(math.log(1 / (1 + math.exp(-2))) + math.log(1 - 1 / (1 + math.exp(1)))) / 2
    assert bce(logits, torch.tensor([1.0, 0.0])).item() == pytest.approx(by_hand, rel=1e-6)
    assert bce(torch.tensor([[-500.0]]), torch.tensor([1.0])).item() == 500.0


def test_mse_equals_hand_algebra():
    assert mse(torch.tensor([[1.0], [4.0]]), torch.tensor([3.0, 5.0])).item() == (4 + 1) / 2


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_float32_whatever_the_outputs_are(name):
    outputs = torch.ones(3, 5 if name == "cross_entropy" else 1, dtype=torch.bfloat16)
    labels = torch.tensor([0, 1, 1]) if name == "cross_entropy" else torch.tensor([0.0, 1.0, 1.0])
    assert LOSSES[name](outputs, labels).dtype == torch.float32
