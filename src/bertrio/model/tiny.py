"""The encoder `tiny`: a small BERT with initial weights, so that the default run needs no download."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bertrio.config import TinyParams

INITIALIZER_RANGE = 0.1
POSITION_SHARE, TYPE_SHARE, MATCH_SCALE = 0.2, 0.5, 1.2


def tiny_config(tiny: TinyParams, vocab_size: int) -> Any:
    """Return a small `BertConfig`."""
    from transformers import BertConfig

    return BertConfig(
        vocab_size=vocab_size,
        hidden_size=tiny.hidden_size,
        num_hidden_layers=tiny.layers,
        num_attention_heads=tiny.heads,
        intermediate_size=tiny.intermediate_size,
        initializer_range=INITIALIZER_RANGE,
        hidden_dropout_prob=0.0,  # replaced by encoder.dropout and encoder.attention_dropout
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=512,
    )


@torch.no_grad()
def start_by_matching(bert: Any) -> None:
    r"""Set initial weights with which every token attends to equal tokens from the first step on.

    A transformer with random weights needs thousands of steps to learn to compare the words of two sentences. In
    pretrained ones :math:`W_Q W_K^\top` has a heavy diagonal. So the query and key weights of each head start as the
    same matrix, with orthonormal rows Q:

    .. math:: W_Q = W_K = s \, Q, \qquad W_Q^\top W_K = s^2 \, Q^\top Q

    Trockman and Kolter 2023, "Mimetic Initialization of Self-Attention Layers", section 3. Departures: the
    product is an exact projection without noise; value and output weights stay random; and instead of sinusoidal
    positions, the random position and type embeddings are small compared with those of words, so that a word is
    similar to itself at another position.

    Args:
        bert: a `BertModel` with random weights, changed in place.
    """
    bert.embeddings.position_embeddings.weight.mul_(POSITION_SHARE)
    bert.embeddings.token_type_embeddings.weight.mul_(TYPE_SHARE)
    for layer in bert.encoder.layer:
        attention = layer.attention.self
        heads = attention.query.weight.split(attention.attention_head_size)
        rows = [nn.init.orthogonal_(torch.empty(head.shape)) for head in heads]
        attention.query.weight.copy_(MATCH_SCALE * torch.cat(rows))
        attention.key.weight.copy_(attention.query.weight)
