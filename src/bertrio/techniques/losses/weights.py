"""Class weights: weights of rows by their label."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def inverse_frequency(counts: Sequence[int]) -> Tensor:
    r"""Class weights inversely proportional to class frequency.

    .. math:: w_c = \frac{N}{C \, n_c}

    King and Zeng 2001, "Logistic Regression in Rare Events Data", in the form that scikit-learn names `balanced`:
    N is the number of rows and C the number of classes with rows. The mean of the weights over the N rows is 1.

    Args:
        counts: [C], rows by class.

    Returns:
        [C], float32; 0 for classes without rows.
    """
    rows = torch.as_tensor(counts, dtype=torch.float64)
    present = rows > 0
    return torch.where(present, rows.sum() / (present.sum() * rows.clamp(min=1)), 0.0).float()


def weighted_mean(rows: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
    r"""Mean over rows of the losses times the weights of their labels.

    .. math:: L = \frac{1}{B} \sum_b w_{y_b} \, l_b

    The sum is divided by B, not by the sum of the weights as in `torch.nn.CrossEntropyLoss`, which would cancel the
    weights in a batch of one class. The weights of `inverse_frequency` have mean 1 over the training rows, so the loss
    keeps its scale.

    Args:
        rows: [B], losses of the rows; or [B, C], of their classes.
        labels: class indices of the same shape, of any dtype.
        weights: [C], on any device, or None: all 1.
    """
    if weights is None:
        return rows.mean()
    return (rows * weights.to(rows)[labels.long()]).mean()
