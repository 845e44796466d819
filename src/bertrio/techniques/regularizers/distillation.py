"""Distillation: keep outputs, and perhaps pooled vectors, near a teacher's."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from bertrio.core.options import Group, InputPath, NotNegative, Positive
from bertrio.techniques.regularizers.base import ForwardContext, Regularizer, RegularizerOptions, RunSetup


def teacher_divergence(name: str, outputs: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    r"""Divergence of a model's outputs from a teacher's predictions.

    For classes and binary targets, the KL divergence of the model's distribution from the teacher's, both softened by
    the temperature T. With the logits s of the model and t of the teacher (Hinton et al. 2015, "Distilling the
    Knowledge in a Neural Network", section 2):

    .. math:: \frac{T^2}{B} \sum_b KL\big(\operatorname{softmax}(t_b / T) \,\|\, \operatorname{softmax}(s_b / T)\big)

    The factor T^2 keeps the size of the gradient, as its section 2.1 advises. Logits are only defined up to a constant,
    so the logarithms of the teacher's probabilities serve as t; of an ensemble, those of its combined probabilities. A
    binary target has the logits 0 and s, which makes both sides Bernoulli distributions of :math:`\sigma(s / T)`. So
    has each class of a multi-label target; the divergence is the sum over them.

    For scores u, the squared difference, without temperature:

    .. math:: \frac{1}{B} \sum_b (u_b - t_b)^2

    Args:
        name: divergence of the target: `categorical`, `bernoulli`, `bernoullis` or `squared`.
        outputs: [B, C], logits; for `bernoulli` [B, 1], the logit of yes, or [B, 2]; for `squared` [B, 1].
        teacher: probabilities [B, C] that sum to 1 (`bernoulli`: of no and yes; `bernoullis`: each from 0 to 1), or
            scores [B, 1]; without gradient.
        temperature: T.

    Returns:
        Scalar in float32, the mean over rows, at least 0 except for rounding.
    """
    if name == "bernoullis":
        outputs, teacher = outputs.unsqueeze(-1), torch.stack([1 - teacher, teacher], dim=-1)
        outputs = torch.cat([torch.zeros_like(outputs), outputs], dim=-1)
    elif name == "bernoulli" and outputs.shape[1] == 1:
        outputs = torch.cat([torch.zeros_like(outputs), outputs], dim=1)
    outputs, teacher = outputs.float(), teacher.float()
    if name == "squared":
        return (outputs - teacher).square().mean()
    log_t = (teacher.clamp(min=torch.finfo(torch.float32).tiny).log() / temperature).log_softmax(dim=-1)
    log_s = (outputs / temperature).log_softmax(dim=-1)
    return temperature**2 * (log_t.exp() * (log_t - log_s)).flatten(1).sum(dim=-1).mean()


def vector_distance(name: str, vectors: Tensor, teacher: Tensor) -> Tensor:
    r"""Distance of a model's pooled vectors u from a teacher's v, the mean over N texts.

    `cosine`, as Sanh et al. 2019, "DistilBERT, a distilled version of BERT", section 3, aligns hidden states:

    .. math:: \frac{1}{N} \sum_n 1 - \cos(u_n, v_n)

    `mse`, the hints of Romero et al. 2015, "FitNets: Hints for Thin Deep Nets", eq. 3, as a mean over the H entries in
    place of half the sum:

    .. math:: \frac{1}{N H} \sum_n \lVert u_n - v_n \rVert^2

    Args:
        name: `cosine` or `mse`.
        vectors: [..., H], of the teacher's width.
        teacher: of the same shape; without gradient.
    """
    vectors, teacher = vectors.float(), teacher.float()
    if name == "mse":
        return F.mse_loss(vectors, teacher)
    return 1 - F.cosine_similarity(vectors, teacher, dim=-1).mean()


class VectorOptions(Group):
    """The block `distill.vectors`: the distance of pooled vectors, and its weight beside the outputs'."""

    loss: Literal["cosine", "mse"] | None = None
    weight: NotNegative = 1.0


class DistillOptions(RegularizerOptions):
    """The `distill` block.

    Attributes:
        teacher: a folder of models.
        temperature: T of `teacher_divergence`.
        labels: weight of the loss on the labels of the distilled tasks.
        vectors: distillation of pooled vectors.
    """

    teacher: InputPath | None
    temperature: Positive = 1.0
    labels: NotNegative = 1.0
    vectors: VectorOptions = Field(default_factory=VectorOptions)


class Distillation(Regularizer):
    """`teacher_divergence` of each batch, and `vector_distance` if that is on.

    If the teacher's vectors have another width, a matrix maps the model's to it. It is trained with the model, starts
    from normal numbers of variance 1 / H, and is no part of the trained model.
    """

    Options = DistillOptions
    options: DistillOptions

    def __init__(self, options: DistillOptions, setup: RunSetup) -> None:
        super().__init__(options, setup)
        self.teacher, size = setup.teacher, setup.model.encoder.size
        self.projection: nn.Parameter | None = None
        if widths := {vectors.shape[-1] for vectors in self.teacher.vectors.values()} - {size}:
            start = torch.randn(widths.pop(), size, generator=setup.generator("distill projection")) / math.sqrt(size)
            self.projection = nn.Parameter(start.to(setup.model.runtime.device))

    def __call__(self, context: ForwardContext) -> Tensor:
        penalties = []
        batches = zip(context.tasks, context.divergences, context.rows, context.outputs, context.vectors)
        for task, divergence, rows, outputs, vectors in batches:
            teacher = self.teacher.predictions[task][rows].to(outputs.device)
            penalty = teacher_divergence(divergence, outputs, teacher, self.options.temperature)
            if name := self.options.vectors.loss:
                mapped = vectors if self.projection is None else vectors @ self.projection.T
                distance = vector_distance(name, mapped, self.teacher.vectors[task][rows].to(outputs.device))
                penalty = penalty + self.options.vectors.weight * distance
            penalties.append(penalty)
        return torch.stack(penalties)

    def parameters(self) -> Iterable[nn.Parameter]:
        return [] if self.projection is None else [self.projection]

    def state_dict(self) -> dict[str, Any]:
        return {} if self.projection is None else {"projection": self.projection.detach()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.projection is not None:
            with torch.no_grad():
                self.projection.copy_(state["projection"])
