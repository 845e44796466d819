import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from bertrio.core.options import read_options
from bertrio.core.tasks import Binary, Ordered, Score
from bertrio.model.heads import ACTIVATIONS, HEADS, SHARES, HeadSpec, build_heads, head_options, options_to_share

H, B = 6, 4
SCORE, BINARY, DEGREES = Score(0, 5), Binary(), Ordered(5)


def spec(name, target=SCORE, size=None, dropout=0.0, **options):
    options = read_options(head_options(name), options, f"head {name}")
    return HeadSpec(name, target, target.size if size is None else size, dropout, options)


def build(name, *args, seed=0, **options):
    torch.manual_seed(seed)
    return build_heads({"sts": spec(name, *args, **options)}, H)["sts"]


def build_shared(share, seed=0, head="siamese", tasks=("qqp", "sts"), qqp=None, sts=None, **options):
    torch.manual_seed(seed)
    specs = {"sst": spec("linear", DEGREES), "qqp": qqp or spec(head, BINARY, **options)}
    specs["sts"] = sts or spec(head, SCORE, **options)
    for task in tasks:
        specs[task] = replace(specs[task], options=options_to_share(specs[task].options, SHARES[share]))
    return build_heads(specs, H, share, tasks)


def vectors(number=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(B, H, generator=generator) for _ in range(number)]


# Features


@pytest.mark.parametrize(
    ("name", "by_hand"),
    [
        ("concat", [3, -4, 0, 2]),
        ("siamese", [3, -4, 0, 2, 3, 6]),
        ("siamese_product", [3, -4, 0, 2, 3, 6, 0, -8]),
        ("siamese_cosine", [3, -4, 0, 2, 3, 6, -0.8]),  # -8 / (5 * 2)
    ],
)
def test_features_by_hand(name, by_hand):
    features = HEADS[name].features(torch.tensor([[3.0, -4]]), torch.tensor([[0.0, 2]]))
    torch.testing.assert_close(features, torch.tensor([by_hand], dtype=torch.float32))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_deep_heads_equal_their_equation_in_float64(activation):
    head = build("siamese", depth=2, width=3, activation=activation, projection=True).double()
    u, v = (vector.double() for vector in vectors())
    a = {
        "relu": lambda x: x.clamp(min=0),
        "leaky_relu": lambda x: x.clamp(min=0) + 0.01 * x.clamp(max=0),
        "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
        "tanh": lambda x: 1 - 2 / (1 + torch.exp(2 * x)),
    }[activation]

    def linear(layer, x):
        return x @ layer.weight.T + layer.bias

    s, t = a(linear(head.projection, u)), a(linear(head.projection, v))
    state = torch.cat((s, t, (s - t).abs()), dim=1)
    for layer in head.hidden:
        state = a(linear(layer, state))
    torch.testing.assert_close(head(u, v).outputs, linear(head.output, state), rtol=1e-12, atol=1e-12)


# Cosine and its scalings


@pytest.mark.parametrize(
    ("target", "options", "by_hand"),
    [
        (Score(1, 3), {}, [1, 1, 2.2, 3]),  # relu: 1 + 2 * max(cos, 0)
        (BINARY, {}, [-36, -26, -4, 4]),  # logit: 20 * (cos - 0.8)
        (BINARY, {"scaling": "relu"}, [math.log(p / (1 - p)) for p in (1e-6, 1e-6, 0.6, 1 - 1e-6)]),  # the cosine is p
        (Score(1, 3), {"scaling": "affine"}, [1, 1.5, 2.6, 3]),  # 1 + 2 * (cos + 1) / 2
        (Score(1, 3), {"scaling": "sigmoid", "scale": 2}, [1 + 2 / (1 + math.exp(-2 * c)) for c in (-1, -0.5, 0.6, 1)]),
        (BINARY, {"scaling": "logit", "scale": 10, "threshold": 0.5}, [-15, -10, 1, 5]),
    ],
)
def test_scalings_by_hand(target, options, by_hand):
    u, v = torch.eye(H)[[0] * 4], torch.zeros(4, H)  # unit vectors
    v[:, 0] = torch.tensor([-1, -0.5, 0.6, 1])  # cosines
    v[:, 1] = (1 - v[:, 0] ** 2).sqrt()
    outputs = build("cosine", target, **options)(u, v).outputs.squeeze(-1)
    assert outputs.tolist() == pytest.approx(by_hand, rel=2e-3)


def test_cosine_is_that_of_the_projected_vectors():
    head = build("cosine", SCORE, projection=True, activation="tanh")
    u, v = vectors()
    by_hand = F.cosine_similarity(torch.tanh(head.projection(u)), torch.tanh(head.projection(v)))
    torch.testing.assert_close(head(u, v).cosine, by_hand)
    assert not list(build("cosine").parameters())


@pytest.mark.parametrize("case", ["equal", "opposite", "zero", "one zero"])
@pytest.mark.parametrize(
    ("name", "options"), [("cosine", {"scaling": "logit"}), ("cosine", {"projection": True}), ("siamese_cosine", {})]
)
def test_gradients_are_finite_for_equal_opposite_and_zero_vectors(name, options, case):
    u, v = vectors()
    v = {"equal": u, "opposite": -u, "zero": torch.zeros_like(u), "one zero": v}[case]
    u = torch.zeros_like(u) if case in ("zero", "one zero") else u
    pooled = [vector.clone().requires_grad_() for vector in (u, v)]
    head = build(name, BINARY, **options)
    head(*pooled).outputs.sum().backward()
    assert all(value.grad.isfinite().all() for value in [*pooled, *head.parameters()])


# Dropout


@pytest.mark.parametrize("name", HEADS)
def test_dropout_acts_in_training_only(name):
    pooled = vectors(HEADS[name].vectors)
    wet, dry = build(name, dropout=0.5, seed=1), build(name, dropout=0.0, seed=1)
    assert not torch.equal(wet(*pooled).outputs, wet(*pooled).outputs)
    assert torch.equal(wet.eval()(*pooled).outputs, dry(*pooled).outputs)
    assert torch.equal(dry(*pooled).outputs, dry.eval()(*pooled).outputs)


# Sharing


def is_shared(heads, layer):
    return heads["qqp"].get_submodule(layer) is heads["sts"].get_submodule(layer)


@pytest.mark.parametrize(
    ("share", "projection", "fusion"), [("none", False, False), ("projection", True, False), ("fusion", False, True)]
)
def test_only_the_named_layers_are_shared(share, projection, fusion):
    heads = build_shared(share, depth=2, projection=True)
    assert is_shared(heads, "projection") == projection and is_shared(heads, "hidden.0") == fusion
    assert not any(is_shared(heads, layer) for layer in ("hidden.1", "output", "dropout"))
    assert not torch.equal(heads["qqp"].output.weight, heads["sts"].output.weight)


def test_sharing_adds_the_shared_layers_to_any_kind_of_head():
    heads = build_shared("both")
    for task in ("qqp", "sts"):
        assert heads[task].projection is not None and len(heads[task].hidden) == 1
    assert len(build_shared("fusion", depth=3)["sts"].hidden) == 3
    assert is_shared(build_shared("projection", head="cosine"), "projection")
    assert is_shared(build_shared("projection", qqp=spec("siamese", BINARY)), "projection")
    assert is_shared(build_shared("fusion", head="mlp"), "hidden.0")


# Errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"share": "fusion", "tasks": ("qqp", "sst")}, "task sst: head linear can't share a fusion; can: mlp, concat"),
        ({"share": "projection", "projection": False}, "projection: expected true, to share a projection, found false"),
        ({"share": "fusion", "depth": 0}, "depth: expected 1 or more, to share a fusion, found 0"),
    ],
)
def test_unsupported_sharing_is_an_error(arguments, message):
    with pytest.raises(ValueError, match=message):
        build_shared(**arguments)
