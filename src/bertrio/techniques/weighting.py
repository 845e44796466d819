"""Weighting of losses: a factor for each task's loss before it runs backward.

A weighting is a module with `forward(task, loss) -> loss`, whose parameters have the learning rate `weighting.lr`. To
add one, write the class and add it to `WEIGHTINGS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated

import torch
from torch import Tensor, nn

from bertrio.core.options import Group, NotNegative, Positive, one_of


class Fixed(nn.Module):
    r"""Loss of each task times a fixed weight.

    .. math:: L = \sum_t a_t \, l_t

    Args:
        weights: a_t by task, finite and not below 0. Other tasks have weight 1.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        super().__init__()
        self.weights = dict(weights)

    def forward(self, task: str, loss: Tensor) -> Tensor:
        """Return the weighted loss of `task`; both are scalars."""
        return loss * self.weights.get(task, 1.0)


class Uncertainty(nn.Module):
    r"""Loss of each task weighted by its uncertainty, which is learnt with the model.

    .. math:: L = \sum_t \exp(-w_t) \, l_t + w_t

    w_t is the logarithm of the task's variance. It starts at 0, where every weight is 1. For a constant loss l, the
    minimum lies at w = log l with weight 1 / l, so tasks with large losses get small weights. Kendall, Gal
    and Cipolla 2018, "Multi-Task Learning Using Uncertainty to Weigh Losses for Scene Geometry and Semantics",
    Section 3, in the form of "BERT With Multitask Fine-Tuning and Loss Construction", Section 4.2.2.

    Departs from Kendall et al.: they use exp(-w) l / 2 + w / 2 for squared errors and exp(-w) l + w / 2 for cross
    entropies; the second paper, and this class, use one form for both. It equals the first up to a factor of 2; at
    the optimum, the weight of every loss is twice theirs.

    A loss near 0 decreases w_t without bound, and a negative loss has no minimum.

    Args:
        tasks: names of all tasks that may train, or a mapping with them as keys.

    The optimizer applies no weight decay to the parameters. Each task has its own, which has no gradient and does not
    change in steps without the task.
    """

    def __init__(self, tasks: Iterable[str]) -> None:
        super().__init__()
        for task in tasks:  # the prefix keeps tasks from hiding attributes of modules
            self.register_parameter(f"log_variance_{task}", nn.Parameter(torch.zeros(())))

    @property
    def log_variances(self) -> dict[str, nn.Parameter]:
        """w by task."""
        return {name.removeprefix("log_variance_"): w for name, w in self.named_parameters()}

    def forward(self, task: str, loss: Tensor) -> Tensor:
        """Return the weighted loss of `task` plus its log-variance; both losses are scalars."""
        w = self.log_variances[task]
        return torch.exp(-w) * loss + w


WEIGHTINGS: dict[str, Callable[[Iterable[str], Mapping[str, float]], nn.Module]] = {  # (tasks, weighting.weights)
    "fixed": lambda tasks, weights: Fixed(weights),
    "uncertainty": lambda tasks, weights: Uncertainty(tasks),
}


class WeightingOptions(Group):
    """The block `weighting` of params.yaml."""

    method: Annotated[str, one_of(WEIGHTINGS)]
    weights: dict[str, NotNegative]
    lr: Positive
