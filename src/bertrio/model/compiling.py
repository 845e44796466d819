"""An encoder's passes by `torch.compile`: many small operations become few kernels, and one graph launches all of them
on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertrio.config.groups import ROUND
from bertrio.core.errors import UserError

ROWS, TOKENS = 20, 48  # of the passes that are compiled; ROWS is no multiple of ROUND, or sizes might count as one


class CompiledPasses:
    """Compiles a transformer in place, and brings what goes into it into shape.

    Passes of one kind share a piece of code, whatever their shape: with gradients or without, in training or not, under
    autocast or not, and those of a single row. How it sums may depend on the shape that it is compiled with, and a run
    that goes on after a stop meets other shapes first. So a pass over `ROWS` texts of `TOKENS` zeros goes before the
    first of each kind.

    On CUDA each shape is recorded as a CUDA graph when it comes for the second time, and replayed from then on; texts
    are padded to few widths to that end. What a graph gives, gradients included, lies in memory that belongs to all
    graphs.

    A copy of it is None: a copied transformer is not compiled.

    Args:
        transformer: on the device where it will run.
        longest: tokens of the longest text, a multiple of `ROUND`.
    """

    def __init__(self, transformer: nn.Module, longest: int) -> None:
        self.transformer, self.longest = transformer, longest
        self.on_cuda = next(transformer.parameters()).is_cuda
        self._met: set[tuple[Any, ...]] = set()
        self._moved: dict[nn.Parameter, Tensor] = {}  # gradients of this step that lie outside of graphs' memory
        if self.on_cuda:  # it warns from eight shapes on, and three tasks have more
            import torch._inductor.config

            torch._inductor.config.triton.cudagraph_dynamic_shape_warn_limit = None
        transformer.compile(dynamic=True, fullgraph=True, mode="reduce-overhead" if self.on_cuda else "default")

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def padded(self, embeddings: Tensor, tokens: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Embeddings [B, T, H] and what goes with them, [B, T] each, with zeros up to a multiple of `ROUND` tokens.

        The mask's zeros hide what is added. `input_ids`, which the embeddings stand for, are left out.
        """
        more = -embeddings.shape[1] % ROUND
        rest = {name: F.pad(value, (0, more)) for name, value in tokens.items() if name != "input_ids"}
        return F.pad(embeddings, (0, 0, 0, more)), rest

    def meet(self, embeddings: Tensor, rest: dict[str, Tensor]) -> None:
        """Has passes of this kind compiled, if this is the first; draws nothing from the global generators.

        Raises:
            UserError: if torch can't compile this encoder, or has no compiler to do it with.
        """
        device = embeddings.device
        autocast = torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type)
        single = len(embeddings) == 1  # for which torch always compiles anew
        of = (torch.is_grad_enabled(), self.transformer.training, autocast, embeddings.requires_grad, single, *rest)
        if of in self._met:
            return
        shape = (1 if single else ROWS, min(TOKENS, self.longest))
        words = embeddings.new_zeros(*shape, embeddings.shape[2]).requires_grad_(embeddings.requires_grad)
        blank = {name: value.new_full(shape, name == "attention_mask") for name, value in rest.items()}
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            try:
                self._there_and_back(words, blank)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # of whatever kind the compiler's parts raise
                reason = " ".join(str(error).split())[:300]
                raise UserError(
                    f"encoder.compile: torch can't compile this encoder here ({reason}); set it to false"
                ) from error
        self._met.add(of)

    def _there_and_back(self, words: Tensor, rest: dict[str, Tensor]) -> None:
        """A pass, and the way back of it, which may be compiled only when it is gone; leaves no gradient."""
        hidden = self.transformer(inputs_embeds=words, **rest).last_hidden_state
        if hidden.requires_grad:
            learns = [of for of in (words, *self.transformer.parameters()) if of.requires_grad]
            torch.autograd.grad(hidden.sum(), learns, allow_unused=True)

    def begin_step(self) -> None:
        """Gives the memory of CUDA graphs free: nothing that passes so far gave is in use any more, nor a gradient."""
        if self.on_cuda:
            self._moved.clear()
            torch.compiler.cudagraph_mark_step_begin()

    def keep_gradients(self) -> None:
        """To be called after each way back: moves the gradients that it left out of the memory of CUDA graphs.

        As long as they lay there, the step's next pass could not use the graph of another step's: it would be recorded
        once for each sequence of shapes that passes of a step have.
        """
        if not self.on_cuda:
            return
        for parameter in self.transformer.parameters():
            if parameter.grad is not None and parameter.grad is not self._moved.get(parameter):
                parameter.grad = self._moved[parameter] = parameter.grad.clone()
