"""Losses for class targets."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from bertrio.core.options import Positive, Rate
from bertrio.core.tasks import HeadOutput
from bertrio.techniques.losses.weights import weighted_mean


def cross_entropy(
    output: HeadOutput, labels: Tensor, *, label_smoothing: Rate = 0.0, weights: Tensor | None = None
) -> Tensor:
    r"""Softmax cross entropy, with optional label smoothing.

    .. math::
        L = -\frac{1}{B} \sum_b w_{y_b} \sum_c q_{bc} \log \mathrm{softmax}(o_b)_c, \quad
        q_{bc} = (1 - \epsilon) [c = y_b] + \frac{\epsilon}{C}

    Smoothing: Szegedy et al. 2016, "Rethinking the Inception Architecture for Computer Vision", section 7.

    Args:
        output: `outputs` [B, C], logits.
        labels: [B], class indices, int64.
        label_smoothing: epsilon, from 0 to below 1.
        weights: [C], of the rows' labels (`weighted_mean`); the smoothed part of a row has its row's weight.
    """
    logits = output.outputs.float()
    rows = F.cross_entropy(logits, labels, reduction="none", label_smoothing=label_smoothing)
    return weighted_mean(rows, labels, weights)


def dual_objective(
    output: HeadOutput, labels: Tensor, *, reduction: Literal["sum", "mean"] = "sum", weights: Tensor | None = None
) -> Tensor:
    r"""One-versus-all binary cross entropy: each class is a binary target.

    .. math::
        L = -\frac{1}{B} \sum_b w_{y_b} \sum_c y_{bc} \log \sigma(o_{bc}) + (1 - y_{bc}) \log (1 - \sigma(o_{bc}))

    with y_{bc} = 1 for the gold class and 0 for others. "BERT and Beyond: A Study of Multitask Learning Strategies for
    NLP", section 3.3. Its formula sums over classes and its text averages; they differ by the factor C.

    Args:
        output: `outputs` [B, C], logits.
        labels: [B], class indices, int64.
        reduction: over classes: `sum`, as in the formula, or `mean`, as in the text.
        weights: [C], of the rows' labels (`weighted_mean`).
    """
    logits = output.outputs.float()
    gold = F.one_hot(labels, logits.shape[1]).float()
    rows = F.binary_cross_entropy_with_logits(logits, gold, reduction="none").sum(dim=1)
    loss = weighted_mean(rows, labels, weights)
    return loss if reduction == "sum" else loss / logits.shape[1]


def ordinal_log_loss(
    output: HeadOutput, labels: Tensor, *, alpha: Positive = 1.5, weights: Tensor | None = None
) -> Tensor:
    r"""Ordinal log-loss: penalty of each class's probability by its distance from the gold class.

    .. math::
        L = -\frac{1}{B} \sum_b w_{y_b} \sum_c \log (1 - p_{bc}) \, |y_b - c|^\alpha, \quad
        p_b = \mathrm{softmax}(o_b)

    The gold class has distance 0 and no term: its probability rises because the others fall.
    Castagnos et al. 2022, "A Simple Log-based Loss Function for Ordinal Text Classification" (OLL-alpha); the
    distance of two classes is the difference of their indices.

    Args:
        output: `outputs` [B, C], logits; neighbouring classes have neighbouring indices.
        labels: [B], class indices, int64.
        alpha: exponent of the distance, above 0. The larger it is, the more distant classes cost
            compared to near ones.
        weights: [C], of the rows' labels (`weighted_mean`).

    Departs from the paper in form only: p is the sigmoid of the margin of a class's logit over the log-sum-exp of the
    others, so log(1 - p) is the log-sigmoid of the negative margin, which is finite even if p rounds to 1.
    """
    logits = output.outputs.float()
    classes = torch.arange(logits.shape[1], device=logits.device)
    diagonal = classes.unsqueeze(0) == classes.unsqueeze(1)
    others = logits.unsqueeze(1).masked_fill(diagonal, -torch.inf).logsumexp(dim=2)  # [B, C], without the class itself
    distance = (classes - labels.unsqueeze(1)).abs().float() ** alpha
    rows = -(F.logsigmoid(others - logits) * distance).sum(dim=1)
    return weighted_mean(rows, labels, weights)
