"""SMART's first half: outputs must not change under small adversarial noise on the embeddings."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bertrio.techniques.regularizers.divergences import Divergence

Embeddings = tuple[Tensor, ...]  # one [B, T, H] for each text that is encoded on its own
Places = tuple[tuple[Tensor, int], ...]  # for each of them where its rows stand in a larger batch, of how many rows
Forward = Callable[[Embeddings], Tensor]

NORMS = {"inf": math.inf, "2": 2.0}


def ball(noise: Tensor, radius: float, norm: str) -> Tensor:
    """The nearest noise [B, T, H] in the ball: each row, over all its tokens, has norm `radius` at most.

    For `inf` each entry is clamped to [-radius, radius]; for `2` a row outside is scaled down to the sphere.
    """
    if norm == "inf":
        return noise.clamp(-radius, radius)
    smallest = max(radius, torch.finfo(noise.dtype).tiny)  # radius 0 must give 0, not 0 / 0
    return noise * (radius / _row_norm(noise, norm).clamp(min=smallest))


def rescale(noise: Tensor, radius: float, norm: str, eps: float) -> Tensor:
    """Noise [B, T, H] whose every token has norm `radius` over H; `eps` keeps a token without noise at 0."""
    return noise * (radius / (torch.linalg.vector_norm(noise, NORMS[norm], dim=-1, keepdim=True) + eps))


@dataclass(frozen=True, kw_only=True)
class Smart:
    r"""Smoothness-inducing adversarial regularization: outputs must not change under the worst small noise.

    .. math:: R_s(\theta) = \frac{1}{B} \sum_b \max_{\|\delta_b\|_p \le \epsilon}
              \ell_s(f(x_b + \delta_b; \theta), f(x_b; \theta))

    Jiang et al. 2020, "SMART: Robust and Efficient Fine-Tuning for Pre-trained Natural Language Models through
    Principled Regularized Optimization", section 3.1. The maximum is sought as in its Algorithm 1, lines 6 to 9, with
    :math:`\ell` the mean over rows of :math:`\ell_s`:

    .. math:: \delta_b \sim N(0, \sigma^2), \qquad \text{then } T \text{ times} \quad
              \delta_b \leftarrow \Pi_\epsilon(\delta_b + \eta \, g_b / \|g_b\|_p), \quad
              g_b = \nabla_{\delta_b} \ell

    The penalty is the divergence at the last noise. Its gradient reaches the clean outputs as well as the noisy ones;
    the noise is a constant.

    `projection` chooses between the paper and what its widespread ports do (smart_pytorch, early MT-DNN):

    - `ball`: the equations above. :math:`\Pi` is the projection on the ball around the row, over all its tokens (of
      each text on its own, where two are encoded apart), and so is the row of the norm that divides the gradient: the
      step has length eta whatever the batch and the gradient's size. The draw is projected as well.
    - `rescale`: the gradient is not divided, and instead of a projection each token's noise is divided by its own norm
      and multiplied by the radius: :math:`\delta_{bt} \leftarrow \epsilon \, v_{bt} / (\|v_{bt}\|_p + \text{eps})`,
      :math:`v = \delta + \eta \, g`. Every token is moved by the full radius, which those ports fix at 1, and what they
      call epsilon is `eps`. As there, the draw is not rescaled before the first step. Beside a sigma of 1e-5, eta g
      is small for the usual eta of 1e-3, so the direction of the noise stays nearly random.

    Departs from the paper: the draw is projected (`ball`), for else T = 0 could leave the ball; for norm 2 the gradient
    is divided by its 2-norm, where the paper has infinity alone; a row whose gradient is not finite makes no step;
    padding gets no noise. With T = 0 the noise is random, and projected or rescaled.

    Args:
        eta: length of a step (`ball`) or what the gradient is multiplied by (`rescale`), at least 0. Paper: 1e-3.
        sigma: standard deviation of the draw, at least 0. Paper: 1e-5.
        radius: epsilon, in the units of the embeddings, at least 0. Paper: 1e-5.
        norm: p, `inf` or `2`.
        steps: T, at least 0. Paper: 1.
        projection: `ball` or `rescale`.
        eps: what `rescale` adds to the norm that it divides by, above 0. It is no radius.
        generator: on the CPU, of the draw alone; its state goes in checkpoints.

    Raises:
        ValueError: if an argument is out of its range.
    """

    eta: float
    sigma: float
    radius: float
    norm: str
    steps: int
    projection: str
    eps: float = 1e-6
    generator: torch.Generator

    def __post_init__(self) -> None:
        for name, known in (("norm", NORMS), ("projection", ("ball", "rescale"))):
            if getattr(self, name) not in known:
                raise ValueError(f"Smart: {name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")
        for name in ("eta", "sigma", "radius", "steps"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"Smart: {name} must be finite and at least 0, got {getattr(self, name)}")
        if not self.eps > 0:
            raise ValueError(f"Smart: eps must be above 0, got {self.eps}")
        if self.generator.device.type != "cpu":  # the same noise whatever the device
            raise ValueError(f"Smart: generator must be on the CPU, got one on {self.generator.device}")

    def __call__(
        self,
        forward: Forward,
        embeddings: Embeddings,
        masks: tuple[Tensor, ...],
        outputs: Tensor,
        divergence: Divergence,
        places: Places | None = None,
    ) -> Tensor:
        """The penalty, in float32 and at least 0: a scalar, or one number for each task if `divergence` gives that.

        Args:
            forward: from embeddings to outputs [B, size], with the dropout masks of the clean pass: with others the
                penalty is above 0 without any noise. It is called `steps` + 1 times. It gets float32, and should
                compute in it: matrix products in bf16 swallow noise of 1e-5.
            embeddings: what goes in as `inputs_embeds`: [B, T, H], for one text or two that are encoded apart.
            masks: [B, T] for each of the embeddings, 0 at padding.
            outputs: of the clean pass, in the shape that `forward` gives ([B, size], or flat for several tasks); with
                its graph, or the gradient is half of what it should be.
            divergence: of the task's target; or, where the rows of several tasks go through together, one number for
                each. A row's noise follows from its own task's alone, and the penalty is one number for each as well.
            places: where the rows are a part of a larger batch, with which other processes are busy: for each of the
                embeddings where its rows stand there, and of how many. Noise is drawn for the larger batch, so that it
                is the same whoever has which rows. None: these are all.

        Raises:
            ValueError: if the masks do not fit the embeddings.
        """
        shapes = [list(x.shape[:2]) for x in embeddings], [list(mask.shape) for mask in masks]
        if shapes[0] != shapes[1]:
            raise ValueError(f"Smart: masks must be {shapes[0]}, as the embeddings, got {shapes[1]}")
        start = tuple(map(self._draw, embeddings, masks, places or [None] * len(embeddings)))
        noise = self._worst_noise(start, forward, embeddings, masks, outputs, divergence)
        return divergence(forward(_add(embeddings, noise)), outputs)

    def state_dict(self) -> dict[str, Any]:
        """The generator's state, for a checkpoint."""
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave."""
        self.generator.set_state(state["generator"])

    def _worst_noise(
        self,
        noise: Embeddings,
        forward: Forward,
        embeddings: Embeddings,
        masks: tuple[Tensor, ...],
        outputs: Tensor,
        divergence: Divergence,
    ) -> Embeddings:
        """Constant noise for each of the embeddings, from that which was drawn.

        The gradient is asked for the noise alone: none is worked out for parameters, and their `.grad` stays.
        """
        constants, outputs = tuple(x.detach() for x in embeddings), outputs.detach()
        if self.projection == "ball" or not self.steps:
            noise = tuple(self._project(delta) for delta in noise)
        for _ in range(self.steps):
            noise = tuple(delta.requires_grad_() for delta in noise)
            gradients = torch.autograd.grad(divergence(forward(_add(constants, noise)), outputs).sum(), noise)
            noise = tuple(self._step(delta.detach(), *of) for delta, *of in zip(noise, gradients, masks))
        return noise

    def _draw(self, embeddings: Tensor, mask: Tensor, place: tuple[Tensor, int] | None) -> Tensor:
        """Random noise [B, T, H], 0 at padding; float32, for bf16 can't add 1e-5 to an embedding."""
        rows, count = place or (None, len(embeddings))
        drawn = torch.randn((count, *embeddings.shape[1:]), generator=self.generator, dtype=torch.float32)
        drawn = drawn if rows is None else drawn[rows]
        return (drawn * self.sigma).to(embeddings.device) * mask.unsqueeze(-1)

    def _step(self, noise: Tensor, gradient: Tensor, mask: Tensor) -> Tensor:
        """One step of ascent from `noise` [B, T, H], back into the ball."""
        finite = gradient.isfinite().flatten(1).all(dim=1)[:, None, None]
        gradient = torch.where(finite, gradient, 0.0) * mask.unsqueeze(-1)
        if self.projection == "ball":
            length = _row_norm(gradient, self.norm)
            gradient = gradient / torch.where(length > 0, length, 1.0)  # no eps: KL's gradients are far below 1e-6
        return self._project(noise + self.eta * gradient)

    def _project(self, noise: Tensor) -> Tensor:
        if self.projection == "ball":
            return ball(noise, self.radius, self.norm)
        return rescale(noise, self.radius, self.norm, self.eps)


def _add(embeddings: Embeddings, noise: Embeddings) -> Embeddings:
    return tuple(x.float() + delta for x, delta in zip(embeddings, noise))


def _row_norm(values: Tensor, norm: str) -> Tensor:
    """The norm of each row of [B, T, H], over all its tokens: [B, 1, 1]."""
    return torch.linalg.vector_norm(values, NORMS[norm], dim=(1, 2), keepdim=True)
