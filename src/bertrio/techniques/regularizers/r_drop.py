"""R-Drop: outputs must not depend on the dropout mask."""

from __future__ import annotations

from torch import Tensor

from bertrio.techniques.regularizers.divergences import Divergence


def r_drop(outputs: Tensor, second: Tensor, divergence: Divergence) -> Tensor:
    r"""Half the symmetric divergence of two passes over the same rows with different dropout masks.

    .. math:: \frac{1}{2B} \sum_b KL(P_b \| Q_b) + KL(Q_b \| P_b)

    Liang et al. 2021, "R-Drop: Regularized Dropout for Neural Networks", section 2, eq. 2. For scores it is half the
    squared difference, which the paper does not have.

    Args:
        outputs: [B, size], of the pass that the task's loss sees.
        second: [B, size], of the other pass. Gradients flow to both.
        divergence: of the task's target.

    Returns:
        What `divergence` gives, a scalar or one for each of several batches, in float32; at least 0, and 0 with dropout
        off.

    Departs from the paper: its eq. 3 sums the task's losses of both passes, whereas this penalty is meant to stand
    beside the first pass's loss alone. That saves nothing, but the loss keeps its scale, so that a learning rate and
    the weights of tasks mean the same with the penalty and without; the paper's alpha is twice the strength here.
    """
    return 0.5 * divergence(outputs, second)
