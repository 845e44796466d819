"""Which tokens a masked-language model is to guess, token by token or word by word."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertrio.core.errors import UserError

WORD_MARKS = {"##": "continues", "Ġ": "begins", "▁": "begins"}  # WordPiece, byte-level BPE, SentencePiece


def mask_tokens(
    blocks: Tensor, tokenizer: Any, probability: float, of: torch.Generator, begins: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Masks tokens for prediction: of those picked, 80 % become [MASK], 10 % a random token, 10 % stay.

    Devlin et al. 2019, section 3.1 and appendix A.1. With `begins`, whole words are picked: the draw of a word's first
    token decides for all of it, while the 80/10/10 stay a matter of each token, as in the authors' own later release
    (google-research/bert, create_pretraining_data.py, `do_whole_word_mask`). Departs from that release: each word is
    picked on its own with `probability`, where it shuffles the words and takes them until the share is reached, so the
    share is the same on average alone; and words are told apart by the tokenizer's marks, see `word_beginnings`.

    Args:
        blocks: [B, T] token ids.
        tokenizer: names the mask and the special tokens, which are never picked.
        probability: the share of tokens that are picked.
        of: the generator that everything is drawn from.
        begins: [V], which tokens begin a word; None picks tokens one by one.

    Returns:
        The changed ids [B, T], and which were picked [B, T].
    """
    special = torch.isin(blocks, torch.tensor(tokenizer.all_special_ids))
    draw = torch.rand(blocks.shape, generator=of)
    if begins is not None:
        draw = draw.gather(1, _first_of_word(blocks, special, begins))
    picked = (draw < probability) & ~special
    kind = torch.rand(blocks.shape, generator=of)
    random = torch.randint(len(tokenizer), blocks.shape, generator=of, dtype=blocks.dtype)
    masked = torch.where(picked & (kind < 0.8), tokenizer.mask_token_id, blocks)
    return torch.where(picked & (kind >= 0.9), random, masked), picked


def _first_of_word(blocks: Tensor, special: Tensor, begins: Tensor) -> Tensor:
    """For every place [B, T], that of the first token of its word. No word reaches over a special token or a block."""
    first = begins[blocks] | special
    first[:, 1:] |= special[:, :-1]
    first[:, 0] = True
    return torch.where(first, torch.arange(blocks.shape[1]), 0).cummax(dim=1).values


def word_beginnings(tokenizer: Any) -> Tensor:
    """Which tokens of the vocabulary begin a word: bool [V], by token id.

    WordPiece marks the tokens that continue a word ("##ing"), byte-level BPE ("Ġgood") and SentencePiece
    ("▁good") those that begin one; of the three, the mark that most tokens have is the tokenizer's. A WordPiece
    tokenizer has cut punctuation off before, so that it makes words of its own; with the others, which mark blanks,
    it belongs to the word that it is written to.

    Raises:
        UserError: if no token has such a mark.
    """
    vocabulary = tokenizer.get_vocab()
    marked = {mark: sum(token.startswith(mark) and token != mark for token in vocabulary) for mark in WORD_MARKS}
    mark = max(marked, key=marked.get)
    if not marked[mark]:
        raise UserError(
            f"mlm.whole_word: found no token in this encoder's vocabulary that begins with {', '.join(WORD_MARKS)}, "
            "expected one of them to mark where words begin or continue; set mlm.whole_word to false"
        )
    begins = np.ones(max(vocabulary.values()) + 1, dtype=bool)
    for token, index in vocabulary.items():
        begins[index] = token.startswith(mark) == (WORD_MARKS[mark] == "begins")
    return torch.from_numpy(begins)
