"""Loss with in-batch negatives, on the vectors whose cosine a head gives."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from bertrio.core.options import Positive, Real
from bertrio.core.tasks import HeadOutput
from bertrio.techniques.losses.cosine import at_least, require


def multiple_negatives_ranking(
    output: HeadOutput,
    labels: Tensor,
    *,
    temperature: Positive = 0.05,
    symmetric: bool = True,
    threshold: Real | None = None,
    low: float,
    high: float,
) -> Tensor:
    r"""Multiple negatives ranking: each text finds its partner among the other rows' texts, by softmax of the cosines.

    .. math::
        L = -\frac{1}{|P|} \sum_{i \in P} \log \frac{e^{s_{ii}}}
        {e^{s_{ii}} + \sum_{j \in N_i} e^{s_{ij}} + \sum_{k \notin P} e^{s_{kk}}}, \quad s_{ij} = \cos(u_i, v_j) / \tau

    P are the pairs with a label of at least the threshold, and N_i the other rows. The pairs below the threshold are
    hard negatives: they give second texts to N_i, and their own cosine is one more negative of every i. The symmetric
    loss is the mean of this and of the same with u and v swapped. Henderson et al. 2017, "Efficient Natural Language
    Response Suggestion for Smart Reply", section 4.4; both directions: Radford et al. 2021, "Learning Transferable
    Visual Models From Natural Language Supervision", section 2.3. The default is the scale of 20 of
    sentence-transformers, whose loss this is for different texts and pairs that are all in P.

    Departs from the paper: v_j is left out of N_i if it is the text of u_i or v_i, or makes a pair of P with u_i
    elsewhere in the batch; a pair of twice the same text is no hard negative.

    Args:
        output: `vectors`, two of [B, H]; `texts` [B, 2], or None: no two are equal.
        labels: [B], from `low` to `high`, float32.
        temperature: tau, above 0. The smaller it is, the more the hardest negatives dominate.
        symmetric: whether the second texts look for the first ones as well.
        threshold: on the labels' scale, above `low` and at most `high`; None: their mean.
        low: the lowest label.
        high: the highest label.

    Returns:
        Scalar, at least 0, which is not a mean over rows: it grows with the log of their number. It is 0, with zero
        gradient, for a batch without a pair in P.

    Raises:
        ValueError: if `threshold` is out of its range, or the head gives no vectors.
    """
    similar = at_least(labels, threshold, low, high)
    u, v = (F.normalize(side.float(), dim=1) for side in require(output.vectors, "multiple_negatives_ranking"))
    with torch.autocast(u.device.type, enabled=False):
        scores = u @ v.T / temperature
    first, second = torch.arange(2 * len(u), device=u.device).chunk(2) if output.texts is None else output.texts.T
    same_u, same_v = first[:, None] == first, second[:, None] == second
    partners = (same_u & similar).float() @ same_v.float() > 0  # [B, B]: u_i and v_j are a pair of P
    negative = ~partners & (first[:, None] != second)
    own = torch.eye(len(u), dtype=torch.bool, device=u.device)
    candidates = scores.masked_fill(~(negative | own), -torch.inf)
    hard = scores.diagonal().masked_fill(~negative.diagonal(), -torch.inf).expand_as(scores)
    sides = (candidates, candidates.T) if symmetric else (candidates,)
    rows = [torch.cat((side, hard), dim=1).logsumexp(dim=1) - scores.diagonal() for side in sides]
    return torch.stack(rows).mean(dim=0)[similar].sum() / similar.sum().clamp(min=1)
