"""Distillation: keep outputs near a teacher's predictions."""

from __future__ import annotations

import torch
from torch import Tensor

from bertrio.core.options import InputPath
from bertrio.techniques.regularizers.base import ForwardContext, Regularizer, RegularizerOptions, RunSetup


def teacher_divergence(name: str, outputs: Tensor, teacher: Tensor) -> Tensor:
    r"""Divergence of a model's outputs from a teacher's predictions.

    For classes and binary targets, the KL divergence of the model's distribution q from the teacher's t (Hinton et al.
    2015, "Distilling the Knowledge in a Neural Network", section 2, at temperature 1, as predictions are probabilities,
    which an ensemble has softened already). Its gradient with respect to the logits is (q - t) / B.

    .. math:: \frac{1}{B} \sum_b KL(t_b \| q_b) = \frac{1}{B} \sum_b \sum_c t_{bc} (\log t_{bc} - \log q_{bc})

    For scores u, the squared difference:

    .. math:: \frac{1}{B} \sum_b (u_b - t_b)^2

    Args:
        name: divergence of the target: `categorical`, `bernoulli` or `squared`.
        outputs: [B, C], logits; for `bernoulli` [B, 1], the logit of yes, or [B, 2]; for `squared` [B, 1].
        teacher: probabilities [B, C] that sum to 1 (`bernoulli`: of no and yes), or scores [B, 1]; without gradient.

    Returns:
        Scalar in float32, the mean over rows, at least 0 except for rounding.
    """
    if name == "bernoulli" and outputs.shape[1] == 1:
        outputs = torch.cat([torch.zeros_like(outputs), outputs], dim=1)
    outputs, teacher = outputs.float(), teacher.float()
    if name == "squared":
        return (outputs - teacher).square().mean()
    return (torch.xlogy(teacher, teacher) - teacher * outputs.log_softmax(dim=-1)).sum(dim=-1).mean()


class DistillOptions(RegularizerOptions):
    """The `distill` block; `teacher` is a folder of models."""

    teacher: InputPath | None


class Distillation(Regularizer):
    """`teacher_divergence` of each batch from the predictions of `distill.teacher` for its rows."""

    Options = DistillOptions

    def __init__(self, options: DistillOptions, setup: RunSetup) -> None:
        super().__init__(options, setup)
        self.predictions = setup.teacher_predictions

    def __call__(self, context: ForwardContext) -> Tensor:
        return torch.stack(
            [
                teacher_divergence(divergence, outputs, self.predictions[task][rows].to(outputs.device))
                for task, divergence, rows, outputs in context.batches
            ]
        )
