"""Fast dropout and attention for training on a CPU, with softmax in float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

NAME = "bertrio"  # name of this attention in transformers
LEFT_TO_TORCH = ("position_bias", "softcap", "cache")  # options of some architectures, not implemented here
LEVELS = 1 << 16  # number of dropout rates: each entry of a mask uses 16 random bits


class BitDropout(nn.Dropout):
    r"""Dropout (Srivastava et al. 2014): each entry is 0 with probability p, and the others are divided by 1 - p.

    On the CPU, torch draws a double for each entry, which takes an eighth of a small encoder's step. Here four entries
    share a draw of 64 bits, 16 each. p is therefore rounded to a multiple of :math:`2^{-16}` (0.1 to 0.1000061). The
    divisor uses the rounded p, so that the mean is exact (up to rounding in bf16, as in `nn.Dropout`). On other devices
    it is `nn.Dropout`.

    Masks come from torch's global generator, as in `nn.Dropout`, so restoring its state reproduces them.
    """

    def forward(self, values: Tensor) -> Tensor:
        """Apply dropout to values of any shape."""
        if not self.training or not self.p or not values.is_cpu:
            return super().forward(values)
        mask, factor = dropout_mask(values, self.p)
        return values * mask.mul_(factor)


def dropout_mask(values: Tensor, p: float) -> tuple[Tensor, float]:
    """Draw a dropout mask at rate `p` > 0, like `values`: 1 for retained entries, 0 for others.

    Return it with the factor for the retained entries.
    """
    dropped = max(1, round(p * LEVELS))
    if dropped == LEVELS:
        return torch.zeros_like(values), 1.0
    count = values.numel()
    draws = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(1 << 63), None)
    bits = draws.view(torch.int16)[:count].view(values.shape)
    mask = torch.ge(bits, dropped - LEVELS // 2, out=torch.empty_like(values))  # casting a bool mask is slow
    return mask, LEVELS / (LEVELS - dropped)


def use_bit_dropout(module: nn.Module) -> None:
    """Replace every `nn.Dropout` in `module` by `BitDropout`."""
    for parent in module.modules():
        for name, child in parent.named_children():
            if type(child) is nn.Dropout:
                setattr(parent, name, BitDropout(child.p, child.inplace).train(child.training))


def cheap_dropout(transformer: Any) -> None:
    """Speed up all dropout of a transformer on a CPU: modules by `use_bit_dropout`, attention by `attend`.

    Attention is replaced only if all of it is torch's `scaled_dot_product_attention`. This changes the transformer's
    config in memory, but not in saved models.
    """
    use_bit_dropout(transformer)
    if transformer.config._attn_implementation != "sdpa" or transformer.config.sub_configs:
        return
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

    Torch has no fused kernel with dropout on a CPU: it computes in float32 throughout, draws a double for each weight,
    and checks for fully masked rows. Here masks are those of `BitDropout`, and the product with V is in V's precision,
    as in torch's kernel without dropout; scores and softmax are in float32 in both. Torch's function is used without
    dropout, on other devices, and for features that text encoders do not need: causal attention by a flag, fewer key
    heads than query heads, and `LEFT_TO_TORCH`.

    Args:
        module: the attention layer.
        query: [B, heads, T, d].
        key, value: [B, heads, S, d].
        attention_mask: True for keys that are attended to, or an addend of the scores; broadcast to [B, heads, T, S].
        dropout: the rate; 0 in evaluation.
        scaling: s; None for 1 / sqrt(d).

    Returns:
        [B, T, heads, d], and None for the weights, as in `AttentionInterface` of transformers. A fully masked row of
        padding gets the mean of V, not zeros as in torch.
    """
    flag = options.get("is_causal")
    causal = attention_mask is None and (getattr(module, "is_causal", True) if flag is None else flag)
    supported = bool(dropout) and query.is_cpu and query.shape[1] == key.shape[1]
    if not supported or causal or any(options.get(name) is not None for name in LEFT_TO_TORCH):
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
    precision = torch.promote_types(query.dtype, torch.float32)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    with torch.autocast("cpu", enabled=False):
        query, key = (x.to(precision, memory_format=torch.contiguous_format) for x in (query, key))
        scores = torch.matmul(query * scale, key.transpose(-1, -2))
        if attention_mask is not None:
            scores += _as_addend(attention_mask)
        weights = scores.softmax(-1).to(value.dtype)
        retained, factor = dropout_mask(weights, dropout)
        output = torch.matmul(weights * retained, value) * factor
    return output.transpose(1, 2).contiguous(), None


def _as_addend(mask: Tensor) -> Tensor:
    """Return the mask as an addend of scores, at least float32's minimum: -inf makes a fully masked row NaN."""
    minimum = torch.finfo(torch.float32).min
    return torch.where(mask, 0.0, minimum) if mask.dtype == torch.bool else mask.clamp(min=minimum)
