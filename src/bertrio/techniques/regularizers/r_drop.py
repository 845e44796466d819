"""R-Drop: keep outputs independent of the dropout mask."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from bertrio.core.options import NotNegative
from bertrio.techniques.regularizers.base import ForwardContext, Regularizer, RegularizerOptions


class RDropOptions(RegularizerOptions):
    """The `r_drop` block."""

    weight: NotNegative = Field(alias="alpha")


class RDrop(Regularizer):
    r"""Half the symmetric divergence of two passes over the same rows with different dropout masks.

    .. math:: \frac{1}{2B} \sum_b KL(P_b \| Q_b) + KL(Q_b \| P_b)

    Liang et al. 2021, "R-Drop: Regularized Dropout for Neural Networks", section 2, eq. 2. For scores, which the paper
    does not treat, half the squared difference. Gradients flow to both passes.

    Departs from the paper: its eq. 3 sums the losses of both passes, whereas here only the first pass has a loss. The
    cost is the same, but the loss keeps its scale, so that learning rates and task weights mean the same with and
    without the penalty. The paper's alpha is twice the weight here.
    """

    Options = RDropOptions

    def __call__(self, context: ForwardContext) -> Tensor:
        return 0.5 * context.divergence(context.outputs, context.with_new_dropout())
