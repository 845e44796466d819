"""SMART's second half: outputs must stay near those of a moving average of the model."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from bertrio.techniques.regularizers.divergences import Divergence
from bertrio.techniques.regularizers.moving_average import MovingAverage


class Bregman:
    r"""Momentum Bregman proximal point method: keeps a model's outputs near those of its own moving average.

    .. math:: D_{Breg}(\theta, \tilde\theta) = \frac{1}{B} \sum_b \ell_s(f(x_b; \theta), f(x_b; \tilde\theta)), \qquad
              \tilde\theta \leftarrow \beta \tilde\theta + (1 - \beta) \theta

    Jiang et al. 2020, "SMART", section 3.2 and the last line of Algorithm 1; its MBPP. The weight of the penalty, the
    paper's mu, is the caller's. `teacher.model` is the averaged copy of the whole model, heads too. To be called with
    its dropout masks equal to the model's: else an equal teacher is penalised. (A copy of a model in training is in
    training as well, and does not follow later calls of the model's `train` and `eval`.)

    Departs from the paper: one update of the model for each proximal point (S = 1 in Algorithm 1), so that momentum 0,
    the paper's method without momentum, makes a teacher equal to the model, and no penalty at all.

    Args:
        model: as it is before the first update.
        momentum: beta, 0 to 1.
        late_momentum: beta after the first tenth of the updates; None for `momentum` throughout. The paper's
            implementation details have 0.99 and then 0.999.
        total_steps: updates of the run, at least 1.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(self, model: nn.Module, momentum: float, late_momentum: float | None, total_steps: int) -> None:
        for name, value in (("momentum", momentum), ("late_momentum", late_momentum)):
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"Bregman: {name} must be from 0 to 1, got {value}")
        if total_steps < 1:
            raise ValueError(f"Bregman: total_steps must be at least 1, got {total_steps}")
        self.teacher = MovingAverage(model)
        self.momentum, self.total_steps = momentum, total_steps
        self.late_momentum = momentum if late_momentum is None else late_momentum

    def momentum_at(self, step: int) -> float:
        """Beta after update number `step`, counted from 1."""
        return self.momentum if 10 * step <= self.total_steps else self.late_momentum

    def update(self, model: nn.Module, step: int) -> None:
        """Moves the teacher, after update number `step`, counted from 1."""
        self.teacher.update(model, self.momentum_at(step))

    def __call__(self, teacher_outputs: Tensor, outputs: Tensor, divergence: Divergence) -> Tensor:
        """The penalty, in float32 and at least 0, for outputs [B, size] for the same rows: what `divergence` gives, a
        scalar or one for each of several batches.

        The gradient reaches `outputs` alone. `divergence` is that of the task's target.
        """
        return divergence(outputs, teacher_outputs.detach())

    def state_dict(self) -> dict[str, Any]:
        """The teacher's weights, for a checkpoint."""
        return self.teacher.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave."""
        self.teacher.load_state_dict(state)
