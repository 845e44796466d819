import math

import pytest
import torch
from torch import nn

from bertrio.techniques.regularizers.divergences import categorical, squared
from bertrio.techniques.regularizers.smart import Smart, SmartOptions
from tests.techniques.regularizers.contexts import Context, setup_of

BATCH, TOKENS, HIDDEN = 3, 5, 4
NORMS = {"inf": math.inf, "2": 2.0}


def smart(**options):
    usual = {"eta": 1e-3, "sigma": 1e-2, "radius": 5e-3, "norm": "inf", "steps": 1, "projection": "ball"}
    return Smart(SmartOptions(**{"lambda": 1, "tasks": None, **usual, **options}), setup_of())


class Toy(nn.Module):
    """A small model that draws the same dropout masks in every pass and ignores the attention mask."""

    def __init__(self, size=5, dropout=0.5, bf16=False):
        super().__init__()
        self.inner, self.head = nn.Linear(HIDDEN, 8), nn.Linear(8, size)
        self.dropout, self.bf16 = dropout, bf16

    def forward(self, embeddings):
        torch.manual_seed(7)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            return self.head(nn.functional.dropout(self.inner(embeddings), self.dropout).tanh().sum(dim=1))


def context(model, divergence=categorical, padded=True):
    torch.manual_seed(3)
    embeddings, mask = torch.randn(BATCH, TOKENS, HIDDEN, requires_grad=True), torch.ones(BATCH, TOKENS).long()
    mask[0, -2:] = 0 if padded else 1
    return Context(model, embeddings, mask, divergence)


def noises(regularizer, step):
    regularizer(step)
    return step.noises


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("eta", [1e-3, 1e6])
@pytest.mark.parametrize("bf16", [False, True])
def test_ball_bounds_rows_and_rescale_sets_the_norm_of_tokens(norm, steps, eta, bf16):
    passes = noises(smart(norm=norm, steps=steps, eta=eta), context(Toy(bf16=bf16)))
    assert len(passes) == steps + 1
    for noise in passes:
        length = torch.linalg.vector_norm(noise, NORMS[norm], dim=(1, 2))  # x + noise - x is rounded like x
        assert (length <= 5e-3 * (1 + 1e-4)).all() and (length > 4e-3).all()
    step = context(Toy(bf16=bf16))
    last = noises(smart(norm=norm, steps=steps, eta=eta, projection="rescale", radius=1.0), step)[-1]
    lengths = torch.linalg.vector_norm(last, NORMS[norm], dim=-1)
    torch.testing.assert_close(lengths, step.mask.float(), rtol=1e-3, atol=0)


@pytest.mark.parametrize("projection", ["ball", "rescale"])
@pytest.mark.parametrize("norm", NORMS)
def test_one_step_by_hand_in_float64(projection, norm, monkeypatch):
    """A linear model f(x) = sum(w * x) over a row: f(x + d) - f(x) = s, the gradient of mean(s^2) is 2 s w / B."""
    monkeypatch.setattr("bertrio.techniques.regularizers.smart.EPS", 1e-3)
    w = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(9))
    step = context(lambda x: (x * w).sum(dim=(1, 2)).unsqueeze(-1), squared, padded=False)
    regularizer = smart(eta=0.3, sigma=0.5, radius=0.4, norm=norm, projection=projection)

    def ball(v):
        return v.clamp(-0.4, 0.4) if norm == "inf" else v * (0.4 / v.norm()).clamp(max=1.0)

    by_hand = []
    for row in 0.5 * torch.randn(BATCH, TOKENS, HIDDEN, generator=torch.Generator().manual_seed(1)).double():
        start = ball(row) if projection == "ball" else row
        gradient = 2 * (w.double() * start).sum() * w.double() / BATCH
        if projection == "ball":
            by_hand.append(ball(start + 0.3 * gradient / gradient.flatten().norm(p=NORMS[norm])))
        else:
            tokens = start + 0.3 * gradient
            by_hand.append(torch.stack([0.4 * token / (token.norm(p=NORMS[norm]) + 1e-3) for token in tokens]))
    by_hand = torch.stack(by_hand)

    penalty = regularizer(step)
    torch.testing.assert_close(step.noises[-1].double(), by_hand, rtol=1e-4, atol=1e-5)
    assert penalty.dtype == torch.float32 and penalty.shape == (1,)
    assert penalty.item() == pytest.approx((by_hand * w.double()).sum(dim=(1, 2)).square().mean().item(), rel=1e-4)


def test_steps_ascend_and_the_penalty_uses_the_noise_just_found():
    step = context(Toy())
    penalty = smart(eta=2e-3, steps=4, norm="2", radius=1e-2, sigma=1e-3)(step).item()
    divergences = [categorical(step.model(noisy), *step.outputs).item() for noisy in step.passes]
    assert divergences == sorted(divergences) and divergences[0] < divergences[-1]
    assert penalty == pytest.approx(divergences[-1], rel=1e-5) != pytest.approx(divergences[-2], rel=1e-3)


def test_gradient_reaches_both_sides_with_the_noise_held_constant():
    step = context(Toy())
    gradients = torch.autograd.grad(smart()(step), parameters := [*step.model.parameters(), step.embeddings])
    noisy = step.model(step.embeddings + step.noises[-1])
    expected = torch.autograd.grad(categorical(noisy, step.model(step.embeddings)), parameters)
    assert all(gradient.abs().sum() > 0 for gradient in gradients)
    torch.testing.assert_close(gradients, expected, rtol=1e-2, atol=1e-6)


def test_inner_steps_leave_gradients_of_parameters_alone():
    step = context(Toy())
    step.model.head.weight.grad = torch.ones_like(step.model.head.weight)
    smart(steps=3)(step)
    assert step.model.head.weight.grad.equal(torch.ones_like(step.model.head.weight))
    assert step.model.inner.weight.grad is None and step.embeddings.grad is None


def test_noise_of_1e_5_perturbs_bf16_embeddings():
    values = torch.ones(2, 3, HIDDEN, dtype=torch.bfloat16)
    assert (values + torch.tensor(1e-5).bfloat16()).equal(values)  # lost in bf16
    step = Context(lambda x: x.float().sum(dim=(1, 2)).unsqueeze(-1), values, torch.ones(2, 3), squared)
    smart(radius=1e-5, sigma=1.0)(step)
    assert step.passes[-1].dtype == torch.float32 and (step.passes[-1] != 1).all()


def test_noise_comes_from_its_own_generator_and_is_checkpointed():
    before = torch.get_rng_state()
    regularizer = smart(steps=0)

    def draw():
        step = Context(lambda x: x.sum(dim=(1, 2))[:, None], torch.zeros(2, 3, HIDDEN), torch.ones(2, 3), squared)
        return noises(regularizer, step)[0]

    first, state = draw(), regularizer.state_dict()
    second = draw()
    assert torch.get_rng_state().equal(before) and not first.equal(second)
    regularizer.load_state_dict(state)
    assert draw().equal(second)


def test_shards_of_a_batch_get_the_noise_of_the_whole_batch():
    whole, rows = context(Toy()), torch.tensor([0, 2])
    shard = Context(Toy(), whole.embeddings[rows].detach(), whole.mask[rows], positions=(rows, BATCH))
    torch.testing.assert_close(noises(smart(steps=0), shard)[0], noises(smart(steps=0), whole)[0][rows])


def test_rows_with_non_finite_gradients_make_no_step():
    def forward(embeddings):
        total = embeddings.sum(dim=(1, 2)).unsqueeze(-1)
        return torch.cat([(total[:1] * 0).sqrt(), total[1:]])  # the root has no finite gradient at 0

    first, last = noises(smart(radius=1.0), context(forward, squared))
    moved = (last - first).abs().sum(dim=(1, 2))
    assert last.isfinite().all() and moved[0] == 0 and (moved[1:] > 0).all()
