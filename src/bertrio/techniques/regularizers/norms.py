"""Penalties on the size of parameters."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def l1(parameters: Iterable[Tensor]) -> Tensor:
    r"""Sum of the absolute values of all entries.

    .. math:: \sum_i |w_i|

    "BERT With Multitask Fine-Tuning and Loss Construction", section 4.2.2. Its gradient at 0 is 0.

    Args:
        parameters: tensors of any shapes, each given once.

    Returns:
        Scalar in float32; 0 if there are no parameters.
    """
    return _total(parameter.float().abs().sum() for parameter in parameters)


def l2(parameters: Iterable[Tensor]) -> Tensor:
    r"""Sum of the squares of all entries.

    .. math:: \sum_i w_i^2

    "BERT With Multitask Fine-Tuning and Loss Construction", section 4.2.2, by its formula; its text says "L-2 norm",
    which would be the square root. Unlike AdamW's decoupled weight decay, its gradient enters Adam's moments.

    Args:
        parameters: tensors of any shapes, each given once.

    Returns:
        Scalar in float32; 0 if there are no parameters.
    """
    return _total(parameter.float().square().sum() for parameter in parameters)


def _total(terms: Iterable[Tensor]) -> Tensor:
    return sum(terms, torch.zeros(()))
