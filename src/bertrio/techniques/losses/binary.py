"""Losses for binary targets, and for sets of classes."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from bertrio.core.tasks import HeadOutput
from bertrio.techniques.losses.weights import weighted_mean


def bce(output: HeadOutput, labels: Tensor, *, weights: Tensor | None = None) -> Tensor:
    r"""Binary cross entropy of one logit, or its mean over the logits of C classes.

    .. math:: L = -\frac{1}{B} \sum_b w_{y_b} \left( y_b \log \sigma(o_b) + (1 - y_b) \log (1 - \sigma(o_b)) \right)

    The negative log-likelihood of logistic regression: Bishop 2006, "Pattern Recognition and Machine Learning",
    eq. 4.90.

    Args:
        output: `outputs` [B, 1], logits of yes; or [B, C].
        labels: [B], 0 or 1, float32; or [B, C].
        weights: [2], of no and yes (`weighted_mean`).
    """
    logits = output.outputs.float().view_as(labels)
    rows = F.binary_cross_entropy_with_logits(logits, labels.float(), reduction="none")
    return weighted_mean(rows, labels, weights)


def siamese_softmax(output: HeadOutput, labels: Tensor, *, weights: Tensor | None = None) -> Tensor:
    r"""Softmax cross entropy over two logits, no and yes.

    .. math:: L = -\frac{1}{B} \sum_b w_{y_b} \log \mathrm{softmax}(o_b)_{y_b}

    Equals `bce` of the logit o_yes - o_no. The classification objective of Reimers and Gurevych 2019, "Sentence-BERT",
    section 3, o = softmax(W [u; v; |u - v|]), as used for paraphrases in "BERT With Multitask Fine-Tuning and Loss
    Construction", section 4.2.1.

    Args:
        output: `outputs` [B, 2], logits of no and yes.
        labels: [B], 0 or 1, float32.
        weights: [2], of no and yes (`weighted_mean`).
    """
    rows = F.cross_entropy(output.outputs.float(), labels.long(), reduction="none")
    return weighted_mean(rows, labels, weights)
