"""The most similar pairs of sentences in a file, by the vectors of a task that encodes its texts apart.

The search is exact: all cosines are looked at, a strip of rows at a time. For 100,000 sentences that takes less time
than encoding them, so that an index, which finds most pairs but not all, would save nothing; see docs/prediction.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bertrio.answers import FORMATS
from bertrio.console import progress, say
from bertrio.data.table import Unusable, clean_text
from bertrio.errors import UserError
from bertrio.predictor import Predictor

CHUNK = 4096  # sentences between two moves of the progress bar, sorted by length together
TILE = 2048  # rows that are compared with as many others together: 16 MiB of cosines
LEAST = -2.0  # less than any cosine
DIGITS = 6  # decimals by which cosines are told apart
COLUMNS = ("cosine", "line_a", "line_b", "text_a", "text_b")


class Pair(NamedTuple):
    """Two rows, the earlier one first, and the cosine of their vectors."""

    first: int
    second: int
    cosine: float


def mine_file(
    predictor: Predictor, task: str | None, top: int, source: BinaryIO, target: BinaryIO, name: str = "standard input"
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

    Raises:
        UserError: if there is no such task, or there are fewer than two sentences.
    """
    predictor.encode([], task)  # whether there are vectors is known before the file has been read
    lines = read_sentences(source, name)
    if len(lines) < 2:
        raise UserError(f"{name}: found {len(lines)} sentences, expected two or more, each in a line of its own")
    texts = list(lines)
    pairs = most_similar(_encoded(predictor, task, texts), top, predictor.device)
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


def most_similar(vectors: np.ndarray, top: int, device: Any = "cpu") -> list[Pair]:
    """The `top` pairs of rows with the largest cosines, or all if there are fewer.

    Cosines are compared in float32, and told and sorted by six decimals; of equal ones the pair whose first row comes
    first is first, then the one whose second row does.

    Args:
        vectors: float32 [N, H].
        top: pairs to find, 1 or more.
        device: where to multiply.
    """
    unit = F.normalize(torch.from_numpy(vectors).to(device), eps=1e-8)
    starts = range(0, len(unit), TILE)
    best = Best(top)
    with progress("comparing", total=len(starts) * (len(starts) + 1) // 2) as bar:
        for first in starts:
            for second in starts[first // TILE :]:
                cosines = unit[first : first + TILE] @ unit[second : second + TILE].T
                if first == second:  # rows with themselves: each pair once
                    cosines.masked_fill_(torch.ones_like(cosines, dtype=torch.bool).tril(), -torch.inf)
                best.offer(cosines, first, second)
                bar.advance()
    exact = _cosines(vectors, best.pairs)
    pairs = [Pair(*pair, value) for pair, value in zip(best.pairs.tolist(), exact)]
    return sorted(pairs, key=lambda pair: (-pair.cosine, pair.first, pair.second))


class Best:
    """The best pairs so far.

    Args:
        top: how many to keep.

    Attributes:
        pairs: their rows, int64 [K, 2]; from the largest cosine on, and of equal ones by row.
        cosines: float32 [K].
    """

    def __init__(self, top: int) -> None:
        self.top = top
        self.pairs, self.cosines = np.empty((0, 2), dtype=np.int64), np.empty(0, dtype=np.float32)

    def offer(self, cosines: Tensor, first: int, second: int) -> None:
        """Takes from a tile of cosines [R, S], whose rows and columns count from `first` and `second`, what is good."""
        least = float(self.cosines[-1]) if len(self.cosines) == self.top else LEAST
        if cosines.amax() < least:  # most tiles have none; looking for the places takes five times as long
            return
        flat = cosines.flatten()
        places = (flat >= least).nonzero().squeeze(1)
        if len(places) > self.top:
            last = flat[places].topk(self.top).values[-1]
            better, equal = (flat > last).nonzero().squeeze(1), (flat == last).nonzero().squeeze(1)
            places = torch.cat((better, equal[: self.top - len(better)]))
        found = torch.stack((places // cosines.shape[1] + first, places % cosines.shape[1] + second), 1)
        self._merge(found.cpu().numpy(), flat[places].cpu().numpy())

    def _merge(self, pairs: np.ndarray, cosines: np.ndarray) -> None:
        pairs, cosines = np.concatenate((self.pairs, pairs)), np.concatenate((self.cosines, cosines))
        order = np.lexsort((pairs[:, 1], pairs[:, 0], -cosines))[: self.top]
        self.pairs, self.cosines = pairs[order], cosines[order]


def _cosines(vectors: np.ndarray, pairs: np.ndarray) -> list[float]:
    """The cosine of each pair, in float64, to six decimals."""
    one, other = (vectors[pairs[:, side]].astype(np.float64) for side in (0, 1))
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return np.round((one * other).sum(1) / np.maximum(norms, 1e-16), DIGITS).tolist()
