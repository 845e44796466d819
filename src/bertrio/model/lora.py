r"""LoRA: low-rank adapters, trained instead of an encoder's weights, through peft.

.. math:: W' = W + \frac{\alpha}{r} B A

with A [r, in] and B [out, r]. Hu et al. 2022, "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1. B
is initialised with zeros, so that training starts from the unchanged encoder. Saved encoders have the weights W'.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from bertrio.core.errors import UserError, need_packages


def add_lora(transformer: nn.Module, rank: int, alpha: float, dropout: float, targets: list[str] | None) -> None:
    """Freeze `transformer` and add trainable adapters to its linear layers, in place.

    Args:
        transformer: an encoder of transformers.
        rank: r, 1 or more.
        alpha: numerator of the adapters' scale alpha / r.
        dropout: rate on the input of an adapter.
        targets: suffixes of the names of linear layers, such as `query`; None for peft's choice for the architecture.

    Raises:
        UserError: if peft is not installed or finds no such layers.
    """
    need_packages("encoder.lora", ["peft"], "lora")
    from peft import LoraConfig, inject_adapter_in_model

    scale: Any = alpha  # peft declares an int but accepts any number
    config = LoraConfig(r=rank, lora_alpha=scale, lora_dropout=dropout, target_modules=targets)
    try:
        inject_adapter_in_model(config, transformer)
    except ValueError as error:
        raise UserError(f"encoder.lora.targets: found {targets}; {' '.join(str(error).split())}") from error


@contextmanager
def merged_weights(transformer: Any) -> Iterator[dict[str, Tensor]]:
    """Yield the weights of `transformer` under their original names, with adapters merged in."""
    adapted = [module for module in transformer.modules() if hasattr(module, "base_layer")]
    for module in adapted:
        module.merge(safe_merge=True)
    try:
        weights = transformer.state_dict()
        yield {name.replace(".base_layer.", "."): value for name, value in weights.items() if ".lora_" not in name}
    finally:
        for module in adapted:
            module.unmerge()
