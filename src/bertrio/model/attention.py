"""Dropout and attention for training on a CPU, with masks that are cheap to draw and softmax in float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

NAME = "bertrio"  # under which transformers knows it
LEFT_TO_TORCH = ("position_bias", "softcap", "cache")  # what some architectures ask of attention besides
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


def cheap_dropout(transformer: Any) -> None:
    """Makes all dropout of a transformer cheap on a CPU: of modules by `draw_bits`, of attention by `attend`.

    Attention changes where all of it is torch's `scaled_dot_product_attention`. The transformer's config names another
    one from then on, in memory alone: saved models know nothing of it.
    """
    draw_bits(transformer)
    config: Any = getattr(transformer, "config", None)
    if config is None or getattr(config, "_attn_implementation", None) != "sdpa" or config.sub_configs:
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

    Torch's own has no fused kernel for dropout on a CPU: it works in float32 throughout, draws a double for each
    weight, and looks for rows that are masked as a whole. Here masks are those of `BitDropout`, and the product with V
    is in V's own precision, as torch's kernel without dropout has it; scores and softmax are in float32 in both. It
    stays torch's own without dropout, elsewhere than on a CPU, in compiled passes, and for what encoders of texts have
    no use for: causal attention by a flag, fewer heads of keys than of queries, and `LEFT_TO_TORCH`.

    Args:
        module: the attention layer.
        query: [B, heads, T, d].
        key, value: [B, heads, S, d].
        attention_mask: True where a key counts, or what is added to the scores; to be broadcast to [B, heads, T, S].
        dropout: the rate; 0 in evaluation.
        scaling: s; None for 1 / sqrt(d).

    Returns:
        [B, T, heads, d], and no weights, as `AttentionInterface` of transformers has it. A row that is masked as a
        whole, which only padding can be, gets the mean of V, and not zeros as in torch's own.
    """
    flag = options.get("is_causal")
    causal = attention_mask is None and (getattr(module, "is_causal", True) if flag is None else flag)
    cheap = bool(dropout) and not torch.compiler.is_compiling() and query.is_cpu and query.shape[1] == key.shape[1]
    if not cheap or causal or any(options.get(name) is not None for name in LEFT_TO_TORCH):
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
    precision = torch.promote_types(query.dtype, torch.float32)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    with torch.autocast("cpu", enabled=False):
        query, key = (of.to(precision, memory_format=torch.contiguous_format) for of in (query, key))
        scores = torch.matmul(query * scale, key.transpose(-1, -2))
        if attention_mask is not None:
            scores += _as_addend(attention_mask)
        weights = scores.softmax(-1).to(value.dtype)
        kept, factor = kept_entries(weights, dropout)
        mixed = torch.matmul(weights * kept, value) * factor
    return mixed.transpose(1, 2).contiguous(), None


def _as_addend(mask: Tensor) -> Tensor:
    """What is added to scores, never less than float32's smallest number: infinity makes NaN of a whole row."""
    least = torch.finfo(torch.float32).min
    return torch.where(mask, 0.0, least) if mask.dtype == torch.bool else mask.clamp(min=least)
