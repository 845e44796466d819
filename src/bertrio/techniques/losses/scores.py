"""Losses for score targets."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from bertrio.core.tasks import HeadOutput

FLAT = 1e-6  # a spread below this share of the values is rounding of their float32 mean, not variance


def mse(
    output: HeadOutput, labels: Tensor, *, scale: Literal["raw", "unit"] = "raw", low: float, high: float
) -> Tensor:
    r"""Mean squared error, on the scale of the labels or scaled to a range of length 1.

    .. math:: L = \frac{1}{B} \sum_b \left( \frac{o_b - y_b}{s} \right)^2

    with s = 1 for the raw scale and s = high - low for the unit scale: both sides mapped from [low, high] to [0, 1].
    The unit scale divides the loss, by 25 for scores from 0 to 5, like a task weight of 1/25.

    The STS objective of "BERT++: Trustworthy MultiTask Learning with BERT", section 4.3.3.

    Args:
        output: `outputs` [B, 1], scores on the labels' scale.
        labels: [B], from `low` to `high`, float32.
        scale: `raw` or `unit`.
        low: the lowest score.
        high: the highest score.
    """
    length = high - low if scale == "unit" else 1.0
    return F.mse_loss(output.outputs.float().squeeze(1) / length, labels.float() / length)


def pearson(output: HeadOutput, labels: Tensor, *, low: float, high: float) -> Tensor:
    r"""One minus Pearson's correlation of the scores with the labels of the batch, plus errors of mean and spread.

    .. math:: L = 1 - r + \frac{(\bar o - \bar y)^2 + (s_o - s_y)^2}{(high - low)^2}, \quad
        r = \frac{\sum_b (o_b - \bar o)(y_b - \bar y)}{B s_o s_y}

    with the standard deviations s of the batch, divided by B. Pearson 1895, "Notes on Regression and Inheritance in the
    Case of Two Parents". The correlation trains the metric itself, but neither mean nor spread, so that clipping to the
    range would lose rows. The second term trains just these; it is the rest of the squared error, which by Murphy 1988,
    "Skill Scores Based on the Mean Square Error", equation 9, is the sum of its numerator and 2 s_o s_y (1 - r). The
    larger the batch, the closer r is to the correlation over all rows.

    Args:
        output: `outputs` [B, 1], scores.
        labels: [B], float32.
        low: the lowest score.
        high: the highest score.

    Returns:
        Scalar, 0 or more. If the correlation is not defined, r is 0 with zero gradient: all scores equal, all labels
        equal, or a single row. Two rows have r of 1 or -1, with zero gradient as well.
    """
    scores, labels = output.outputs.float().squeeze(1), labels.float()
    x, y = scores - scores.mean(), labels - labels.mean()
    flat = (x.norm() <= FLAT * scores.norm()) | (y.norm() <= FLAT * labels.norm())
    # `where` differentiates both branches, so the divisor must not be 0 in the unused one
    spread = torch.where(flat, 1.0, x.norm() * y.norm())
    r = torch.where(flat, 0.0, (x * y).sum() / spread)
    error = (scores.mean() - labels.mean()) ** 2 + (x.norm() - y.norm()) ** 2 / len(labels)
    return 1 - r + error / (high - low) ** 2
