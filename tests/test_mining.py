import io

import numpy as np
import pytest

from bertrio import mining
from bertrio.errors import UserError
from bertrio.mining import mine_file, most_similar, read_sentences


def by_hand(vectors, top):
    unit = vectors.astype(np.float64) / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-8)
    cosines = (unit @ unit.T).round(6)
    pairs = [(-cosines[a, b], a, b) for a in range(len(unit)) for b in range(a + 1, len(unit))]
    return [(a, b, -negative) for negative, a, b in sorted(pairs)[:top]]


@pytest.mark.parametrize("top", [1, 7, 300, 10_000])
@pytest.mark.parametrize("rows", [2, 3, 16, 50])
def test_all_pairs_are_looked_at_each_once(monkeypatch, rows, top):
    monkeypatch.setattr(mining, "TILE", 16)
    vectors = np.random.default_rng(rows).normal(size=(rows, 8)).astype(np.float32)
    found = most_similar(vectors, top)
    expected = by_hand(vectors, top)
    assert [pair[:2] for pair in found] == [pair[:2] for pair in expected]
    assert np.allclose([pair.cosine for pair in found], [pair[2] for pair in expected], atol=2e-6)


def test_of_equally_similar_pairs_the_first_are_found_first_whatever_the_tiles(monkeypatch):
    vectors = np.eye(4, dtype=np.float32)[np.arange(40) % 4]  # every fourth is the same
    expected = [(a, b) for a in range(40) for b in range(a + 4, 40, 4)][:25]
    for tile in (1, 3, 16, 64):
        monkeypatch.setattr(mining, "TILE", tile)
        found = most_similar(vectors, 25)
        assert [pair[:2] for pair in found] == expected and {pair.cosine for pair in found} == {1.0}


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

    device = "cpu"

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
