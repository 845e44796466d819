"""Dropout whose masks are cheap to draw on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LEVELS = 1 << 16  # of the rate: masks are drawn from 16 random bits an entry


class BitDropout(nn.Dropout):
    r"""Dropout (Srivastava et al. 2014): each entry is 0 with probability p, and the others are divided by 1 - p.

    On the CPU, torch draws a double for each entry, which takes an eighth of a small encoder's step. Here four entries
    share a draw of 64 bits, 16 each. So p is rounded to a multiple of :math:`2^{-16}` (0.1 to 0.1000061), and what the
    others are divided by is that of the rounded p, so that the mean stays (but for bf16's rounding of it, as in
    `nn.Dropout`). Elsewhere, and in compiled passes, which draw masks in the kernels that use them, it is `nn.Dropout`.

    Masks come from torch's global generator, as those of `nn.Dropout` do, so a replayed state replays them.
    """

    def forward(self, values: Tensor) -> Tensor:
        """Values of any shape, with zeros in training."""
        if not self.training or not self.p or not values.is_cpu or torch.compiler.is_compiling():
            return super().forward(values)
        kept, factor = kept_entries(values, self.p)
        return values * kept.mul_(factor)


def kept_entries(values: Tensor, p: float) -> tuple[Tensor, float]:
    """A mask of dropout at rate `p`, above 0: 1 where an entry is kept and 0 elsewhere, like `values`; and what those
    that are kept are to be multiplied by."""
    dropped = max(1, round(p * LEVELS))
    if dropped == LEVELS:
        return torch.zeros_like(values), 1.0
    count = values.numel()
    draws = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(1 << 63), None)
    bits = draws.view(torch.int16)[:count].view(values.shape)
    kept = torch.ge(bits, dropped - LEVELS // 2, out=torch.empty_like(values))  # a mask of bools is slow to cast
    return kept, LEVELS / (LEVELS - dropped)


def draw_bits(module: nn.Module) -> None:
    """Puts `BitDropout` in the place of every `nn.Dropout` in `module`."""
    for parent in module.modules():
        for name, child in parent.named_children():
            if type(child) is nn.Dropout:
                setattr(parent, name, BitDropout(child.p, child.inplace).train(child.training))
