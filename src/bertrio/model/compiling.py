"""An encoder's passes by `torch.compile`: many small operations become few kernels, and one graph launches all of them
on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertrio.errors import UserError

ROUND = 16  # tokens that texts are padded to a multiple of: every width has a CUDA graph of its own, so 128 make 8
ROWS, TOKENS = 20, 48  # of the passes that are compiled; unlike each other, or they would count as one size


class CompiledPasses:
    """Compiles a transformer in place, and brings what goes into it into shape.

    One piece of code does for all shapes. How it sums may depend on the shape that it is compiled with, and a run that
    goes on after a stop meets other shapes first. So a pass over `ROWS` texts of `TOKENS` zeros goes before the first
    of each kind: with gradients or without, in training or not, under autocast or not.

    On CUDA each shape is recorded as a CUDA graph when it comes for the second time, and replayed from then on.

    Args:
        transformer: on the device where it will run.
        longest: tokens of the longest text.
    """

    def __init__(self, transformer: nn.Module, longest: int) -> None:
        self.longest = longest
        self.on_cuda = next(transformer.parameters()).is_cuda
        self._met: set[tuple[Any, ...]] = set()
        transformer.compile(dynamic=True, mode="reduce-overhead" if self.on_cuda else "default")

    def padded(self, embeddings: Tensor, tokens: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Embeddings [B, T, H] and what goes with them, [B, T] each, with zeros up to a multiple of `ROUND` tokens.

        The mask's zeros hide what is added. `input_ids`, which the embeddings stand for, are left out.
        """
        width = embeddings.shape[1]
        more = min(-width % ROUND, max(0, self.longest - width))
        rest = {name: F.pad(value, (0, more)) for name, value in tokens.items() if name != "input_ids"}
        return F.pad(embeddings, (0, 0, 0, more)), rest

    def meet(self, transformer: nn.Module, embeddings: Tensor, rest: dict[str, Tensor]) -> None:
        """Has passes of this kind compiled, if this is the first; draws nothing from the global generators.

        Raises:
            UserError: if torch can't compile this encoder, or has no compiler to do it with.
        """
        device = embeddings.device
        autocast = torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type)
        kind = (torch.is_grad_enabled(), transformer.training, autocast, embeddings.requires_grad, *rest)
        if kind in self._met:
            return
        shape = (ROWS, min(TOKENS, self.longest))
        words = embeddings.new_zeros(*shape, embeddings.shape[2]).requires_grad_(embeddings.requires_grad)
        others = {name: value.new_ones(shape) if name == "attention_mask" else value.new_zeros(shape)
                  for name, value in rest.items()}  # fmt: skip
        learns = [of for of in (words, *transformer.parameters()) if of.requires_grad]
        with torch.random.fork_rng(devices=[device] if self.on_cuda else []):
            try:
                hidden = transformer(inputs_embeds=words, **others).last_hidden_state
                if hidden.requires_grad:  # the way back is compiled when it is first gone
                    torch.autograd.grad(hidden.sum(), learns, allow_unused=True)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # of whatever kind the compiler's parts raise
                reason = " ".join(str(error).split())[:300]
                raise UserError(
                    f"encoder.compile: torch can't compile this encoder here ({reason}); set it to false"
                ) from error
        self._met.add(kind)

    def forget(self) -> None:
        """Says that no output of a pass so far, nor a gradient, is to be used any more: CUDA graphs reuse memory."""
        if self.on_cuda:
            torch.compiler.cudagraph_mark_step_begin()
