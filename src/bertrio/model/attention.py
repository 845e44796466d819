"""Attention for training on a CPU: softmax in float32, and dropout whose masks are cheap to draw."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bertrio.model.dropout import bit_dropout, draw_bits

NAME = "bertrio"  # under which transformers knows it
SPECIAL = ("position_bias", "softcap", "cache")  # what some architectures ask of attention besides


def cheap_dropout(transformer: nn.Module) -> None:
    """Makes all dropout of a transformer cheap on a CPU: of modules by `draw_bits`, of attention by `attend`.

    Attention changes where it is torch's `scaled_dot_product_attention`; saved models know nothing of it.
    """
    draw_bits(transformer)
    if getattr(getattr(transformer, "config", None), "_attn_implementation", None) == "sdpa":
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask

        AttentionInterface.register(NAME, attend)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        transformer.set_attn_implementation(NAME)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    r"""Scaled dot-product attention, :math:`\mathrm{dropout}(\mathrm{softmax}(s Q K^\top + M)) V` (Vaswani et al.
    2017, "Attention Is All You Need", section 3.2.1).

    Torch's own has no fused kernel for dropout on a CPU: it works in float32 throughout, draws a double for each
    weight, and looks for rows that are masked as a whole. Here masks come from `bit_dropout`, and the product with V
    is in V's own precision, as torch's kernel without dropout has it; scores and softmax are in float32 in both. Where
    there is no dropout, or no CPU, or the passes are compiled, it is torch's own.

    Args:
        module: the attention layer.
        query, key, value: [B, heads, T, d].
        attention_mask: True where a key counts, or what is added to the scores, to be broadcast to [B, heads, T, T].
        dropout: the rate; 0 in evaluation.
        scaling: s; None for 1 / sqrt(d).

    Returns:
        [B, T, heads, d], and no weights, as `AttentionInterface` of transformers has it. A row that is masked as a
        whole, which only padding can be, gets the mean of V, and not zeros as in torch's own.
    """
    causal = options.get("is_causal")
    causal = attention_mask is None and (getattr(module, "is_causal", True) if causal is None else causal)
    cheap = bool(dropout) and not torch.compiler.is_compiling() and query.is_cpu and query.shape[1] == key.shape[1]
    if not cheap or causal or any(options.get(name) is not None for name in SPECIAL):
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
    fine = torch.promote_types(query.dtype, torch.float32)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    with torch.autocast("cpu", enabled=False):
        scores = torch.matmul(query.to(fine) * scale, key.to(fine).transpose(-1, -2))
        if attention_mask is not None:
            scores += _added(attention_mask)
        weights = bit_dropout(scores.softmax(-1).to(value.dtype), dropout)
        mixed = torch.matmul(weights, value)
    return mixed.transpose(1, 2).contiguous(), None


def _added(mask: Tensor) -> Tensor:
    """What is added to scores: the smallest number where a key is hidden, for infinity makes NaN of a whole row."""
    return torch.where(mask, 0.0, torch.finfo(torch.float32).min) if mask.dtype == torch.bool else mask
