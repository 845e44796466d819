"""Losses: `(outputs [B, size], labels [B]) -> scalar`, the mean over rows, in float32. None sees the model."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional as F


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    r"""Softmax cross entropy over classes.

    .. math:: L = -\frac{1}{B} \sum_b \log \mathrm{softmax}(o_b)_{y_b}

    Args:
        outputs: [B, C] logits.
        labels: [B] class indices, int64.
    """
    return F.cross_entropy(outputs.float(), labels)


def bce(outputs: Tensor, labels: Tensor) -> Tensor:
    r"""Binary cross entropy of one logit.

    .. math:: L = -\frac{1}{B} \sum_b y_b \log \sigma(o_b) + (1 - y_b) \log (1 - \sigma(o_b))

    Args:
        outputs: [B, 1] logits.
        labels: [B], 0 or 1, float32.
    """
    return F.binary_cross_entropy_with_logits(outputs.float().squeeze(-1), labels)


def mse(outputs: Tensor, labels: Tensor) -> Tensor:
    r"""Mean squared error on the labels' own scale.

    .. math:: L = \frac{1}{B} \sum_b (o_b - y_b)^2

    Args:
        outputs: [B, 1] scores.
        labels: [B], float32.
    """
    return F.mse_loss(outputs.float().squeeze(-1), labels)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"cross_entropy": cross_entropy, "bce": bce, "mse": mse}
