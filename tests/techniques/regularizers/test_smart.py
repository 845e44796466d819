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
    """A small model that draws the same dropout masks in every pass, and heeds no attention mask."""

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


def noises(regularizer, of):
    regularizer(of)
    return of.noises


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("eta", [1e-3, 1e6])
@pytest.mark.parametrize("bf16", [False, True])
def test_ball_holds_the_radius_of_each_row_and_rescale_gives_it_to_each_token(norm, steps, eta, bf16):
    seen = noises(smart(norm=norm, steps=steps, eta=eta), context(Toy(bf16=bf16)))
    assert len(seen) == steps + 1
    for noise in seen:
        length = torch.linalg.vector_norm(noise, NORMS[norm], dim=(1, 2))  # x + noise - x rounds by the last place of x
        assert (length <= 5e-3 * (1 + 1e-4)).all() and (length > 4e-3).all()
    of = context(Toy(bf16=bf16))
    last = noises(smart(norm=norm, steps=steps, eta=eta, projection="rescale", radius=1.0), of)[-1]
    lengths = torch.linalg.vector_norm(last, NORMS[norm], dim=-1)
    torch.testing.assert_close(lengths, of.mask.float(), rtol=1e-3, atol=0)


@pytest.mark.parametrize("projection", ["ball", "rescale"])
@pytest.mark.parametrize("norm", NORMS)
def test_one_step_equals_hand_algebra_in_float64(projection, norm, monkeypatch):
    """A linear model f(x) = sum(w * x) over a row: f(x + d) - f(x) = s, the gradient of mean(s^2) is 2 s w / B."""
    monkeypatch.setattr("bertrio.techniques.regularizers.smart.EPS", 1e-3)
    w = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(9))
    of = context(lambda x: (x * w).sum(dim=(1, 2)).unsqueeze(-1), squared, padded=False)
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
            step = start + 0.3 * gradient
            by_hand.append(torch.stack([0.4 * token / (token.norm(p=NORMS[norm]) + 1e-3) for token in step]))
    by_hand = torch.stack(by_hand)

    found = regularizer(of)
    torch.testing.assert_close(of.noises[-1].double(), by_hand, rtol=1e-4, atol=1e-5)
    assert found.dtype == torch.float32 and found.shape == (1,)
    assert found.item() == pytest.approx((by_hand * w.double()).sum(dim=(1, 2)).square().mean().item(), rel=1e-4)


def test_steps_climb_and_the_last_pass_uses_the_noise_just_found():
    of = context(Toy())
    penalty = smart(eta=2e-3, steps=4, norm="2", radius=1e-2, sigma=1e-3)(of).item()
    divergences = [categorical(of.model(noisy), of.outputs).item() for noisy in of.passes]
    assert divergences == sorted(divergences) and divergences[0] < divergences[-1]
    assert penalty == pytest.approx(divergences[-1], rel=1e-5) != pytest.approx(divergences[-2], rel=1e-3)


def test_gradient_reaches_both_sides_and_takes_the_noise_as_a_constant():
    """The gradient by parameters and embeddings is that of the divergence at the noise found."""
    of = context(Toy())
    found = torch.autograd.grad(smart()(of), parameters := [*of.model.parameters(), of.embeddings])
    noisy = of.model(of.embeddings + of.noises[-1])
    expected = torch.autograd.grad(categorical(noisy, of.model(of.embeddings)), parameters)
    assert all(gradient.abs().sum() > 0 for gradient in found)
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-6)


def test_the_search_leaves_gradients_of_parameters_alone():
    of = context(Toy())
    of.model.head.weight.grad = torch.ones_like(of.model.head.weight)
    penalty = smart(steps=3)(of)
    assert of.model.head.weight.grad.equal(torch.ones_like(of.model.head.weight))
    assert of.model.inner.weight.grad is None and of.embeddings.grad is None
    penalty.backward()
    assert of.model.inner.weight.grad.abs().sum() > 0 and of.embeddings.grad.abs().sum() > 0


def test_noise_of_1e_5_moves_embeddings_even_if_they_are_bf16():
    values = torch.ones(2, 3, HIDDEN, dtype=torch.bfloat16)
    assert (values + torch.tensor(1e-5).bfloat16()).equal(values)  # what bf16 would make of it
    of = Context(lambda x: x.float().sum(dim=(1, 2)).unsqueeze(-1), values, torch.ones(2, 3), squared)
    smart(radius=1e-5, sigma=1.0)(of)
    assert of.passes[-1].dtype == torch.float32 and (of.passes[-1] != 1).all()


def test_noise_comes_from_its_own_generator_which_checkpoints_hold():
    before = torch.get_rng_state()
    regularizer = smart(steps=0)

    def draw():
        of = Context(lambda x: x.sum(dim=(1, 2))[:, None], torch.zeros(2, 3, HIDDEN), torch.ones(2, 3), squared)
        return noises(regularizer, of)[0]

    first, state = draw(), regularizer.state_dict()
    second = draw()
    assert torch.get_rng_state().equal(before) and not first.equal(second)
    regularizer.load_state_dict(state)
    assert draw().equal(second)


def test_rows_of_a_shared_batch_get_the_noise_that_they_have_in_the_whole():
    model, whole = Toy(), context(Toy())
    rows = torch.tensor([0, 2])
    part = Context(model, whole.embeddings[rows].detach(), whole.mask[rows], positions=(rows, BATCH))
    torch.testing.assert_close(noises(smart(steps=0), part)[0], noises(smart(steps=0), whole)[0][rows])


def test_a_row_whose_gradient_is_not_finite_makes_no_step():
    def forward(embeddings):
        total = embeddings.sum(dim=(1, 2)).unsqueeze(-1)
        return torch.cat([(total[:1] * 0).sqrt(), total[1:]])  # the root has no finite gradient at 0

    first, last = noises(smart(radius=1.0), context(forward, squared))
    moved = (last - first).abs().sum(dim=(1, 2))
    assert last.isfinite().all() and moved[0] == 0 and (moved[1:] > 0).all()
