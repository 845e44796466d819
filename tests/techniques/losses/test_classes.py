import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from bertrio.core.tasks import HeadOutput
from bertrio.techniques.losses import cross_entropy, dual_objective, ordinal_log_loss

LOSSES = [cross_entropy, dual_objective, ordinal_log_loss]
LABELS = torch.tensor([0, 4, 2, 2, 1, 3, 0])


@pytest.fixture
def logits() -> torch.Tensor:
    return 3 * torch.randn(7, 5, generator=torch.Generator().manual_seed(0))


def softmax(logits: torch.Tensor) -> np.ndarray:
    odds = np.exp(logits.numpy().astype(np.float64))
    return odds / odds.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_label_smoothing_equals_the_equation_and_torch(logits, smoothing):
    target = (1 - smoothing) * np.eye(5)[LABELS] + smoothing / 5
    by_hand = -(target * np.log(softmax(logits))).sum(axis=1).mean()
    loss = cross_entropy(HeadOutput(logits), LABELS, label_smoothing=smoothing)
    assert loss.item() == pytest.approx(by_hand, rel=1e-6)
    torch.testing.assert_close(loss, F.cross_entropy(logits, LABELS, label_smoothing=smoothing))


def test_dual_objective_equals_hand_algebra():
    def sigmoid(x):
        return 1 / (1 + math.exp(-x))

    by_hand = -(math.log(1 - sigmoid(2)) + math.log(sigmoid(-1)) + math.log(1 - sigmoid(0.5)))  # gold is class 1
    by_hand -= math.log(sigmoid(0)) + math.log(1 - sigmoid(3)) + math.log(1 - sigmoid(-4))  # gold is class 0
    logits = torch.tensor([[2.0, -1.0, 0.5], [0.0, 3.0, -4.0]])
    loss = dual_objective(HeadOutput(logits), torch.tensor([1, 0]))
    assert loss.item() == pytest.approx(by_hand / 2, rel=1e-6)


def test_dual_objective_summed_over_classes_is_c_times_its_mean(logits):
    summed, mean = (dual_objective(HeadOutput(logits), LABELS, reduction=how) for how in ("sum", "mean"))
    torch.testing.assert_close(summed, 5 * mean)


@pytest.mark.parametrize("options", [{}, {"alpha": 0.5}, {"alpha": 2.0}])
def test_ordinal_log_loss_equals_the_equation(logits, options):
    distance = np.abs(np.arange(5) - LABELS.numpy()[:, None]) ** options.get("alpha", 1.5)
    by_hand = -(np.log1p(-softmax(logits)) * distance).sum(axis=1).mean()
    assert ordinal_log_loss(HeadOutput(logits), LABELS, **options).item() == pytest.approx(by_hand, rel=1e-5)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("wrong", [1, 2])
def test_a_certain_wrong_answer_is_finite_and_its_gradient_points_away(loss, wrong):
    logits = torch.full((1, 3), -200.0)
    logits[0, wrong] = 200.0
    logits.requires_grad_()
    value = loss(HeadOutput(logits), torch.tensor([0]))
    value.backward()
    assert value.isfinite() and value > 100
    assert logits.grad.isfinite().all() and logits.grad[0, wrong] > 0


@pytest.mark.parametrize("loss", LOSSES)
def test_a_certain_right_answer_costs_nothing(loss):
    logits = torch.tensor([[-200.0, 200.0, -200.0]])
    assert loss(HeadOutput(logits), torch.tensor([1])).item() == 0.0


@pytest.mark.parametrize("loss", LOSSES)
def test_a_weight_multiplies_the_loss_of_each_row_with_its_label(logits, loss):
    weights = torch.tensor([0.5, 0.0, 2.0, 1.0, 3.0])
    rows = torch.stack([loss(HeadOutput(logits[[b]]), LABELS[[b]]) for b in range(7)])
    torch.testing.assert_close(loss(HeadOutput(logits), LABELS, weights=weights), (weights[LABELS] * rows).mean())
