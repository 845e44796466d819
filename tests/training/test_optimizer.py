import pytest
import torch
from torch import nn
from transformers import get_linear_schedule_with_warmup

from bertrio.training.optimizer import build_lr_schedule, build_optimizer, clip_gradients, lr_factor


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 1))


def test_biases_and_layernorm_get_no_weight_decay_and_frozen_parameters_nothing(model, default_params):
    model[2].requires_grad_(False)
    decayed, plain = build_optimizer(model, default_params.optimizer, 0.1).param_groups
    assert [id(p) for p in decayed["params"]] == [id(model[0].weight)]
    assert {id(p) for p in plain["params"]} == {id(p) for p in (model[0].bias, model[1].weight, model[1].bias)}
    assert (decayed["weight_decay"], plain["weight_decay"]) == (default_params.optimizer.weight_decay, 0)


def test_an_update_equals_adamw_by_hand_in_float64(default_params):
    model = nn.Linear(2, 1, bias=False).double()
    weight = model.weight.detach().clone()
    options = default_params.optimizer
    optimizer = build_optimizer(model, options, lr=0.1)
    gradient = torch.tensor([[0.5, -2.0]], dtype=torch.float64)
    model.weight.grad = gradient.clone()
    optimizer.step()
    # first step: both moments are bias-corrected to the gradient itself
    expected = weight * (1 - 0.1 * options.weight_decay) - 0.1 * gradient / (gradient.abs() + options.eps)
    torch.testing.assert_close(model.weight.detach(), expected, rtol=1e-12, atol=0)


def test_the_rate_rises_to_its_peak_and_falls_to_zero():
    factors = [lr_factor(step, 20, 4, "linear") for step in range(21)]
    assert factors[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert factors[20] == 0
    assert factors[12] == 0.5
    assert [lr_factor(step, 20, 0, "constant") for step in (0, 19)] == [1, 1]


def test_the_decay_equals_that_of_transformers(default_params, model):
    options = default_params.optimizer.model_copy(update={"warmup_fraction": 0.0, "lr_schedule": "linear"})
    ours_of, theirs_of = (build_optimizer(model, options, 0.1) for _ in range(2))
    ours, theirs = build_lr_schedule(ours_of, options, 7), get_linear_schedule_with_warmup(theirs_of, 0, 7)
    for _ in range(7):
        assert ours_of.param_groups[0]["lr"] == pytest.approx(theirs_of.param_groups[0]["lr"], rel=1e-12)
        for step in (ours_of, theirs_of, ours, theirs):
            step.step()


def test_clipping_bounds_the_joint_norm_and_none_leaves_it(model):
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    clip_gradients(model, None)
    assert all((p.grad == 1).all() for p in model.parameters())
    clip_gradients(model, 0.5)
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    assert norm.item() == pytest.approx(0.5, rel=1e-4)
