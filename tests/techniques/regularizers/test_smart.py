import dataclasses
import math

import pytest
import torch
from torch import nn

from bertrio.techniques.regularizers.divergences import bernoulli, categorical, squared
from bertrio.techniques.regularizers.smart import Smart

BATCH, TOKENS, HIDDEN = 3, 5, 4
NORMS = {"inf": math.inf, "2": 2.0}


def smart(seed=1, **options):
    usual = {"eta": 1e-3, "sigma": 1e-2, "radius": 5e-3, "norm": "inf", "steps": 1, "projection": "ball"}
    return Smart(**{**usual, **options}, generator=torch.Generator().manual_seed(seed))


class Toy(nn.Module):
    """A small model for one text or two, which draws the same dropout masks in every pass."""

    def __init__(self, size, texts=1, dropout=0.5):
        super().__init__()
        self.inner, self.head = nn.Linear(HIDDEN, 8), nn.Linear(8 * texts, size)
        self.dropout = dropout

    def forward(self, embeddings):
        torch.manual_seed(7)
        hidden = [nn.functional.dropout(self.inner(x), self.dropout).tanh().sum(dim=1) for x in embeddings]
        return self.head(torch.cat(hidden, dim=-1))


def batch(texts=1, rows=BATCH):
    torch.manual_seed(3)
    embeddings = tuple(torch.randn(rows, TOKENS + i, HIDDEN, requires_grad=True) for i in range(texts))
    masks = tuple(torch.ones(x.shape[:2], dtype=torch.int64) for x in embeddings)
    for mask in masks:
        mask[0, -2:] = 0
    return embeddings, masks


def noises(regularizer, forward, embeddings, masks, divergence):
    """The noise of every pass, the last one's last."""
    seen = []

    def spy(noisy):
        seen.append([(x - clean).detach() for x, clean in zip(noisy, embeddings)])
        return forward(noisy)

    regularizer(spy, embeddings, masks, forward(embeddings), divergence)
    return seen


@pytest.mark.parametrize(
    "options",
    [
        {"sigma": 0.0, "eta": 0.0, "steps": 1},
        {"sigma": 0.0, "eta": 0.0, "steps": 1, "projection": "rescale"},
        {"sigma": 0.0, "steps": 0},
        {"sigma": 0.0, "steps": 2},  # equal outputs: the gradient is 0 as well
        {"radius": 0.0, "steps": 1},
        {"radius": 0.0, "steps": 2, "norm": "2"},
        {"radius": 0.0, "projection": "rescale"},
    ],
)
@pytest.mark.parametrize(("size", "divergence"), [(5, categorical), (1, bernoulli), (1, squared)])
def test_zero_noise_gives_exactly_zero_with_dropout_on(options, size, divergence):
    model, (embeddings, masks) = Toy(size), batch()
    outputs = model(embeddings)
    assert smart(**options)(model, embeddings, masks, outputs, divergence).item() == 0.0
    assert smart()(model, embeddings, masks, outputs, divergence).item() > 0  # and noise does not


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("eta", [1e-3, 100.0])
@pytest.mark.parametrize("bf16", [False, True])
def test_ball_holds_the_radius_in_every_pass(norm, steps, eta, bf16):
    model, (embeddings, masks) = Toy(5, texts=2), batch(texts=2)

    def forward(noisy):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            return model(noisy)

    seen = noises(smart(norm=norm, steps=steps, eta=eta), forward, embeddings, masks, categorical)
    assert len(seen) == steps + 1
    for noise in (noise for pass_ in seen for noise in pass_):
        # the test's own x + noise - x rounds by the last place of x
        length = torch.linalg.vector_norm(noise, NORMS[norm], dim=(1, 2))
        assert (length <= 5e-3 * (1 + 1e-4)).all()
        assert (length > 4e-3).all()  # and the noise makes use of it


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("eta", [1e-3, 1e6])
@pytest.mark.parametrize("bf16", [False, True])
def test_rescale_gives_each_token_the_radius_whatever_the_gradient(norm, steps, eta, bf16):
    model, (embeddings, masks) = Toy(5), batch()

    def forward(noisy):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            return model(noisy)

    regularizer = smart(norm=norm, steps=steps, eta=eta, projection="rescale", radius=1.0, eps=1e-7)
    (noise,) = noises(regularizer, forward, embeddings, masks, categorical)[-1]
    lengths = torch.linalg.vector_norm(noise, NORMS[norm], dim=-1)
    torch.testing.assert_close(lengths, masks[0].float(), rtol=1e-4, atol=0)


def test_eps_is_apart_from_the_radius():
    model, (embeddings, masks) = Toy(5), batch()
    noise = [
        noises(smart(projection="rescale", radius=radius, eps=eps), model, embeddings, masks, categorical)[-1][0]
        for radius, eps in [(1.0, 1e-6), (2.0, 1e-6), (1.0, 1.0)]
    ]
    torch.testing.assert_close(noise[1], 2 * noise[0], rtol=1e-4, atol=1e-6)
    assert noise[2].abs().max() < 0.1  # the draw has length of about sigma, far below a eps of 1


def test_rescale_leaves_the_draw_as_it_is_and_ball_projects_it():
    model, (embeddings, masks) = Toy(5), batch()
    first = [
        noises(smart(projection=name), model, embeddings, masks, categorical)[0][0] for name in ("ball", "rescale")
    ]
    assert first[0].abs().max() <= 5e-3 * (1 + 1e-4)
    torch.testing.assert_close(first[0], first[1].clamp(-5e-3, 5e-3), rtol=0, atol=1e-6)
    assert first[1].abs().max() > 5e-3


@pytest.mark.parametrize("projection", ["ball", "rescale"])
@pytest.mark.parametrize("norm", NORMS)
def test_one_step_equals_hand_algebra_in_float64(projection, norm):
    """A linear model f(x) = sum(w * x) over a row: f(x + d) - f(x) = s, the gradient of mean(s^2) is 2 s w / B."""
    embeddings, _ = batch()
    masks = (torch.ones(BATCH, TOKENS, dtype=torch.int64),)
    w = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(9))
    options = {"eta": 0.3, "sigma": 0.5, "radius": 0.4, "norm": norm, "projection": projection, "eps": 1e-3}

    def forward(noisy):
        return (noisy[0] * w).sum(dim=(1, 2)).unsqueeze(-1)

    def ball(v):
        return v.clamp(-0.4, 0.4) if norm == "inf" else v * (0.4 / v.norm()).clamp(max=1.0)

    draw = 0.5 * torch.randn(BATCH, TOKENS, HIDDEN, generator=torch.Generator().manual_seed(1)).double()
    by_hand = []
    for row in draw:
        if projection == "ball":
            row = ball(row)
            gradient = 2 * (w.double() * row).sum() * w.double() / BATCH
            by_hand.append(ball(row + 0.3 * gradient / gradient.flatten().norm(p=NORMS[norm])))
        else:
            gradient = 2 * (w.double() * row).sum() * w.double() / BATCH
            step = row + 0.3 * gradient
            by_hand.append(torch.stack([0.4 * token / (token.norm(p=NORMS[norm]) + 1e-3) for token in step]))
    by_hand = torch.stack(by_hand)
    penalty = (by_hand * w.double()).sum(dim=(1, 2)).square().mean().item()

    (noise,) = noises(smart(**options), forward, embeddings, masks, squared)[-1]
    torch.testing.assert_close(noise.double(), by_hand, rtol=1e-4, atol=1e-5)
    found = smart(**options)(forward, embeddings, masks, forward(embeddings), squared)
    assert found.dtype == torch.float32 and found.ndim == 0
    assert found.item() == pytest.approx(penalty, rel=1e-4)


@pytest.mark.parametrize("norm", NORMS)
def test_the_step_does_not_change_with_the_batch(norm):
    """The same row, alone and four times."""
    model, (embeddings, _) = Toy(5, dropout=0.0), batch()
    regularizer = smart(norm=norm, sigma=1e-3, eta=1e-3, radius=1.0)
    draw = torch.randn(1, TOKENS, HIDDEN)

    def noise_of(copies, monkeypatch):
        repeated = tuple(x.detach()[:1].repeat(copies, 1, 1) for x in embeddings)
        monkeypatch.setattr(torch, "randn", lambda shape, **_: draw.expand(shape))
        return noises(regularizer, model, repeated, (torch.ones(copies, TOKENS),), categorical)[-1][0][0]

    with pytest.MonkeyPatch.context() as monkeypatch:
        one, four = noise_of(1, monkeypatch), noise_of(4, monkeypatch)
    torch.testing.assert_close(one, four, rtol=0, atol=1e-6)
    moved = torch.linalg.vector_norm(one - 1e-3 * draw[0], NORMS[norm])  # by eta, in the norm of the ball
    assert moved.item() == pytest.approx(1e-3, rel=1e-2)


def test_rescale_steps_along_the_gradient_of_the_mean_not_of_the_sum():
    model, (embeddings, masks) = Toy(1, dropout=0.0), batch()
    draw = 1e-2 * torch.randn(BATCH, TOKENS, HIDDEN, generator=torch.Generator().manual_seed(1))
    draw = (draw * masks[0].unsqueeze(-1)).requires_grad_()
    clean, noisy = model(embeddings), model((embeddings[0].detach() + draw,))
    (gradient,) = torch.autograd.grad(((noisy - clean.detach()) ** 2).sum() / BATCH, draw)
    step = draw.detach() + 10.0 * gradient * masks[0].unsqueeze(-1)
    expected = step / (step.abs().amax(dim=-1, keepdim=True) + 1e-6)
    (noise,) = noises(smart(projection="rescale", radius=1.0, eta=10.0), model, embeddings, masks, squared)[-1]
    torch.testing.assert_close(noise, expected, rtol=1e-3, atol=1e-4)


def test_steps_climb_and_the_last_pass_uses_the_noise_just_found():
    model, (embeddings, masks) = Toy(5), batch()
    outputs = model(embeddings)
    options = {"eta": 2e-3, "steps": 4, "norm": "2", "radius": 1e-2, "sigma": 1e-3}
    seen = noises(smart(**options), model, embeddings, masks, categorical)
    worth = [categorical(model((embeddings[0] + noise,)), outputs).item() for (noise,) in seen]
    assert worth == sorted(worth) and worth[0] < worth[-1]
    penalty = smart(**options)(model, embeddings, masks, outputs, categorical).item()
    assert penalty == pytest.approx(worth[-1], rel=1e-3) != pytest.approx(worth[-2], rel=1e-3)


def test_gradient_reaches_both_sides_in_equal_parts():
    model, (embeddings, masks) = Toy(1), batch()
    outputs = model(embeddings)
    outputs.retain_grad()
    passes = []

    def forward(noisy):
        passes.append(model(noisy))
        passes[-1].retain_grad()
        return passes[-1]

    smart()(forward, embeddings, masks, outputs, squared).backward()
    assert (passes[-1].grad.abs() > 0).all()
    assert outputs.grad.equal(-passes[-1].grad)  # the half that a detached clean pass would lose


def test_gradient_by_a_parameter_equals_hand_algebra():
    """f(x) = a * sum(x): the penalty is mean((a * sum(d))^2), and its derivative by a is twice the penalty over a."""
    embeddings, masks = batch()
    scale = torch.tensor(0.7, requires_grad=True)

    def forward(noisy):
        return scale * noisy[0].sum(dim=(1, 2)).unsqueeze(-1)

    penalty = smart()(forward, embeddings, masks, forward(embeddings), squared)
    penalty.backward()
    assert scale.grad.item() == pytest.approx(2 * penalty.item() / 0.7, rel=1e-3)


def test_noise_is_a_constant_of_the_penalty():
    """The gradient by the parameters is that of the penalty at the noise found, not through how it was found."""
    model, (embeddings, masks) = Toy(5), batch()
    (noise,) = noises(smart(), model, embeddings, masks, categorical)[-1]
    parameters = [*model.parameters(), *embeddings]
    found = torch.autograd.grad(smart()(model, embeddings, masks, model(embeddings), categorical), parameters)
    expected = torch.autograd.grad(categorical(model((embeddings[0] + noise,)), model(embeddings)), parameters)
    assert all(gradient.abs().sum() > 0 for gradient in found)
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-6)


def test_the_search_leaves_gradients_of_parameters_alone():
    model, (embeddings, masks) = Toy(5), batch()
    kept = torch.ones_like(model.head.weight)
    model.head.weight.grad = kept.clone()
    penalty = smart(steps=3)(model, embeddings, masks, model(embeddings), categorical)
    assert model.head.weight.grad.equal(kept)
    assert model.inner.weight.grad is None and embeddings[0].grad is None
    penalty.backward()
    assert model.inner.weight.grad.abs().sum() > 0 and embeddings[0].grad.abs().sum() > 0


@pytest.mark.parametrize("projection", ["ball", "rescale"])
@pytest.mark.parametrize("steps", [0, 2])
def test_padding_gets_no_noise_and_real_tokens_do(projection, steps):
    model, (embeddings, masks) = Toy(5, texts=2), batch(texts=2)  # Toy heeds no mask: its gradient is not 0 there
    for pass_ in noises(smart(projection=projection, steps=steps), model, embeddings, masks, categorical):
        for noise, mask in zip(pass_, masks):
            assert (noise.abs().sum(dim=-1) > 0).equal(mask.bool())


def test_noise_at_padding_does_not_count_in_the_length_of_a_step():
    model, (embeddings, masks) = Toy(5), batch()
    seen = noises(smart(eta=1e-2, sigma=1e-3, radius=1.0, norm="2"), model, embeddings, masks, categorical)
    moved = torch.linalg.vector_norm(seen[1][0] - seen[0][0], dim=(1, 2))
    torch.testing.assert_close(moved, torch.full((BATCH,), 1e-2), rtol=1e-3, atol=0)


def test_one_logit_has_a_penalty():
    model, (embeddings, masks) = Toy(1), batch()
    assert smart()(model, embeddings, masks, model(embeddings), bernoulli) > 0


def test_noise_of_1e_5_moves_embeddings_even_if_they_are_bf16():
    values = torch.ones(2, 3, HIDDEN, dtype=torch.bfloat16)
    assert (values + torch.tensor(1e-5).bfloat16()).equal(values)  # what bf16 would make of it
    seen = []

    def forward(noisy):
        seen.append(noisy[0])
        return noisy[0].sum(dim=(1, 2)).unsqueeze(-1)

    mask = torch.ones(2, 3)
    smart(radius=1e-5, sigma=1.0)(forward, (values,), (mask,), forward((values,)).float(), squared)
    assert seen[-1].dtype == torch.float32
    assert (seen[-1] != 1).all()


def test_noise_comes_from_its_own_generator_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    regularizer = smart(steps=0)
    (embeddings,) = (torch.zeros(2, 3, HIDDEN),)

    def draw():
        (noise,) = noises(
            regularizer, lambda x: x[0].sum(dim=(1, 2))[:, None], (embeddings,), (torch.ones(2, 3),), squared
        )[0]
        return noise

    first = draw()
    state = regularizer.generator.get_state()
    second = draw()
    assert torch.get_rng_state().equal(before)
    assert not first.equal(second)
    regularizer.generator.set_state(state)
    assert draw().equal(second)


def test_two_texts_get_noise_of_their_own_jointly_found():
    model, (embeddings, masks) = Toy(5, texts=2), batch(texts=2)
    outputs = model(embeddings)
    penalty = smart(steps=2)(model, embeddings, masks, outputs, categorical)
    noise = noises(smart(steps=2), model, embeddings, masks, categorical)[-1]
    together = categorical(model(tuple(x + d for x, d in zip(embeddings, noise))), outputs)
    assert penalty.item() == pytest.approx(together.item(), rel=1e-2)
    penalty.backward()
    assert all(x.grad.abs().sum() > 0 for x in embeddings)


def test_a_row_whose_gradient_is_not_finite_makes_no_step():
    embeddings, masks = batch()

    def forward(noisy):
        total = noisy[0].sum(dim=(1, 2)).unsqueeze(-1)
        return torch.cat([(total[:1] * 0).sqrt(), total[1:]])  # the root has no finite gradient at 0

    seen = noises(smart(radius=1.0), forward, embeddings, masks, squared)
    moved = (seen[1][0] - seen[0][0]).abs().sum(dim=(1, 2))
    assert seen[1][0].isfinite().all()
    assert moved[0] == 0 and (moved[1:] > 0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "1"}, "norm must be one of inf, 2, got '1'"),
        ({"projection": "box"}, "projection must be one of ball, rescale, got 'box'"),
        ({"eta": -1.0}, "eta must be finite and at least 0, got -1.0"),
        ({"radius": math.inf}, "radius must be finite"),
        ({"steps": -1}, "steps must be finite and at least 0, got -1"),
        ({"eps": 0.0}, "eps must be above 0, got 0.0"),
    ],
)
def test_arguments_out_of_range_are_errors_that_say_so(options, message):
    with pytest.raises(ValueError, match=f"Smart: {message}"):
        smart(**options)


def test_masks_that_do_not_fit_are_an_error():
    model, (embeddings, masks) = Toy(5), batch()
    with pytest.raises(ValueError, match=r"masks must be \[\[3, 5\]\], as the embeddings, got \[\[3, 5\], \[3, 5\]\]"):
        smart()(model, embeddings, masks * 2, model(embeddings), categorical)


def test_options_are_fixed_once_made():
    with pytest.raises(dataclasses.FrozenInstanceError):
        smart().radius = 1.0
