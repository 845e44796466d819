"""What holds for all losses, and how they are built by name."""

import math

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
    loss_options,
    losses_for,
    mse,
)

TARGETS = [Classes(5), Ordered(5), Binary(), Score(1, 6)]
FITTING = [pytest.param(name, target, id=f"{name}-{target}") for target in TARGETS for name in losses_for(target)]


def rows(name: str, target: Target, dtype: torch.dtype = torch.float32) -> tuple[HeadOutput, torch.Tensor]:
    """A head's output for four rows, exact in bfloat16, and their labels."""
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(4, target.outputs_for(name), generator=generator).bfloat16().to(dtype).requires_grad_()
    cosine = torch.tensor([0.5, -0.25, 0.75, -1.0], dtype=dtype, requires_grad=True)
    return HeadOutput(outputs, cosine), torch.tensor([1, 0, 1, 1], dtype=getattr(torch, target.label_dtype))


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


def test_options_are_those_that_a_user_gives():
    assert {name: set(loss_options(name).model_fields) for name in LOSSES} == {
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


@pytest.mark.parametrize(
    ("name", "target", "options", "message"),
    [
        ("mse", Binary(), {}, "loss mse does not fit target binary: expected bce or"),
        ("bce", Binary(), {"alpha": 1}, "alpha: loss bce has no such option; it takes class_weights"),
        ("cosine_mse", Binary(), {"low": 0}, "low: loss cosine_mse has no such option; it takes none"),
        ("bce", Binary(), {"weights": torch.ones(2)}, "weights: .*it takes class_weights"),
        ("bce", Binary(), {"class_weights": "sqrt"}, "expected one of inverse, found 'sqrt'"),
        ("cross_entropy", Ordered(5), {"label_smoothing": 1.0}, "label_smoothing\n.*less than 1"),
        ("dual_objective", Ordered(5), {"reduction": "none"}, "reduction\n.*'sum' or 'mean'"),
        ("ordinal_log_loss", Ordered(5), {"alpha": 0}, "alpha\n.*greater than 0"),
        ("ordinal_log_loss", Ordered(5), {"alpha": math.nan}, "alpha\n.*finite"),
        ("mse", Score(0, 5), {"scale": "log"}, "scale\n.*'raw' or 'unit'"),
        ("cosine_embedding", Binary(), {"margin": 1.0}, "margin\n.*less than 1"),
        ("cosent", Binary(), {"temperature": 0}, "temperature\n.*greater than 0"),
    ],
)
def test_what_cannot_be_built_is_an_error_before_any_training(name, target, options, message):
    with pytest.raises(ValueError, match=message):
        build_loss(name, target, options)
