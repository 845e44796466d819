"""Words as people see them, in texts of any tokenizer: where they stand, how often, and which are near each other."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")  # apostrophes and hyphens inside of a word are part of it


def words_of(text: str) -> list[str]:
    """The words of a text, lower-cased."""
    return WORD.findall(text.lower())


def count_words(frame: pd.DataFrame, columns: Sequence[str]) -> Counter[str]:
    """How often each word, lower-cased, stands in these columns."""
    return Counter(word for column in columns for text in frame[column] for word in words_of(text))


def without(text: str, start: int, end: int) -> str:
    """The text without what stands from `start` to `end`, and without the blank that this leaves over."""
    left, right = text[:start], text[end:]
    if not right[:1].isalnum():  # a blank, or what ends a sentence and follows its last word closely
        left = left.rstrip()
    return (left + right).strip()


def instead(text: str, start: int, end: int, word: str) -> str:
    """The text with `word` for what stands from `start` to `end`, with a capital where that has one."""
    return text[:start] + (word.capitalize() if text[start].isupper() else word) + text[end:]


class NearWords:
    """The words that an encoder takes for near to a word, before it has read any context.

    Near is the cosine of two of its word embeddings. Only whole words count, those that its tokenizer leaves in one
    piece: the embedding of a piece that many words share says little of any one of them.

    Args:
        vocabulary: words with their counts; of several that are one token the most frequent stands for it.
        tokenizer: a transformers fast tokenizer.
        vectors: the encoder's word embeddings [V, H].
    """

    def __init__(self, vocabulary: Mapping[str, int], tokenizer: Any, vectors: NDArray[np.floating]) -> None:
        self._tokenizer, self._vectors = tokenizer, vectors
        by_token: dict[int, str] = {}
        words = sorted(vocabulary, key=lambda word: (-vocabulary[word], word))
        for word, token in zip(words, self._tokens(words)):
            if token is not None:
                by_token.setdefault(token, word)
        self._ids = np.array(list(by_token), dtype=np.int64)
        self._words = list(by_token.values())
        self._directions = unit(vectors[self._ids])

    def near(self, words: Iterable[str], count: int) -> dict[str, list[str]]:
        """The `count` nearest words of the vocabulary to each word, nearest first; none for words of several pieces."""
        words = list(dict.fromkeys(words))
        near: dict[str, list[str]] = {word: [] for word in words}
        for word, token in zip(words, self._tokens(words)):
            if token is not None and self._words:
                cosines = self._directions @ unit(self._vectors[[token]])[0]
                order = np.argsort(-cosines, kind="stable")[: count + 1]
                near[word] = [self._words[place] for place in order if self._ids[place] != token][:count]
        return near

    def nearest_of(self, word: str, others: Iterable[str]) -> str | None:
        """The nearest of `others`; None if `word` or all of them are of several pieces, or the same as it."""
        others = list(dict.fromkeys(others))
        own, *tokens = self._tokens([word, *others])
        there = [(other, token) for other, token in zip(others, tokens) if token not in (None, own)]
        if own is None or not there:
            return None
        cosines = unit(self._vectors[[token for _, token in there]]) @ unit(self._vectors[[own]])[0]
        return there[int(cosines.argmax())][0]

    def _tokens(self, words: Sequence[str]) -> list[int | None]:
        """The token that each word is, in the middle of a sentence; None if it is several, or unknown."""
        if not words:
            return []
        pieces = self._tokenizer([f" {word}" for word in words], add_special_tokens=False)["input_ids"]
        unknown = self._tokenizer.unk_token_id
        return [ids[0] if len(ids) == 1 and ids[0] != unknown else None for ids in pieces]


def unit(vectors: NDArray[np.floating]) -> NDArray[Any]:
    """The rows [N, H] at length 1; a row of zeros stays."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(norms, 1e-12)
