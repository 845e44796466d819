import io

import numpy as np
import pytest

pytest.importorskip("sentence_transformers", reason="needs the extra mining")

from bertrio.core.errors import UserError
from bertrio.inference import mining
from bertrio.inference.mining import mine_file, most_similar


def brute_force(vectors, top):
    unit = vectors.astype(np.float64) / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-8)
    cosines = unit @ unit.T
    pairs = [(-cosines[a, b], a, b) for a in range(len(unit)) for b in range(a + 1, len(unit))]
    return [(a, b, -negative) for negative, a, b in sorted(pairs)[:top]]


@pytest.mark.parametrize(("rows", "top"), [(2, 1), (50, 7), (50, 10_000)])
def test_most_similar_pairs_match_brute_force(monkeypatch, rows, top):
    monkeypatch.setattr(mining, "MAX_SCORES", 200)  # several chunks of queries
    vectors = np.random.default_rng(rows).normal(size=(rows, 8)).astype(np.float32)
    pairs, expected = most_similar(vectors, top), brute_force(vectors, top)
    assert [pair[:2] for pair in pairs] == [pair[:2] for pair in expected]
    assert np.allclose([pair[2] for pair in pairs], [pair[2] for pair in expected], atol=2e-6)


def test_pairs_of_equal_cosine_are_sorted_by_row():
    pairs = most_similar(np.eye(4, dtype=np.float32)[np.arange(12) % 4], 12)  # every fourth row is the same
    assert pairs == [(a, b, 1.0) for a in range(12) for b in range(a + 4, 12, 4)]


class Letters:
    """A predictor whose vectors count letters."""

    def encode(self, texts, task=None):
        return np.array([[text.count(letter) for letter in "abc"] for text in texts], dtype=np.float32).reshape(-1, 3)


def mined(text, top=3):
    target = io.BytesIO()
    mine_file(Letters(), None, top, io.BytesIO(text.encode()), target, "some.txt")
    return target.getvalue().decode()


def test_pairs_are_written_with_line_numbers():
    assert mined("\ufeffaab\r\nccc\n\n aab\na a\tb\x00\nabbb") == (
        "cosine\tline_a\tline_b\ttext_a\ttext_b\n"
        '1.000000\t1\t5\taab\t"a a\tb"\n'
        "0.707107\t1\t6\taab\tabbb\n"
        '0.707107\t5\t6\t"a a\tb"\tabbb\n'
    )  # fmt: skip


def test_a_single_sentence_is_an_error():
    with pytest.raises(UserError, match="some.txt: found 1 sentences, expected two or more"):
        mined("aab\naab\n")
