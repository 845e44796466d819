"""The most similar pairs of sentences in a file, by the vectors of a bi-encoded task.

The search is `paraphrase_mining_embeddings` of sentence-transformers, an exact comparison of all pairs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import BinaryIO

import numpy as np
import torch
from sentence_transformers.util import dot_score, normalize_embeddings, paraphrase_mining_embeddings

from bertrio.core.console import say
from bertrio.core.errors import UserError
from bertrio.inference.batch_predict import DIGITS, delimited_line
from bertrio.inference.predictor import Predictor

MAX_SCORES = 2**23  # cosines held in memory at a time
COLUMNS = ("cosine", "line_a", "line_b", "text_a", "text_b")


def mine_file(
    predictor: Predictor, task: str | None, top: int, source: BinaryIO, target: BinaryIO, name: str = "standard input"
) -> None:
    """Write the `top` most similar pairs of the sentences in `source` to `target`, as TSV.

    The columns are cosine, line_a, line_b, text_a and text_b. The most similar pair comes first. A sentence on
    several lines counts once, at the first of them.

    Args:
        predictor: one model with a bi-encoded task.
        task: the bi-encoded task; None if there is only one.
        top: number of pairs.
        source: one sentence a line, in UTF-8.
        target: file to write.
        name: name of the source in messages.

    Raises:
        UserError: if there is no such task, or there are fewer than two sentences.
    """
    lines = read_sentences(source)
    if len(lines) < 2:
        raise UserError(f"{name}: found {len(lines)} sentences, expected two or more, each in a line of its own")
    texts = list(lines)
    pairs = most_similar(predictor.encode(texts, task), top)
    target.write(delimited_line(COLUMNS, "\t"))
    for first, second, cosine in pairs:
        a, b = texts[first], texts[second]
        target.write(delimited_line((cosine, lines[a], lines[b], a, b), "\t"))
    say(f"mine: {len(pairs):,} pairs out of {len(texts):,} sentences")


def read_sentences(source: Iterable[bytes]) -> dict[str, int]:
    """Return the number of the first line of each sentence, in the order of the file, without empty lines."""
    lines: dict[str, int] = {}
    for number, line in enumerate(source, start=1):
        text = line.decode("utf-8-sig", errors="replace").replace("\0", "").strip()
        if text:
            lines.setdefault(text, number)
    return lines


def most_similar(vectors: np.ndarray, top: int) -> list[tuple[int, int, float]]:
    """Return the `top` pairs of rows of [N, H] with the largest cosines, or all if there are fewer.

    A pair is the earlier row, the later row and the cosine, rounded to six decimals. Pairs of equal cosine are sorted
    by their rows.
    """
    mined = paraphrase_mining_embeddings(
        normalize_embeddings(torch.from_numpy(vectors)),
        query_chunk_size=max(1, MAX_SCORES // len(vectors)),
        max_pairs=top,
        top_k=min(top, len(vectors)),
        score_function=dot_score,
    )
    pairs = [(int(first), int(second), round(cosine, DIGITS)) for cosine, first, second in mined]
    return sorted(pairs, key=lambda pair: (-pair[2], *pair[:2]))
