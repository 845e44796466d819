import pytest
import torch
from torch import nn

from bertrio.techniques.regularizers.bregman import Bregman, BregmanOptions
from bertrio.techniques.regularizers.divergences import DIVERGENCES
from tests.techniques.regularizers.contexts import Context, setup_of

ROWS = torch.linspace(-1, 1, 12).view(4, 3)


def model_of(size):
    torch.manual_seed(size)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, size))


def bregman_of(model, momentum=0.99, late=None, total=10):
    options = BregmanOptions(mu=1, tasks=None, momentum=momentum, late_momentum=late)
    return Bregman(options, setup_of(model, total_steps=total))


@pytest.mark.parametrize("late", [None, 0.9])
def test_teacher_average_and_late_momentum_by_hand(late):
    model = model_of(1)
    bregman = bregman_of(model, 0.5, late, total=20)
    by_hand = [value.detach().double().clone() for value in model.parameters()]
    for step, beta in enumerate((0.5, 0.5, late or 0.5, late or 0.5), start=1):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        bregman.after_step(model, step)
        by_hand = [beta * x + (1 - beta) * value.detach().double() for x, value in zip(by_hand, model.parameters())]
    for averaged, expected in zip(bregman.teacher.module.parameters(), by_hand):
        torch.testing.assert_close(averaged.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "size"), [("categorical", 5), ("bernoulli", 1), ("bernoulli", 2), ("squared", 1)])
def test_penalty_is_zero_at_the_teacher_and_trains_the_model_alone(name, size):
    model = model_of(size)
    bregman = bregman_of(model)
    assert bregman(Context(model, ROWS, None, DIVERGENCES[name])).item() == 0.0
    with torch.no_grad():
        model[-1].weight[-1] += 0.5
    penalty = bregman(Context(model, ROWS, None, DIVERGENCES[name]))
    assert penalty > 0 and penalty.dtype == torch.float32
    penalty.backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())
    assert not any(p.requires_grad or p.grad is not None for p in bregman.teacher.module.parameters())
