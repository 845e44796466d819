"""Words of texts, whatever the tokenizer: their counts, edits of them, and which words have similar embeddings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")  # apostrophes and hyphens inside a word belong to it


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    return WORD.findall(text.lower())


def count_words(frame: pd.DataFrame, columns: Sequence[str]) -> Counter[str]:
    """Count each word, in lower case, in these columns."""
    return Counter(word for column in columns for text in frame[column] for word in words_of(text))


def delete_span(text: str, start: int, end: int) -> str:
    """Return the text without its characters from `start` to `end` and without a doubled space."""
    left, right = text[:start], text[end:]
    if not right[:1].isalnum():  # a space, or punctuation that follows a word directly
        left = left.rstrip()
    return (left + right).strip()


def replace_span(text: str, start: int, end: int, word: str) -> str:
    """Return the text with `word` in place of its characters from `start` to `end`, capitalized as they are."""
    return text[:start] + (word.capitalize() if text[start].isupper() else word) + text[end:]


class NearWords:
    """Nearest words by the cosine of an encoder's word embeddings, before any context.

    Only words that are a single token count, since a word piece is shared by many words.

    Args:
        vocabulary: words with their counts; of several words with the same token, the most frequent is used.
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
        """Return the `count` nearest words of the vocabulary, nearest first; none for words of several tokens."""
        words = list(dict.fromkeys(words))
        near: dict[str, list[str]] = {word: [] for word in words}
        for word, token in zip(words, self._tokens(words)):
            if token is not None and self._words:
                cosines = self._directions @ unit(self._vectors[[token]])[0]
                order = np.argsort(-cosines, kind="stable")[: count + 1]
                near[word] = [self._words[index] for index in order if self._ids[index] != token][:count]
        return near

    def nearest_of(self, word: str, others: Iterable[str]) -> str | None:
        """Return the nearest of `others`, other than `word`; None if `word` or all of them have several tokens."""
        others = list(dict.fromkeys(others))
        word_token, *tokens = self._tokens([word, *others])
        candidates = [(other, token) for other, token in zip(others, tokens) if token not in (None, word_token)]
        if word_token is None or not candidates:
            return None
        cosines = unit(self._vectors[[token for _, token in candidates]]) @ unit(self._vectors[[word_token]])[0]
        return candidates[int(cosines.argmax())][0]

    def _tokens(self, words: Sequence[str]) -> list[int | None]:
        """Return the token of each word inside a sentence; None for several tokens or an unknown one."""
        if not words:
            return []
        pieces = self._tokenizer([f" {word}" for word in words], add_special_tokens=False)["input_ids"]
        unknown = self._tokenizer.unk_token_id
        return [ids[0] if len(ids) == 1 and ids[0] != unknown else None for ids in pieces]


def unit(vectors: NDArray[np.floating]) -> NDArray[Any]:
    """Return the rows [N, H] scaled to length 1; rows of zeros stay."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(norms, 1e-12)
