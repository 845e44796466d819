"""Divergences: `(outputs [B, size], others [B, size]) -> scalar`, the distance between two outputs for the same rows.

All are symmetric, at least 0, exactly 0 for equal outputs, means over rows, and computed in float32. Gradients flow to
both sides. Detaching one, as public code does for SMART, halves the gradient if both come from one model.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

Divergence = Callable[[Tensor, Tensor], Tensor]


def categorical(outputs: Tensor, others: Tensor) -> Tensor:
    r"""Symmetric KL divergence of two distributions over classes.

    .. math:: \frac{1}{B} \sum_b KL(P_b \| Q_b) + KL(Q_b \| P_b)
              = \frac{1}{B} \sum_b \sum_c (p_{bc} - q_{bc}) (\log p_{bc} - \log q_{bc})

    Jiang et al. 2020, "SMART", section 3.1, :math:`\ell_s` for classification. Computed by the right side, which is
    exactly 0 for P = Q and finite if a probability rounds to 0.

    Args:
        outputs: [B, C], logits of P.
        others: [B, C], logits of Q.
    """
    log_p, log_q = outputs.float().log_softmax(dim=-1), others.float().log_softmax(dim=-1)
    return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(dim=-1).mean()


def bernoulli(outputs: Tensor, others: Tensor) -> Tensor:
    r"""Symmetric KL divergence of two Bernoulli distributions.

    .. math:: \frac{1}{B} \sum_b KL(P_b \| Q_b) + KL(Q_b \| P_b)
              = \frac{1}{B} \sum_b (\sigma(u_b) - \sigma(v_b)) (u_b - v_b)

    for the logits u and v of P and Q. Jiang et al. 2020, "SMART", section 3.1, :math:`\ell_s` for the two outcomes of
    a sigmoid; softmax over a single logit would be constant.

    Args:
        outputs: [B, 1], logits of yes; or [B, 2], logits of no and yes, whose difference is used; this
            equals `categorical`.
        others: of the same shape.
    """
    u, v = _logit(outputs.float()), _logit(others.float())
    return ((u.sigmoid() - v.sigmoid()) * (u - v)).mean()


def bernoullis(outputs: Tensor, others: Tensor) -> Tensor:
    r"""Symmetric KL divergence of the distributions of C independent classes: the sum of `bernoulli` over them.

    .. math:: \frac{1}{B} \sum_b \sum_c (\sigma(u_{bc}) - \sigma(v_{bc})) (u_{bc} - v_{bc})

    The divergence of products of distributions is the sum of theirs (Cover and Thomas 2006, "Elements of Information
    Theory", theorem 2.5.3).

    Args:
        outputs: [B, C], logits of the classes.
        others: of the same shape.
    """
    u, v = outputs.float(), others.float()
    return ((u.sigmoid() - v.sigmoid()) * (u - v)).sum(dim=-1).mean()


def squared(outputs: Tensor, others: Tensor) -> Tensor:
    r"""Squared difference of two scores.

    .. math:: \frac{1}{B} \sum_b (u_b - v_b)^2

    Jiang et al. 2020, "SMART", section 3.1, :math:`\ell_s` for regression.

    Args:
        outputs: [B, 1], scores in the units of the labels.
        others: of the same shape.
    """
    return (outputs.float() - others.float()).square().mean()


DIVERGENCES: dict[str, Divergence] = {one.__name__: one for one in (categorical, bernoulli, bernoullis, squared)}


def _logit(outputs: Tensor) -> Tensor:
    """Return the logit of yes, [B], from outputs [B, 1] or from logits of no and yes, [B, 2]."""
    return outputs[:, 1] - outputs[:, 0] if outputs.shape[1] == 2 else outputs[:, 0]
