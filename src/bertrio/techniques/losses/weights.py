"""Class weights: how much a row counts, by its label."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def inverse_frequency(counts: Sequence[int]) -> Tensor:
    r"""Weights by which every class counts the same, however many rows it has.

    .. math:: w_c = \frac{N}{C \, n_c}

    King and Zeng 2001, "Logistic Regression in Rare Events Data", in the form that scikit-learn names `balanced`:
    N is the number of rows and C that of the classes that have any. The mean of the weights over those N rows is 1.

    Args:
        counts: [C], rows by class.

    Returns:
        [C], float32; 0 for classes without rows.
    """
    rows = torch.as_tensor(counts, dtype=torch.float64)
    present = rows > 0
    return torch.where(present, rows.sum() / (present.sum() * rows.clamp(min=1)), 0.0).float()


def weighted_mean(rows: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
    r"""The mean over rows, each multiplied by the weight of its label.

    .. math:: L = \frac{1}{B} \sum_b w_{y_b} \, l_b

    The sum is divided by B and not by the sum of the weights, as `torch.nn.CrossEntropyLoss` does: that would take
    the weights back out of a batch of one class, and the weights of `inverse_frequency` keep the loss on its scale
    without it, as their mean over the training rows is 1.

    Args:
        rows: [B], the loss of each row.
        labels: [B], class indices, of any dtype.
        weights: [C], on any device, or None: all 1.
    """
    if weights is None:
        return rows.mean()
    return (rows * weights.to(rows)[labels.long()]).mean()
