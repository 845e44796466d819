"""Weighting of losses: what each task's loss is multiplied by before it runs backward.

A weighting is a module with `forward(task, loss) -> loss`, whose parameters learn at the rate `weighting.lr`. To add
one, write the class and add it to `WEIGHTINGS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated

import torch
from torch import Tensor, nn

from bertrio.core.options import Group, NotNegative, Positive, one_of


class Fixed(nn.Module):
    r"""Multiplies each task's loss by a number given beforehand.

    .. math:: L = \sum_t a_t \, l_t

    Args:
        weights: a_t by task, finite and not below 0. A task that is not named has weight 1.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        super().__init__()
        self.weights = dict(weights)

    def forward(self, task: str, loss: Tensor) -> Tensor:
        """The weighted loss of `task`, from its plain one; both scalars."""
        return loss * self.weights.get(task, 1.0)


class Uncertainty(nn.Module):
    r"""Weighs each task's loss by how uncertain the task is, which is learnt beside the model.

    .. math:: L = \sum_t \exp(-w_t) \, l_t + w_t

    w_t is the logarithm of the task's variance and starts at 0, where every weight is 1. For a constant loss l the
    minimum lies at w = log l, so a task comes to weigh 1 / l: tasks with large losses are turned down. Kendall, Gal
    and Cipolla 2018, "Multi-Task Learning Using Uncertainty to Weigh Losses for Scene Geometry and Semantics",
    Section 3, in the form of "BERT With Multitask Fine-Tuning and Loss Construction", Section 4.2.2.

    Departs from Kendall et al.: they have exp(-w) l / 2 + w / 2 for squared errors and exp(-w) l + w / 2 for cross
    entropies; the second paper, and so this class, has one form for all. It equals the first up to a factor of 2.

    A loss near 0 drives w_t down without bound and a negative loss has no minimum at all.

    Args:
        tasks: the names of all tasks that may train; of a mapping, the keys count.

    The parameters have no dimensions: an optimizer that spares biases from weight decay spares them too. There is
    one for each task, so that it has no gradient, and stays as it is, in steps that the task takes no part in.
    """

    def __init__(self, tasks: Iterable[str]) -> None:
        super().__init__()
        for task in tasks:  # with a prefix, since a module has attributes that a task may be called like
            self.register_parameter(f"log_variance_{task}", nn.Parameter(torch.zeros(())))

    @property
    def log_variances(self) -> dict[str, nn.Parameter]:
        """w by task."""
        return {name.removeprefix("log_variance_"): w for name, w in self.named_parameters()}

    def forward(self, task: str, loss: Tensor) -> Tensor:
        """The weighted loss of `task` and its penalty on the variance, from its plain loss; both scalars."""
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
