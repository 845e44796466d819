"""The upper layers of an encoder by themselves, as one pass went through them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bertrio.core.errors import UserError
from bertrio.model.encoder import Encoder


class UpperLayers:
    """Runs the last `count` layers again on other hidden states, with all else that a clean pass gave them.

    What a layer gets beside hidden states (masks, positions, relative embeddings) differs between architectures, so it
    is written down while the clean pass runs, and nothing here needs to know it.

    Attributes:
        hidden: what went into the first of these layers, [N, T, H], with its graph.
        state: of the dropout generator at that moment.

    Raises:
        UserError: if the encoder has fewer layers; and while a pass is written down, if the architecture does more with
            hidden states than to hand them from layer to layer and through a last norm.
    """

    def __init__(self, encoder: Encoder, count: int) -> None:
        self.encoder = encoder
        self.hidden: Tensor | None = None
        self.state: Tensor | None = None
        self._last: Tensor | None = None  # what came out of the layer, or last norm, that ran last
        layers = layers_of(encoder.transformer)
        if count > len(layers):
            raise UserError(f"smart.layers: found {count}, but this encoder has {len(layers)} layers")
        self._layers = layers[-count:]
        self._beside: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    @contextmanager
    def recording(self, random_state: Callable[[], Tensor]) -> Iterator[None]:
        """A context for one pass of the encoder, which is written down; `random_state` gives the generator's."""

        def before(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not args or (self._beside and args[0] is not self._last):
                raise self._unfit()
            if not self._beside:
                self.hidden, self.state = args[0], random_state()
            self._beside.append((args[1:], kwargs))

        def after(layer: nn.Module, args: tuple[Any, ...], out: Any) -> None:
            self._last = _hidden_of(out)

        def at_end(transformer: nn.Module, args: tuple[Any, ...], out: Any) -> None:
            if out.last_hidden_state is not self._last:
                raise self._unfit()

        transformer = self.encoder.transformer
        norms = [norm for norm in [getattr(transformer, "final_norm", None)] if norm is not None]
        # Before any other hook, which may put another tensor in place of what the layer was called with
        first = {"with_kwargs": True, "prepend": True}
        hooks = [layer.register_forward_pre_hook(before, **first) for layer in self._layers]
        hooks += [part.register_forward_hook(after) for part in [*self._layers, *norms]]
        hooks.append(transformer.register_forward_hook(at_end))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def __call__(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Pooled vectors [N, H] from hidden states [N, T, H] before the first of the layers."""
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        for layer, (args, kwargs) in zip(self._layers, self._beside, strict=True):
            hidden = _hidden_of(layer(hidden, *args, **kwargs))
        transformer = self.encoder.transformer
        if getattr(transformer, "final_norm", None) is not None:
            hidden = transformer.final_norm(hidden)
        pooler = getattr(transformer, "pooler", None)
        pooled = None if pooler is None else pooler(hidden)
        return self.encoder.pooling(BaseModelOutputWithPooling(hidden, pooled), mask)

    def _unfit(self) -> UserError:
        kind = self.encoder.transformer.config.model_type
        return UserError(f"smart.layers: {kind} models do more than run their layers in turn; set it to null")


def _hidden_of(out: Any) -> Tensor:
    """The hidden states in what a layer gives."""
    return out if isinstance(out, torch.Tensor) else out[0]


def layers_of(transformer: nn.Module) -> nn.ModuleList:
    """The transformer's layers, in order.

    Raises:
        UserError: if the architecture does not keep them in one list.
    """
    count = transformer.config.num_hidden_layers
    for module in transformer.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    kind = transformer.config.model_type
    raise UserError(f"smart.layers: {kind} models have no list of {count} layers; set it to null")
