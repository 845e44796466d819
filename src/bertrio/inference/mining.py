"""The most similar pairs of sentences in a file, by the vectors of a task that encodes its texts apart.

The search is that of faiss (Johnson et al. 2017, https://arxiv.org/abs/1702.08734). Sentences come in blocks, and each
block asks for all that is like it among the sentences before it and in itself, so that each pair is looked at once. How
alike they have to be rises with the pairs found so far, so that few more than those asked for are ever held. What is
exact and what is approximate costs how much: see docs/prediction.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import BinaryIO, NamedTuple

import faiss
import numpy as np

from bertrio.core.console import progress, say
from bertrio.core.errors import UserError
from bertrio.data.table import Unusable, clean_text
from bertrio.inference.answers import FORMATS
from bertrio.inference.predictor import Predictor

CHUNK = 4096  # sentences between two moves of the progress bar, sorted by length together
BLOCK = 1024  # rows compared together; faiss takes ten times as long for each of some 300 or fewer
PAIRS = 2**22  # compared together: some 400 MB if all of them are alike
LEAST = -2.0  # less than any cosine
PROBES = 16  # of the lists of an approximate search, how many each row is compared with
DIGITS = 6  # decimals by which cosines are told apart
COLUMNS = ("cosine", "line_a", "line_b", "text_a", "text_b")


class Pair(NamedTuple):
    """Two rows, the earlier one first, and the cosine of their vectors."""

    first: int
    second: int
    cosine: float


def mine_file(
    predictor: Predictor,
    task: str | None,
    top: int,
    source: BinaryIO,
    target: BinaryIO,
    name: str = "standard input",
    approximate: bool = False,
) -> None:
    """Writes the `top` most similar pairs of the sentences in `source` to `target`, as TSV.

    The columns are cosine, line_a, line_b, text_a and text_b; pairs come from the most similar one on, and of equally
    similar ones by line. A sentence that stands in several lines counts once, in the first of them. Empty lines are
    skipped, and lines that are no text are told of on standard error and left out.

    Args:
        predictor: one model, with a task that encodes its texts apart.
        task: that task; None if it is the only one.
        top: pairs to find.
        source: a sentence a line, in UTF-8.
        target: what to write.
        name: what messages call the source.
        approximate: see `most_similar`.

    Raises:
        UserError: if there is no such task, or there are fewer than two sentences.
    """
    predictor.encode([], task)  # whether there are vectors is known before the file has been read
    lines = read_sentences(source, name)
    if len(lines) < 2:
        raise UserError(f"{name}: found {len(lines)} sentences, expected two or more, each in a line of its own")
    texts = list(lines)
    pairs = most_similar(_encoded(predictor, task, texts), top, approximate)
    form = FORMATS["tsv"]
    target.write(form.header(COLUMNS).encode())
    for pair in pairs:
        a, b = texts[pair.first], texts[pair.second]
        target.write(form.line(dict(zip(COLUMNS, (pair.cosine, lines[a], lines[b], a, b)))).encode())
    say(f"mine: {len(pairs):,} pairs out of {len(texts):,} sentences")


def read_sentences(source: Iterable[bytes], name: str) -> dict[str, int]:
    """The number of the first line of each sentence, in the order of the file."""
    lines: dict[str, int] = {}
    twice = 0
    for number, line in enumerate(source, start=1):
        try:
            text = clean_text(line.decode("utf-8-sig" if number == 1 else "utf-8").replace("\0", ""))
        except UnicodeDecodeError:
            say(f"{name}: line {number}: not UTF-8; left out")
        except Unusable:
            continue
        else:
            twice += text in lines
            lines.setdefault(text, number)
    if twice:
        say(f"{name}: {twice:,} lines say again what an earlier one says, and are left out")
    return lines


def _encoded(predictor: Predictor, task: str | None, texts: list[str]) -> np.ndarray:
    vectors = []
    with progress("encoding", total=len(texts)) as bar:
        for start in range(0, len(texts), CHUNK):
            vectors.append(predictor.encode(texts[start : start + CHUNK], task))
            bar.advance(len(vectors[-1]))
    return np.concatenate(vectors)


def most_similar(vectors: np.ndarray, top: int, approximate: bool = False) -> list[Pair]:
    """The `top` pairs of rows with the largest cosines, or all if there are fewer.

    Cosines are compared, told and sorted by six decimals; of equal ones the pair whose first row comes first is first,
    then the one whose second row does.

    Args:
        vectors: float32 [N, H].
        top: pairs to find, 1 or more.
        approximate: whether rows are compared with those in lists near theirs alone, see `_lists`. Some pairs are not
            found then; the others are the same, in the same order.
    """
    # Products of many rows at once are fast, and their lists of what was found long; so the rows before are held in
    # shards. In lists near a row there is little to multiply.
    block = max(1, PAIRS // len(vectors)) if approximate else BLOCK
    shard = len(vectors) if approximate else max(BLOCK, PAIRS // BLOCK // BLOCK * BLOCK)
    best, shards = Best(top, len(vectors)), []
    with progress("comparing", total=len(vectors)) as bar:
        for start in range(0, len(vectors), block):
            rows = _unit(vectors[start : start + block])
            if start % shard == 0:
                shards.append(_lists(vectors) if approximate else faiss.IndexFlatIP(vectors.shape[1]))
            shards[-1].add(rows)
            for place, index in enumerate(shards):
                limits, cosines, found = index.range_search(rows, best.least)
                asked = np.repeat(np.arange(start, start + len(rows)), np.diff(limits.astype(np.int64)))
                best.offer(cosines, found + place * shard, asked)
            bar.advance(len(rows))
    pairs = best.pairs()
    exact = _cosines(vectors, pairs)
    return sorted(
        (Pair(*pair, value) for pair, value in zip(pairs.tolist(), exact)),
        key=lambda pair: (-pair.cosine, pair.first, pair.second),
    )


class Best:
    """The best pairs so far.

    Args:
        top: how many to keep.
        rows: N, how many rows there are to make pairs of.

    Attributes:
        least: what the cosine of a pair has to be larger than to be of use.
    """

    def __init__(self, top: int, rows: int) -> None:
        self.least = LEAST
        self._top, self._rows = top, rows
        self._cosines, self._places = [np.empty(0, np.float32)], [np.empty(0, np.int64)]
        self._new = 0

    def offer(self, cosines: np.ndarray, first: np.ndarray, second: np.ndarray) -> None:
        """Takes from pairs, their cosines and rows [M], what is good.

        Only those whose first row is the earlier one count: a block finds each pair of its own from both sides, and
        each row itself.
        """
        once = first < second
        self._cosines.append(cosines[once].round(DIGITS))
        self._places.append(first[once] * self._rows + second[once])
        self._new += len(self._cosines[-1])
        if self._new > max(self._top, PAIRS // 4):  # to sort out a few each time would take longer than the search
            self._sort_out()

    def pairs(self) -> np.ndarray:
        """Their rows, the earlier one first, int64 [K, 2]; in no order."""
        self._sort_out()
        return np.stack(np.divmod(self._places[0], self._rows), axis=1)

    def _sort_out(self) -> None:
        cosines, places = np.concatenate(self._cosines), np.concatenate(self._places)
        if len(cosines) > self._top:
            last = np.partition(cosines, -self._top)[-self._top]
            better, equal = np.flatnonzero(cosines > last), np.flatnonzero(cosines == last)
            missing = self._top - len(better)
            first = np.argpartition(places[equal], missing - 1)[:missing]  # of equal ones those of the first rows
            kept = np.concatenate((better, equal[first]))
            cosines, places = cosines[kept], places[kept]
            self.least = float(last) - 10**-DIGITS  # which takes in all that are rounded to the last one
        self._cosines, self._places, self._new = [cosines], [places], 0


def _lists(vectors: np.ndarray) -> faiss.Index:
    """An inverted file (IVF) without rows.

    Each row goes into the list whose centre is the most similar to it, and is compared with those in the `PROBES` lists
    that are next to it. There are 4 sqrt(N) lists, where as much time goes into centres as into rows, or fewer, so that
    they hold 32 rows each. Centres are found by k-means, from a seed of faiss's own: a file always has the same.
    """
    count = max(1, min(4 * math.isqrt(len(vectors)), len(vectors) // 32))
    index = faiss.index_factory(vectors.shape[1], f"IVF{count},Flat", faiss.METRIC_INNER_PRODUCT)
    index.nprobe = min(PROBES, count)
    index.cp.min_points_per_centroid = 1  # else faiss warns of small files
    index.cp.max_points_per_centroid = 64
    index.train(_unit(vectors))
    return index


def _unit(rows: np.ndarray) -> np.ndarray:
    """The rows with length 1; those of length 0 stay as they are."""
    rows = np.array(rows, dtype=np.float32, order="C")
    faiss.normalize_L2(rows)
    return rows


def _cosines(vectors: np.ndarray, pairs: np.ndarray) -> list[float]:
    """The cosine of each pair, in float64, to six decimals."""
    found: list[float] = []
    for start in range(0, len(pairs), CHUNK):
        one, other = (vectors[pairs[start : start + CHUNK, side]].astype(np.float64) for side in (0, 1))
        norms = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
        found += np.round((one * other).sum(1) / np.maximum(norms, 1e-16), DIGITS).tolist()
    return found
