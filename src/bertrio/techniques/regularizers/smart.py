"""Adversarial regularization of SMART: keep outputs stable under small adversarial noise on the embeddings."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from bertrio.core.options import NotNegative, Positive, Whole, one_of
from bertrio.techniques.regularizers.base import ForwardContext, Regularizer, RegularizerOptions, RunSetup

NORMS = {"inf": math.inf, "2": 2.0}
EPS = 1e-6  # keeps the division of `rescale` finite


class SmartOptions(RegularizerOptions):
    """The `smart` block.

    Attributes:
        eta: length of a step (`ball`) or factor of the gradient (`rescale`). Paper: 1e-3.
        sigma: standard deviation of the initial noise. Paper: 1e-5.
        radius: epsilon, in the units of the embeddings. Paper: 1e-5.
        norm: p.
        steps: T. Paper: 1.
    """

    weight: NotNegative = Field(alias="lambda")
    eta: NotNegative
    sigma: NotNegative
    radius: Positive
    norm: Annotated[str, one_of(NORMS)]  # also takes numbers: `-S smart.norm=2` writes an int
    steps: Annotated[Whole, Field(ge=0)]
    projection: Literal["ball", "rescale"]


class Smart(Regularizer):
    r"""Smoothness-inducing adversarial regularization: divergence of outputs under worst-case noise.

    .. math:: R_s(\theta) = \frac{1}{B} \sum_b \max_{\|\delta_b\|_p \le \epsilon}
              \ell_s(f(x_b + \delta_b; \theta), f(x_b; \theta))

    Jiang et al. 2020, "SMART: Robust and Efficient Fine-Tuning for Pre-trained Natural Language Models through
    Principled Regularized Optimization", section 3.1. The maximum is sought as in its Algorithm 1, lines 6 to 9, with
    :math:`\ell` the mean over rows of :math:`\ell_s`:

    .. math:: \delta_b \sim N(0, \sigma^2), \qquad \text{then } T \text{ times} \quad
              \delta_b \leftarrow \Pi_\epsilon(\delta_b + \eta \, g_b / \|g_b\|_p), \quad
              g_b = \nabla_{\delta_b} \ell

    The penalty is the divergence at the last noise. Gradients flow to the clean and the noisy outputs; the noise is a
    constant.

    `projection` selects the paper's method or that of its widespread ports (smart_pytorch, early MT-DNN):

    - `ball`: the equations above. :math:`\Pi` projects onto the ball of a row, over all its tokens (two texts of a
      bi-encoded pair are two rows). The norm that divides the gradient is over the row, too, so that a step has length
      eta whatever the size of batch and gradient. The initial noise is projected as well.
    - `rescale`: the gradient is not divided. Instead of a projection, each token's noise is divided by its norm and
      multiplied by the radius: :math:`\delta_{bt} \leftarrow \epsilon \, v_{bt} / (\|v_{bt}\|_p + 10^{-6})`,
      :math:`v = \delta + \eta \, g`. Every token is moved by the full radius, which the ports fix at 1; 1e-6 is their
      epsilon. As in the ports, the initial noise is not rescaled before the first step. With sigma 1e-5 and the usual
      eta of 1e-3, eta g is small compared to the initial noise, so the direction of the noise remains nearly random.

    Departs from the paper: the initial noise is projected (`ball`), since with T = 0 it could lie outside the ball; for
    norm 2, the gradient is divided by its 2-norm, where the paper has the infinity norm only; a row whose gradient is
    not finite makes no step; padding has no noise. With T = 0, the noise is random, and projected or rescaled.

    Noise is drawn and added in float32, and its forward passes should use float32 as well, because bf16 cannot
    represent noise of 1e-5. A separate generator on the CPU draws it, so that it does not depend on the device. If
    several processes share a batch, the noise is drawn for the whole batch. A row's noise depends on the divergence of
    its own task only, or on the sum of the divergences of the tasks that share its text.
    """

    Options = SmartOptions
    options: SmartOptions

    def __init__(self, options: SmartOptions, setup: RunSetup) -> None:
        super().__init__(options, setup)
        self.generator = setup.generator("smart noise")

    def __call__(self, context: ForwardContext) -> Tensor:
        noise = self._worst_noise(context, self._draw(context))
        return context.divergence(context.from_embeddings(context.embeddings.float() + noise), context.outputs)

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"])

    def _draw(self, context: ForwardContext) -> Tensor:
        """Draw the initial noise [N, T, H], 0 at padding."""
        rows, count = context.positions or (None, len(context.embeddings))
        shape = (count, *context.embeddings.shape[1:])
        drawn = torch.randn(shape, generator=self.generator, dtype=torch.float32)
        drawn = drawn if rows is None else drawn[rows]
        return (drawn * self.options.sigma).to(context.embeddings.device) * context.mask.unsqueeze(-1)

    def _worst_noise(self, context: ForwardContext, noise: Tensor) -> Tensor:
        """Return constant noise after gradient ascent from the initial `noise`.

        Only the gradient of the noise is computed; the parameters' `.grad` does not change.
        """
        embeddings, outputs = context.embeddings.detach().float(), [output.detach() for output in context.outputs]
        if self.options.projection == "ball" or not self.options.steps:
            noise = self._project(noise)
        for _ in range(self.options.steps):
            noise.requires_grad_()
            divergence = context.divergence(context.from_embeddings(embeddings + noise), outputs)
            (gradient,) = torch.autograd.grad(divergence.sum(), noise)
            noise = self._step(noise.detach(), gradient, context.mask)
        return noise

    def _step(self, noise: Tensor, gradient: Tensor, mask: Tensor) -> Tensor:
        """Return the noise [N, T, H] after one step of gradient ascent, projected or rescaled."""
        finite = gradient.isfinite().flatten(1).all(dim=1)[:, None, None]
        gradient = torch.where(finite, gradient, 0.0) * mask.unsqueeze(-1)
        if self.options.projection == "ball":
            length = _row_norm(gradient, self.options.norm)
            gradient = gradient / torch.where(length > 0, length, 1.0)  # no eps: KL's gradients are far below 1e-6
        return self._project(noise + self.options.eta * gradient)

    def _project(self, noise: Tensor) -> Tensor:
        """Project or rescale noise [N, T, H].

        `ball` returns the nearest noise whose rows, over all tokens, have norm `radius` at most: clamped for `inf`,
        scaled down for `2`. `rescale` scales every token to norm `radius`; `EPS` keeps a token without noise at 0.
        """
        radius, norm = self.options.radius, self.options.norm
        if self.options.projection == "rescale":
            lengths = torch.linalg.vector_norm(noise, NORMS[norm], dim=-1, keepdim=True)
            return noise * (radius / (lengths + EPS))
        if norm == "inf":
            return noise.clamp(-radius, radius)
        return noise * (radius / _row_norm(noise, norm).clamp(min=radius))


def _row_norm(values: Tensor, norm: str) -> Tensor:
    """Return the norm of each row of [B, T, H] over all its tokens: [B, 1, 1]."""
    return torch.linalg.vector_norm(values, NORMS[norm], dim=(1, 2), keepdim=True)
