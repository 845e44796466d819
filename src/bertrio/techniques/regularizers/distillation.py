"""Distillation: `(outputs [B, size], taught) -> scalar`, how far a model's outputs are from what a teacher says.

What is taught has no gradient: probabilities [B, C] that sum to 1, or scores [B, 1]. All are at least 0, exactly or but
for rounding 0 where the model says the same, means over rows, and float32 whatever goes in.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Distillation = Callable[[Tensor, Tensor], Tensor]


def categorical(outputs: Tensor, taught: Tensor) -> Tensor:
    r"""KL divergence of the model's distribution over classes from the teacher's.

    .. math:: \frac{1}{B} \sum_b KL(t_b \| q_b) = \frac{1}{B} \sum_b \sum_c t_{bc} (\log t_{bc} - \log q_{bc})

    Hinton et al. 2015, "Distilling the Knowledge in a Neural Network", section 2, at temperature 1: what is taught are
    probabilities, which an ensemble has softened already. Their cross entropy differs by the teacher's entropy, a
    constant. Its gradient for the logits is (q - t) / B.

    Args:
        outputs: [B, C], logits of q.
        taught: [B, C], t.

    Raises:
        ValueError: if the shapes differ.
    """
    _check("categorical", outputs, taught)
    taught = taught.float()
    return (torch.xlogy(taught, taught) - taught * outputs.float().log_softmax(dim=-1)).sum(dim=-1).mean()


def bernoulli(outputs: Tensor, taught: Tensor) -> Tensor:
    r"""The same for one logit u of yes: :math:`q = (1 - \sigma(u), \sigma(u))`.

    Args:
        outputs: [B, 1], logits of yes; or [B, 2], logits (no, yes).
        taught: [B, 2], probabilities of no and yes.

    Raises:
        ValueError: if the shapes do not fit.
    """
    if outputs.ndim == 2 and outputs.shape[1] == 1:
        outputs = torch.cat([torch.zeros_like(outputs), outputs], dim=1)
    return categorical(outputs, taught)


def squared(outputs: Tensor, taught: Tensor) -> Tensor:
    r"""Squared difference from the teacher's score.

    .. math:: \frac{1}{B} \sum_b (u_b - t_b)^2

    Args:
        outputs: [B, 1], scores in the units of the labels.
        taught: of the same shape.

    Raises:
        ValueError: if the shapes differ.
    """
    _check("squared", outputs, taught)
    return (outputs.float() - taught.float()).square().mean()


# By the name of the target's divergence
DISTILLATIONS: dict[str, Distillation] = {"categorical": categorical, "bernoulli": bernoulli, "squared": squared}


def _check(name: str, outputs: Tensor, taught: Tensor) -> None:
    """Broadcasting would compare each row with all others without a word."""
    if outputs.ndim != 2 or outputs.shape != taught.shape:
        raise ValueError(
            f"{name}: outputs and what is taught must both be [B, size], got {list(outputs.shape)} and "
            f"{list(taught.shape)}"
        )
