import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from bertrio.techniques.regularizers.moving_average import MovingAverage


def model_of(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def shake(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))


def test_average_follows_the_recursion_by_hand_in_float64():
    model = model_of()
    average = MovingAverage(model)
    by_hand = [parameter.detach().double().clone() for parameter in model.parameters()]
    for momentum in (0.9, 0.5, 0.99):
        shake(model)
        average.update(model, momentum)
        by_hand = [momentum * x + (1 - momentum) * now.detach().double() for x, now in zip(by_hand, model.parameters())]
    for averaged, expected in zip(average.model.parameters(), by_hand):
        torch.testing.assert_close(averaged.double(), expected, rtol=1e-5, atol=1e-6)


def test_average_equals_torchs_own():
    model = model_of()
    ours = MovingAverage(model)
    theirs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=False)
    theirs.update_parameters(model)  # its first update copies
    for _ in range(3):
        shake(model)
        ours.update(model, 0.9)
        theirs.update_parameters(model)
    torch.testing.assert_close(list(ours.model.parameters()), list(theirs.module.parameters()))


def test_momentum_one_stays_and_zero_follows():
    model = model_of()
    start = copy.deepcopy(model)
    average = MovingAverage(model)
    shake(model)
    average.update(model, 1.0)
    assert all(x.equal(y) for x, y in zip(average.model.parameters(), start.parameters()))
    average.update(model, 0.0)
    assert all(x.equal(y) for x, y in zip(average.model.parameters(), model.parameters()))


def test_copy_takes_no_gradient_and_shares_no_memory():
    model = model_of()
    model(torch.randn(5, 3)).sum().backward()
    average = MovingAverage(model)
    assert not any(x.requires_grad or x.grad is not None for x in average.model.parameters())
    assert all(x.requires_grad and x.grad is not None for x in model.parameters())
    before = [x.clone() for x in average.model.parameters()]
    shake(model)
    assert all(x.equal(y) for x, y in zip(average.model.parameters(), before))
    average.update(model, 0.5)
    assert all(x.requires_grad for x in model.parameters())


def test_shared_parameters_are_moved_once_and_stay_shared():
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    model[1].weight = model[0].weight
    start = model[0].weight.detach().clone()
    average = MovingAverage(model)
    shake(model)
    average.update(model, 0.9)
    assert average.model[0].weight is average.model[1].weight
    torch.testing.assert_close(average.model[0].weight, 0.9 * start + 0.1 * model[0].weight.detach())


def test_buffers_are_copied():
    model = model_of()
    average = MovingAverage(model)
    model.train()(torch.randn(8, 3) + 5)
    average.update(model, 0.99)
    assert average.model[1].running_mean.equal(model[1].running_mean)
    assert average.model[1].num_batches_tracked == 1


def test_saved_state_resumes_the_same_average():
    model = model_of()
    average = MovingAverage(model)
    shake(model)
    average.update(model, 0.9)
    state = copy.deepcopy(average.state_dict())
    resumed = MovingAverage(model)
    resumed.load_state_dict(state)
    shake(model)
    for each in (average, resumed):
        each.update(model, 0.9)
    assert all(x.equal(y) for x, y in zip(average.model.parameters(), resumed.model.parameters()))


def test_wrong_arguments_are_errors_that_say_so():
    average = MovingAverage(model_of())
    with pytest.raises(ValueError, match="momentum must be from 0 to 1, got 1.5"):
        average.update(model_of(), 1.5)
    with pytest.raises(ValueError, match="parameters must be as they were"):
        average.update(nn.Linear(3, 4), 0.9)
    with pytest.raises(ValueError, match="weight is torch.bfloat16"):
        MovingAverage(nn.Linear(3, 4).bfloat16())
