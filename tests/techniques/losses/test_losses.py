"""What holds for all losses, and how they are built by name."""

import pickle

import pytest
import torch

from bertrio.core.tasks import Binary, Classes, HeadOutput, Ordered, Score, Target
from bertrio.techniques.losses import (
    LOSSES,
    bce,
    build_loss,
    cosine_embedding,
    cosine_mse,
    cross_entropy,
    mse,
    options_of,
)

TARGETS = [Classes(5), Ordered(5), Binary(), Score(1, 6)]
FITTING = [pytest.param(name, target, id=f"{name}-{target}") for target in TARGETS for name in target.losses]


def rows(name: str, target: Target, dtype: torch.dtype = torch.float32) -> tuple[HeadOutput, torch.Tensor]:
    """A head's output for four rows, exact in bfloat16, and their labels."""
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(4, target.outputs_for(name), generator=generator).bfloat16().to(dtype).requires_grad_()
    cosine = torch.tensor([0.5, -0.25, 0.75, -1.0], dtype=dtype, requires_grad=True)
    return HeadOutput(outputs, cosine), torch.tensor([1, 0, 1, 1], dtype=getattr(torch, target.label_dtype))


def test_every_loss_fits_a_target_and_targets_name_no_other():
    assert {name for target in TARGETS for name in target.losses} == set(LOSSES)


@pytest.mark.parametrize(("name", "target"), FITTING)
def test_the_loss_is_one_float32_whatever_the_dtype_of_the_output(name, target):
    loss = build_loss(name, target, {})
    exact, half = loss(*rows(name, target)), loss(*rows(name, target, torch.bfloat16))
    assert half.dtype == torch.float32 and half.shape == ()
    assert torch.equal(half, exact)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(loss(*rows(name, target)), exact)


@pytest.mark.parametrize(("name", "target"), FITTING)
def test_the_gradient_reaches_what_the_loss_reads(name, target):
    output, labels = rows(name, target)
    build_loss(name, target, {})(output, labels).backward()
    reached, other = (output.cosine, output.outputs) if name.startswith("cos") else (output.outputs, output.cosine)
    assert reached.grad.isfinite().all() and reached.grad.any()
    assert other.grad is None


@pytest.mark.parametrize(("name", "target"), FITTING)
def test_the_order_of_rows_does_not_matter(name, target):
    loss, (output, labels) = build_loss(name, target, {}), rows(name, target)
    turned = HeadOutput(output.outputs.flip(0), output.cosine.flip(0))
    torch.testing.assert_close(loss(turned, labels.flip(0)), loss(output, labels))


@pytest.mark.parametrize(("name", "target"), FITTING)
def test_a_built_loss_can_be_pickled(name, target):
    loss = build_loss(name, target, {})
    assert torch.equal(pickle.loads(pickle.dumps(loss))(*rows(name, target)), loss(*rows(name, target)))


def test_options_are_those_that_a_user_gives():
    assert {name: options_of(name) for name in LOSSES} == {
        "cross_entropy": {"label_smoothing", "class_weights"},
        "dual_objective": {"reduction", "class_weights"},
        "ordinal_log_loss": {"alpha", "class_weights"},
        "bce": {"class_weights"},
        "siamese_softmax": {"class_weights"},
        "mse": {"scale"},
        "pearson": set(),
        "cosine_mse": set(),
        "cosine_embedding": {"threshold", "margin"},
        "cosent": {"temperature"},
    }


def test_options_reach_the_loss():
    output, labels = rows("cross_entropy", Classes(5))
    built = build_loss("cross_entropy", Classes(5), {"label_smoothing": 0.2, "class_weights": None})
    assert torch.equal(built(output, labels), cross_entropy(output, labels, label_smoothing=0.2))
    assert not torch.equal(built(output, labels), cross_entropy(output, labels))


def test_the_range_comes_from_the_target():
    output, labels = rows("mse", Score(1, 6))
    assert torch.equal(
        build_loss("mse", Score(1, 6), {"scale": "unit"})(output, labels),
        mse(output, labels, scale="unit", low=1, high=6),
    )
    assert torch.equal(
        build_loss("cosine_mse", Score(1, 6), {})(output, labels), cosine_mse(output, labels, low=1, high=6)
    )
    assert torch.equal(
        build_loss("cosine_embedding", Binary(), {})(output, labels),
        cosine_embedding(output, labels, threshold=1, low=0, high=1),
    )


def test_class_weights_come_from_the_counts():
    output, labels = rows("bce", Binary())
    built = build_loss("bce", Binary(), {"class_weights": "inverse"}, label_counts=[30, 10])
    by_hand = bce(output, labels, weights=torch.tensor([40 / (2 * 30), 40 / (2 * 10)]))
    torch.testing.assert_close(built(output, labels), by_hand)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("name", "target"), FITTING)
def test_a_loss_follows_the_device_of_the_output(name, target):
    weighted = "class_weights" in options_of(name)
    counts = list(range(1, 3 if target == Binary() else 6))
    loss = build_loss(name, target, {"class_weights": "inverse"} if weighted else {}, label_counts=counts)
    output, labels = rows(name, target)
    there = loss(HeadOutput(output.outputs.cuda(), output.cosine.cuda()), labels.cuda())
    assert there.is_cuda
    torch.testing.assert_close(there.cpu(), loss(output, labels))


@pytest.mark.parametrize(
    ("name", "options", "counts", "message"),
    [
        ("hinge", {}, None, "loss: expected 'cross_entropy', .*, found 'hinge'"),
        ("bce", {"alpha": 1}, None, "loss bce: unknown option alpha: expected class_weights"),
        ("cosine_mse", {"class_weights": "inverse"}, [1, 1], "unknown option class_weights: expected no options"),
        ("cosine_mse", {"low": 0}, None, "unknown option low"),
        ("bce", {"weights": torch.ones(2)}, None, "unknown option weights: expected class_weights"),
        ("bce", {"class_weights": "sqrt"}, [1, 1], "class_weights: expected inverse or None, found sqrt"),
        ("bce", {"class_weights": "inverse"}, None, "label_counts: expected the rows of each class"),
        ("bce", {"class_weights": "inverse"}, [1, 1, 1], "weights: expected one for each of 2 classes"),
        ("cosent", {"temperature": 0}, None, "temperature: expected a number above 0, found 0"),
        ("cosine_embedding", {"threshold": 3}, None, "threshold: expected a number above 0.0 and at most 1.0"),
    ],
)
def test_what_cannot_be_built_is_an_error_before_any_training(name, options, counts, message):
    with pytest.raises(ValueError, match=message):
        build_loss(name, Binary(), options, label_counts=counts)
