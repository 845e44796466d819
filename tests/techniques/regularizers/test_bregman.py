import copy

import pytest
import torch
from torch import nn

from bertrio.techniques.regularizers.bregman import Bregman
from bertrio.techniques.regularizers.divergences import DIVERGENCES, squared

SIZES = [("categorical", 5), ("bernoulli", 1), ("bernoulli", 2), ("squared", 1)]


def model_of(size):
    torch.manual_seed(size)
    return nn.ModuleDict({"encoder": nn.Linear(3, 4), "head": nn.Linear(4, size)})


def run(model, rows):
    return model["head"](model["encoder"](rows).tanh())


ROWS = torch.linspace(-1, 1, 12).view(4, 3)


def test_momentum_changes_after_the_first_tenth():
    bregman = Bregman(model_of(1), 0.99, 0.999, total_steps=30)
    assert [bregman.momentum_at(step) for step in (1, 2, 3, 4, 30)] == [0.99, 0.99, 0.99, 0.999, 0.999]
    constant = Bregman(model_of(1), 0.9, None, total_steps=30)
    assert {constant.momentum_at(step) for step in range(1, 31)} == {0.9}


def test_teacher_follows_the_recursion_by_hand_in_float64_heads_too():
    model = model_of(1)
    bregman = Bregman(model, 0.5, 0.9, total_steps=20)
    by_hand = {name: value.detach().double().clone() for name, value in model.named_parameters()}
    for step, beta in enumerate((0.5, 0.5, 0.9, 0.9), start=1):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        bregman.update(model, step)
        for name, value in model.named_parameters():
            by_hand[name] = beta * by_hand[name] + (1 - beta) * value.detach().double()
    assert {"encoder.weight", "head.weight"} <= set(by_hand)
    for name, averaged in bregman.teacher.model.named_parameters():
        torch.testing.assert_close(averaged.double(), by_hand[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "size"), SIZES)
def test_penalty_is_zero_while_equal_and_positive_after_a_move(name, size):
    model = model_of(size)
    bregman = Bregman(model, 0.99, None, total_steps=10)

    def penalty():
        return bregman(run(bregman.teacher.model, ROWS), run(model, ROWS), DIVERGENCES[name])

    assert penalty().item() == 0.0
    with torch.no_grad():
        model["head"].weight[-1] += 0.5
    assert penalty() > 0 and penalty().dtype == torch.float32
    bregman.update(model, 1)
    assert penalty() > 0  # the teacher moved by a hundredth of the way


@pytest.mark.parametrize(("name", "size"), SIZES)
def test_gradient_reaches_the_model_and_never_the_teacher(name, size):
    model, teacher_outputs = model_of(size), torch.randn(4, size, requires_grad=True)
    bregman = Bregman(model, 0.99, None, total_steps=10)
    bregman(teacher_outputs, run(model, ROWS), DIVERGENCES[name]).backward()
    assert teacher_outputs.grad is None
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())
    assert not run(bregman.teacher.model, ROWS).requires_grad


def test_gradient_by_hand_for_a_score():
    outputs, teacher_outputs = torch.tensor([[1.0], [4.0]], requires_grad=True), torch.tensor([[3.0], [5.0]])
    Bregman(model_of(1), 0.99, None, total_steps=10)(teacher_outputs, outputs, squared).backward()
    torch.testing.assert_close(outputs.grad, torch.tensor([[2 * (1.0 - 3) / 2], [2 * (4.0 - 5) / 2]]))


def test_saved_state_resumes_the_same_teacher():
    model = model_of(5)
    bregman = Bregman(model, 0.9, None, total_steps=10)
    with torch.no_grad():
        model["encoder"].weight.add_(1)
    bregman.update(model, 1)
    state = copy.deepcopy(bregman.state_dict())
    resumed = Bregman(model, 0.9, None, total_steps=10)
    assert not run(resumed.teacher.model, ROWS).equal(run(bregman.teacher.model, ROWS))
    resumed.load_state_dict(state)
    assert run(resumed.teacher.model, ROWS).equal(run(bregman.teacher.model, ROWS))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.1, None, 10), "momentum must be from 0 to 1, got 1.1"),
        ((0.9, -0.1, 10), "late_momentum must be from 0 to 1, got -0.1"),
        ((0.9, None, 0), "total_steps must be at least 1, got 0"),
    ],
)
def test_arguments_out_of_range_are_errors_that_say_so(arguments, message):
    with pytest.raises(ValueError, match=f"Bregman: {message}"):
        Bregman(model_of(1), *arguments)
