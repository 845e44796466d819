"""Bregman proximal point method of SMART: keep outputs near those of a moving average of the model."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from torch import Tensor, nn

from bertrio.core.options import NotNegative, Share
from bertrio.techniques.regularizers.base import ForwardContext, Regularizer, RegularizerOptions, RunSetup
from bertrio.techniques.regularizers.moving_average import moving_average


class BregmanOptions(RegularizerOptions):
    """The `bregman` block.

    Attributes:
        momentum: beta.
        late_momentum: beta after the first tenth of the updates; None for `momentum` throughout. The paper uses 0.99
            and then 0.999.
    """

    weight: NotNegative = Field(alias="mu")
    momentum: Share
    late_momentum: Share | None


class Bregman(Regularizer):
    r"""Momentum Bregman proximal point method: divergence of a model's outputs from those of its moving average.

    .. math:: D_{Breg}(\theta, \tilde\theta) = \frac{1}{B} \sum_b \ell_s(f(x_b; \theta), f(x_b; \tilde\theta)), \qquad
              \tilde\theta \leftarrow \beta \tilde\theta + (1 - \beta) \theta

    Jiang et al. 2020, "SMART", section 3.2 and the last line of Algorithm 1 (MBPP). The teacher, `teacher.module`, is
    an averaged copy of the whole model with its heads. It uses the dropout masks of the clean pass, since otherwise the
    penalty would not be 0 for equal weights. It stays in the mode (training or evaluation) that the model had when it
    was copied. Gradients flow to the model's outputs only.

    Departs from the paper: one update of the model for each proximal point (S = 1 in Algorithm 1). With momentum 0, the
    paper's method without momentum, the teacher therefore equals the model and the penalty is 0.
    """

    Options = BregmanOptions
    options: BregmanOptions

    def __init__(self, options: BregmanOptions, setup: RunSetup) -> None:
        super().__init__(options, setup)
        self._step, self._total_steps = 1, setup.total_steps
        self.teacher = moving_average(setup.model, self._momentum)

    def __call__(self, context: ForwardContext) -> Tensor:
        return context.divergence(context.outputs, context.outputs_of(self.teacher.module))

    def after_step(self, model: nn.Module, step: int) -> None:
        """Move the teacher."""
        self._step = step
        self.teacher.update_parameters(model)

    def _momentum(self) -> float:
        late = self.options.late_momentum
        return self.options.momentum if late is None or 10 * self._step <= self._total_steps else late

    def state_dict(self) -> dict[str, Any]:
        return self.teacher.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.teacher.load_state_dict(state)
