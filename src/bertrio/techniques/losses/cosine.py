"""Losses on the raw cosine of two sentence embeddings.

They train the cosine only: what a head computes from it, such as a learnt scale, gets no gradient.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from bertrio.core.options import Positive, Real
from bertrio.core.tasks import HeadOutput

T = TypeVar("T")


def cosine_mse(output: HeadOutput, labels: Tensor, *, low: float, high: float) -> Tensor:
    r"""Mean squared error of the cosine against the label mapped from [low, high] to [0, 1].

    .. math:: L = \frac{1}{B} \sum_b \left( \cos_b - \frac{y_b - low}{high - low} \right)^2

    The regression objective of Reimers and Gurevych 2019, "Sentence-BERT", section 3. The least similar pairs are
    trained towards a cosine of 0, not of -1.

    Args:
        output: `cosine` [B], from -1 to 1.
        labels: [B], from `low` to `high`, float32.
        low: the lowest label.
        high: the highest label.

    Raises:
        ValueError: if the head gives no cosine.
    """
    return F.mse_loss(_cosine(output, "cosine_mse"), (labels.float() - low) / (high - low))


def cosine_embedding(
    output: HeadOutput,
    labels: Tensor,
    *,
    threshold: Real | None = None,
    margin: Annotated[Real, Field(ge=-1, lt=1)] = 0.0,
    low: float,
    high: float,
) -> Tensor:
    r"""Cosine embedding loss: pairs with a label of at least the threshold attract, others repel up to the margin.

    .. math::
        L = \frac{1}{B} \sum_b \begin{cases} 1 - \cos_b & y_b \ge t \\ \max(0, \cos_b - m) & y_b < t \end{cases}

    `torch.nn.CosineEmbeddingLoss` with labels thresholded to +1 and -1, as in "BERT With Multitask Fine-Tuning and Loss
    Construction", section 4.2.1, which does not name its threshold.

    Args:
        output: `cosine` [B], from -1 to 1.
        labels: [B], from `low` to `high`, float32.
        threshold: t, on the labels' scale, above `low` and at most `high`; None: their mean.
        margin: m, the cosine below which dissimilar pairs have no loss, from -1 to below 1.
        low: the lowest label.
        high: the highest label.

    Raises:
        ValueError: if `threshold` is out of its range, or the head gives no cosine.
    """
    similar = at_least(labels, threshold, low, high)
    cosine = _cosine(output, "cosine_embedding")
    return torch.where(similar, 1 - cosine, (cosine - margin).clamp(min=0)).mean()


def cosent(output: HeadOutput, labels: Tensor, *, temperature: Positive = 0.05) -> Tensor:
    r"""CoSENT: ranking loss over the pairs of a batch, by which larger labels get larger cosines.

    .. math:: L = \log \Big( 1 + \sum_{i, j:\ y_i > y_j} \exp \frac{\cos_j - \cos_i}{\tau} \Big)

    Su 2022, "CoSENT", https://kexue.fm/archives/8847; the default is the scale of 20 that it and the
    sentence-transformers library use. Only the order of the labels matters, so no score range is needed.

    Args:
        output: `cosine` [B], from -1 to 1.
        labels: [B], float32.
        temperature: tau, above 0. The smaller it is, the more the worst-ranked pairs dominate.

    Returns:
        Scalar, at least 0, which is not a mean over rows: it grows with the log of their number. It is 0, with zero
        gradient, if all labels are equal.

    Raises:
        ValueError: if the head gives no cosine.
    """
    cosine = _cosine(output, "cosent") / temperature
    ordered = labels.unsqueeze(1) > labels.unsqueeze(0)  # [B, B]: row i has the larger label
    excess = (cosine.unsqueeze(0) - cosine.unsqueeze(1)).masked_fill(~ordered, -torch.inf)
    return torch.cat((excess.new_zeros(1), excess.flatten())).logsumexp(dim=0)  # the 0 is the log of the 1


def at_least(labels: Tensor, threshold: float | None, low: float, high: float) -> Tensor:
    """Return which labels [B] reach the threshold; None: the mean of `low` and `high`.

    Raises:
        ValueError: if no label, or every label, could reach it.
    """
    if threshold is None:
        threshold = (low + high) / 2
    if not low < threshold <= high:
        raise ValueError(f"loss_options.threshold: expected a label above {low} and at most {high}, found {threshold}")
    return labels.float() >= threshold


def require(value: T | None, loss: str) -> T:
    """Return the cosine, or the vectors, of a head's output.

    Raises:
        ValueError: if the head gives none.
    """
    if value is None:
        raise ValueError(
            f"{loss}: expected a head that gives the raw cosine of two sentences, found one that gives none; "
            "head cosine, for pairs with encoding bi, does"
        )
    return value


def _cosine(output: HeadOutput, loss: str) -> Tensor:
    """Return the cosine [B] in float32."""
    return require(output.cosine, loss).float()
