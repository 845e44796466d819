"""Each loss equals its equation in float64, in value and gradient, and is built by name."""

import math

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional as F

from bertrio.core.tasks import Binary, Classes, HeadOutput, Ordered, Score
from bertrio.techniques.losses import LOSSES, build_loss, losses_for
from bertrio.techniques.losses.scores import pearson
from bertrio.techniques.losses.weights import inverse_frequency, weighted_mean

CLASSES, ORDERED, BINARY, SCORE = Classes(5), Ordered(5), Binary(), Score(1, 6)
COUNTS = {5: [1, 3, 2, 4, 10], 2: [30, 10]}
LABELS = {
    CLASSES: torch.tensor([0, 4, 2, 2, 1, 3, 0]),
    ORDERED: torch.tensor([0, 4, 2, 2, 1, 3, 0]),
    BINARY: torch.tensor([1.0, 0, 0, 1, 1, 0, 1]),
    SCORE: torch.tensor([1.0, 6, 4.2, 4.2, 2.4, 5, 3.5]),
}


# Losses per row [B], or of the batch, given outputs o [B, size], cosines c [B] and labels y [B]


def cross_entropy(o, c, y, label_smoothing=0.0):
    target = (1 - label_smoothing) * F.one_hot(y, 5) + label_smoothing / 5
    return -(target * (o.exp() / o.exp().sum(1, keepdim=True)).log()).sum(1)


def dual_objective(o, c, y, reduction="sum"):
    p = 1 / (1 + (-o).exp())
    terms = -torch.where(F.one_hot(y, 5) == 1, p.log(), (1 - p).log())
    return terms.sum(1) if reduction == "sum" else terms.mean(1)


def ordinal_log_loss(o, c, y, alpha=1.5):
    distance = (torch.arange(5) - y[:, None]).abs() ** alpha
    return -((1 - o.exp() / o.exp().sum(1, keepdim=True)).log() * distance).sum(1)


def bce(o, c, y):
    p = 1 / (1 + (-o[:, 0]).exp())
    return -(y * p.log() + (1 - y) * (1 - p).log())


def siamese_softmax(o, c, y):
    return bce(o[:, 1:] - o[:, :1], c, y)


def mse(o, c, y, scale="raw"):
    return ((o[:, 0] - y) / (5 if scale == "unit" else 1)) ** 2


def pearson_loss(o, c, y):
    """Murphy 1988: the squared error is that of mean and spread plus 2 s_o s_y (1 - r)."""
    r = torch.corrcoef(torch.stack([o[:, 0], y.to(o.dtype)]))[0, 1]
    spreads = o[:, 0].std(correction=0) * y.std(correction=0)
    return 1 - r + (((o[:, 0] - y) ** 2).mean() - 2 * spreads * (1 - r)) / 25


def cosine_mse(o, c, y):
    return (c - (y - y.min()) / (y.max() - y.min())) ** 2  # the labels reach both ends of their range


def cosine_embedding(o, c, y, threshold=3.5, margin=0.0):
    return torch.where(y >= threshold, 1 - c, (c - margin).clamp(min=0))


def cosent(o, c, y, temperature=0.05):
    pairs = [(i, j) for i in range(7) for j in range(7) if y[i] > y[j]]
    return (1 + sum(((c[j] - c[i]) / temperature).exp() for i, j in pairs)).log()


VECTORS = torch.randn(2, 7, 3, generator=torch.Generator().manual_seed(1)).bfloat16()


def multiple_negatives_ranking(o, vectors, y, temperature=0.05, symmetric=True, threshold=None):
    u, v = (side / side.norm(dim=1, keepdim=True) for side in vectors)
    similar = y >= ((y.min() + y.max()) / 2 if threshold is None else threshold)
    e = (u @ v.T / temperature).exp()
    pairs, hard = e.diagonal(), e.diagonal()[~similar].sum()
    return torch.stack([-(pairs / (e.sum(1 - side) + hard)).log()[similar] for side in range(1 + symmetric)])


TAKE_WEIGHTS = {cross_entropy, dual_objective, ordinal_log_loss, bce, siamese_softmax}
CASES = [
    (CLASSES, cross_entropy, {}), (CLASSES, cross_entropy, {"label_smoothing": 0.1}), (CLASSES, dual_objective, {}),
    (CLASSES, dual_objective, {"reduction": "mean"}), (ORDERED, ordinal_log_loss, {}),
    (ORDERED, ordinal_log_loss, {"alpha": 0.5}), (BINARY, bce, {}), (BINARY, siamese_softmax, {}), (SCORE, mse, {}),
    (SCORE, mse, {"scale": "unit"}), (SCORE, pearson_loss, {}), (SCORE, cosine_mse, {}), (BINARY, cosine_mse, {}),
    (SCORE, cosine_embedding, {}), (SCORE, cosine_embedding, {"threshold": 4.2, "margin": -0.5}), (SCORE, cosent, {}),
    (SCORE, cosent, {"temperature": 0.1}), (BINARY, multiple_negatives_ranking, {}),
    (SCORE, multiple_negatives_ranking, {"threshold": 4.2, "symmetric": False, "temperature": 0.2}),
]  # fmt: skip


def inputs(name, target, dtype=torch.float32):
    """Outputs, and cosines or vectors, of seven rows: exact in bfloat16, with gradients."""
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(7, target.outputs_for(name), generator=generator).bfloat16().to(dtype).requires_grad_()
    cosine = torch.tensor([0.5, -0.25, 0.75, -1.0, 0.375, 0.875, -0.5], dtype=dtype, requires_grad=True)
    return outputs, (VECTORS.to(dtype, copy=True).requires_grad_() if "negatives" in name else cosine)


def head_output(outputs, other):
    return HeadOutput(outputs, vectors=tuple(other)) if other.ndim == 3 else HeadOutput(outputs, other)


def value_and_gradients(loss, sides):
    return loss.item(), torch.autograd.grad(loss, sides, materialize_grads=True)


WEIGHTED = [(*case, True) for case in CASES if case[1] in TAKE_WEIGHTS]


@pytest.mark.parametrize(("target", "equation", "options", "weighted"), [*[(*one, False) for one in CASES], *WEIGHTED])
def test_loss_and_gradient_equal_the_equation_in_float64(target, equation, options, weighted):
    name = {pearson_loss: "pearson"}.get(equation, equation.__name__)
    labels, weights, classes = LABELS[target], torch.ones(()), max(2, target.size)
    if weighted:
        options = {**options, "class_weights": "inverse"}
        gold = np.repeat(np.arange(classes), COUNTS[classes])
        balanced = compute_class_weight("balanced", classes=np.arange(classes), y=gold)
        weights = torch.from_numpy(balanced)[labels.long()]
    sides, exact = inputs(name, target), inputs(name, target, torch.float64)
    loss = build_loss(name, target, options, COUNTS.get(classes, ()))
    value, gradients = value_and_gradients(loss(head_output(*sides), labels), sides)
    options = {option: value for option, value in options.items() if option != "class_weights"}
    expected, by_hand = value_and_gradients((weights * equation(*exact, labels, **options)).mean(), exact)
    assert value == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close([gradient.double() for gradient in gradients], by_hand, rtol=1e-4, atol=1e-6)


COSINE = ("cos", "multiple_negatives")
FITTING = [(name, target) for target in (CLASSES, ORDERED, BINARY, SCORE) for name in losses_for(target)]


@pytest.mark.parametrize(("name", "target"), FITTING)
def test_loss_is_float32_for_outputs_of_any_dtype(name, target):
    loss, labels = build_loss(name, target, {}), LABELS[target]
    exact, half = (loss(head_output(*inputs(name, target, dtype)), labels) for dtype in (torch.float32, torch.bfloat16))
    assert half.dtype == torch.float32 and half.shape == ()
    assert torch.equal(half, exact)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(loss(head_output(*inputs(name, target)), labels), exact)


@pytest.mark.parametrize(("name", "target"), [case for case in FITTING if not case[0].startswith(COSINE)])
def test_confident_errors_have_finite_losses_and_gradients(name, target):
    outputs = torch.full((2, target.outputs_for(name)), -200.0)
    outputs[:, -1] = 200.0
    outputs.requires_grad_()
    loss = build_loss(name, target, {})(HeadOutput(outputs), LABELS[target][:2] * 0)
    loss.backward()
    assert loss.isfinite() and outputs.grad.isfinite().all()
    assert name == "pearson" or (outputs.grad[:, -1] > 0).all()


# The edges of single losses


@pytest.mark.parametrize(
    ("scores", "labels"),
    [
        ([3.3] * 7, [1.0, 2.0, 3.0, 4.0, 5.0, 0.0, 0.0]),  # the float32 mean is not 3.3
        ([1.0, 2.0, 3.0, 4.0, 5.0, 0.0, 0.0], [3.3] * 7),
        ([0.0, 0.0], [0.0, 0.0]),
        ([2.0], [3.0]),
    ],
)
def test_pearson_without_variance_has_no_correlation_gradient(scores, labels):
    outputs = torch.tensor(scores).unsqueeze(1).requires_grad_()
    loss = pearson(HeadOutput(outputs), torch.tensor(labels), low=0.0, high=1e6)
    loss.backward()
    assert loss.item() == pytest.approx(1.0)
    assert outputs.grad.abs().max() < 1e-11  # the other terms, over a range of 1e6


@pytest.mark.parametrize(
    ("cosines", "labels", "temperature", "expected"),
    [([0.5], [2.0], 0.05, 0.0), ([-1.0, 0.0, 1.0], [2.0] * 3, 0.05, 0.0), ([-1.0, 1.0], [1.0, 0.0], 1e-3, 2000.0)],
)
def test_cosent_is_zero_without_order_and_does_not_overflow(cosines, labels, temperature, expected):
    cosine = torch.tensor(cosines, requires_grad=True)
    loss = build_loss("cosent", SCORE, {"temperature": temperature})(HeadOutput(cosine, cosine), torch.tensor(labels))
    loss.backward()
    assert loss.item() == pytest.approx(expected) and cosine.grad.isfinite().all()
    assert expected or not cosine.grad.any()


def ranking(vectors, labels, texts=None, **options):
    output = HeadOutput(vectors[0], vectors=tuple(vectors), texts=texts)
    return build_loss("multiple_negatives_ranking", BINARY, options)(output, torch.tensor(labels))


def test_multiple_negatives_ranking_matches_sentence_transformers():
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    peer, sides = losses.MultipleNegativesRankingLoss(None), list(VECTORS.float())  # the scale is 20 there too
    forward, backward = (peer.compute_loss_from_embeddings(both, None).item() for both in (sides, sides[::-1]))
    assert ranking(sides, [1.0] * 7, symmetric=False).item() == pytest.approx(forward, rel=1e-5)
    assert ranking(sides, [1.0] * 7).item() == pytest.approx((forward + backward) / 2, rel=1e-5)


def test_equal_texts_are_no_negatives_and_no_pairs_give_no_loss():
    """Rows 2 and 4 share texts with row 0, hard pair 3 is one text twice: the sum by hand is over rows 0, 1 and 4."""
    texts = torch.tensor([[0, 1], [2, 3], [4, 1], [5, 5], [0, 6]])
    labels, (u, v) = [1.0, 1, 0, 0, 1], F.normalize(VECTORS[:, :5].float(), dim=2)
    e = (u @ v.T / 0.05).exp()
    negatives = {0: [1, 3], 1: [0, 2, 3, 4], 4: [1, 3]}
    by_hand = sum(-(e[i, i] / (e[i, i] + e[i, j].sum() + e[2, 2])).log() for i, j in negatives.items()) / 3
    assert ranking((u, v), labels, texts, symmetric=False).item() == pytest.approx(by_hand.item(), rel=1e-5)
    vectors = VECTORS.float().requires_grad_()
    loss = ranking(vectors, [0.0] * 7)
    loss.backward()
    assert loss.item() == 0 and not vectors.grad.any()


def test_class_weights_of_absent_classes_and_single_class_batches():
    assert inverse_frequency([4, 0, 2]).tolist() == [0.75, 0.0, 1.5]
    assert weighted_mean(torch.tensor([1.0, 3.0]), torch.ones(2), torch.tensor([9.0, 0.5])).item() == 1.0


# Errors


@pytest.mark.parametrize("name", [name for name in LOSSES if name.startswith(COSINE)])
def test_cosine_losses_need_a_head_with_a_cosine(name):
    with pytest.raises(ValueError, match="head cosine, for pairs with encoding bi, does"):
        build_loss(name, SCORE, {})(HeadOutput(torch.zeros(7, 1)), LABELS[SCORE])


@pytest.mark.parametrize("threshold", [1.0, 6.1])
def test_threshold_that_leaves_one_side_empty_is_an_error(threshold):
    loss = build_loss("cosine_embedding", SCORE, {"threshold": threshold})
    with pytest.raises(ValueError, match="threshold: expected a label above 1 and at most 6"):
        loss(HeadOutput(torch.zeros(7, 1), torch.zeros(7)), LABELS[SCORE])


@pytest.mark.parametrize(
    ("name", "target", "options", "message"),
    [
        ("mse", BINARY, {}, "loss mse does not fit target binary: expected bce or"),
        ("bce", BINARY, {"alpha": 1}, "alpha: unknown option of loss bce; known here: class_weights"),
        ("cross_entropy", ORDERED, {"label_smoothing": 1.0}, "label_smoothing: expected a number less than 1"),
        ("dual_objective", ORDERED, {"reduction": "none"}, "reduction: expected sum or mean, found"),
        ("ordinal_log_loss", ORDERED, {"alpha": math.nan}, "alpha: expected a number, found nan"),
        ("cosent", BINARY, {"temperature": 0}, "temperature: expected a number greater than 0, found 0"),
    ],
)
def test_unknown_combinations_and_options_are_an_error(name, target, options, message):
    with pytest.raises(ValueError, match=message):
        build_loss(name, target, options)
