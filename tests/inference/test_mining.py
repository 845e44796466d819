import io

import numpy as np
import pytest

pytest.importorskip("faiss", reason="needs the extra mining")

from bertrio.core.errors import UserError
from bertrio.inference import mining
from bertrio.inference.mining import mine_file, most_similar, read_sentences


def by_hand(vectors, top):
    unit = vectors.astype(np.float64) / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-8)
    cosines = (unit @ unit.T).round(6)
    pairs = [(-cosines[a, b], a, b) for a in range(len(unit)) for b in range(a + 1, len(unit))]
    return [(a, b, -negative) for negative, a, b in sorted(pairs)[:top]]


def in_blocks_of(monkeypatch, block, pairs):
    monkeypatch.setattr(mining, "BLOCK", block)
    monkeypatch.setattr(mining, "PAIRS", pairs)


@pytest.mark.parametrize("top", [1, 7, 300, 10_000])
@pytest.mark.parametrize("rows", [2, 3, 16, 50])
def test_all_pairs_are_looked_at_each_once(monkeypatch, rows, top):
    in_blocks_of(monkeypatch, 4, 64)  # and 16 to a shard
    vectors = np.random.default_rng(rows).normal(size=(rows, 8)).astype(np.float32)
    found = most_similar(vectors, top)
    expected = by_hand(vectors, top)
    assert [pair[:2] for pair in found] == [pair[:2] for pair in expected]
    assert np.allclose([pair.cosine for pair in found], [pair[2] for pair in expected], atol=2e-6)


def test_of_equally_similar_pairs_the_first_are_found_first_whatever_the_blocks(monkeypatch):
    vectors = np.eye(4, dtype=np.float32)[np.arange(40) % 4]  # every fourth is the same
    expected = [(a, b) for a in range(40) for b in range(a + 4, 40, 4)][:25]
    for block, pairs in ((1, 1), (3, 9), (3, 50), (16, 512), (64, 2**22)):
        in_blocks_of(monkeypatch, block, pairs)
        found = most_similar(vectors, 25)
        assert [pair[:2] for pair in found] == expected and {pair.cosine for pair in found} == {1.0}


def test_what_is_found_at_a_time_is_bounded_even_if_all_are_alike(monkeypatch):
    in_blocks_of(monkeypatch, 16, 16 * 64)
    sizes, offer = [], mining.Best.offer
    monkeypatch.setattr(mining.Best, "offer", lambda best, *found: sizes.append(len(found[0])) or offer(best, *found))
    found = most_similar(np.ones((400, 8), dtype=np.float32), 500)
    assert [pair[:2] for pair in found] == [(0, b) for b in range(1, 400)] + [(1, b) for b in range(2, 103)]
    assert max(sizes) == 16 * 64
    sizes.clear()
    most_similar(np.ones((400, 8), dtype=np.float32), 500, approximate=True)
    assert max(sizes) <= 16 * 64


def clustered(rows, width=16, seed=0):
    draws = np.random.default_rng(seed)
    centres = draws.normal(size=(rows // 20, width))
    return (centres[draws.integers(0, len(centres), rows)] + 0.3 * draws.normal(size=(rows, width))).astype(np.float32)


def test_an_approximate_search_finds_most_in_the_same_order_and_the_same_each_time():
    vectors = clustered(2000)
    exact, found = most_similar(vectors, 500), most_similar(vectors, 500, approximate=True)
    there = set(exact)
    assert len(found) == 500 and len(there.intersection(found)) >= 450
    assert [pair for pair in found if pair in there] == [pair for pair in exact if pair in set(found)]
    assert most_similar(vectors, 500, approximate=True) == found


@pytest.mark.parametrize("rows", [2, 3, 50])
def test_in_a_small_file_an_approximate_search_misses_nothing(rows, capfd):
    vectors = np.random.default_rng(rows).normal(size=(rows, 8)).astype(np.float32)
    assert most_similar(vectors, 100, approximate=True) == most_similar(vectors, 100)
    assert capfd.readouterr() == ("", "")


def test_the_length_of_a_vector_has_no_say_and_zero_is_like_nothing():
    vectors = np.array([[1, 0], [0, 0], [100, 1], [-3, 0]], dtype=np.float32)
    found = most_similar(vectors, 6)
    assert found[0][:2] == (0, 2) and found[0].cosine == pytest.approx(0.99995, abs=1e-5)
    assert [pair.cosine for pair in found if 1 in pair[:2]] == [0.0, 0.0, 0.0]
    assert found[-1].cosine == -1.0 or found[-1].cosine == pytest.approx(-0.99995, abs=1e-5)


def test_a_sentence_counts_once_and_what_is_no_text_is_told_of(capsys):
    lines = b"\xef\xbb\xbfone\r\n\n  two \none\n\xff\nthree\x00\n two\nfour"
    assert read_sentences(io.BytesIO(lines), "some.txt") == {"one": 1, "two": 3, "three": 6, "four": 8}
    assert capsys.readouterr().err.splitlines() == [
        "some.txt: line 5: not UTF-8; left out",
        "some.txt: 2 lines say again what an earlier one says, and are left out",
    ]


class Letters:
    """A predictor whose vectors count letters."""

    def encode(self, texts, task=None):
        return np.array([[text.count(letter) for letter in "abc"] for text in texts], dtype=np.float32).reshape(-1, 3)


def mined(text, top=2):
    target = io.BytesIO()
    mine_file(Letters(), None, top, io.BytesIO(text.encode()), target, "some.txt")
    return target.getvalue().decode()


def test_pairs_come_from_the_most_similar_on_with_their_lines(monkeypatch):
    monkeypatch.setattr(mining, "CHUNK", 2)
    assert mined("aab\nccc\n\naab\na a\tb\nab\n") == (
        "cosine\tline_a\tline_b\ttext_a\ttext_b\n"
        '1.000000\t1\t5\taab\t"a a\tb"\n'
        "0.948683\t1\t6\taab\tab\n"
    )  # fmt: skip


def test_one_sentence_makes_no_pair():
    with pytest.raises(UserError, match="some.txt: found 1 sentences, expected two or more, each in a line of its own"):
        mined("aab\naab\n")
