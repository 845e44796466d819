import numpy as np
import pytest

from bertrio.analysis.words import WORD, NearWords, delete_span, replace_span, words_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's a well-made film , is n't it ?", ["it's", "a", "well-made", "film", "is", "n't", "it"]),
        ("Café №5 - déjà_vu! Don\u2019t", ["café", "5", "déjà", "vu", "don\u2019t"]),
        ("... !", []),
    ],
)
def test_words_of(text, words):
    assert words_of(text) == words


def test_deleting_and_replacing_a_word():
    for text, position, expected in (
        ("It is good.", 2, "It is."),
        ("It is good .", 2, "It is ."),
        ("It is good", 0, "is good"),
        ("alone", 0, ""),
        ("so (very) good", 1, "so () good"),
    ):
        assert delete_span(text, *list(WORD.finditer(text))[position].span()) == expected
    assert replace_span("Why me", 0, 3, "how") == "How me"
    assert replace_span("why me", 0, 3, "how") == "how me"


@pytest.fixture
def near(tokenizer):
    """Words whose vectors lie on a half circle."""
    angles = {"good": 0.0, "bad": 0.2, "film": 0.5, "question": 2.0}
    vectors = np.zeros((len(tokenizer), 2))
    for word, angle in angles.items():
        vectors[tokenizer.convert_tokens_to_ids(word)] = np.cos(angle), np.sin(angle)
    return NearWords({word: 1 for word in [*angles, "goodness"]}, tokenizer, vectors)


def test_near_words_are_sorted_by_angle(near):
    expected = {"good": ["bad", "film"], "question": ["film", "bad"], "goodness": []}
    assert near.near(list(expected), 2) == expected
    assert near.near(["good"], 9)["good"] == ["bad", "film", "question"]
    assert near.nearest_of("good", ["question", "film", "goodness", "good"]) == "film"
    assert near.nearest_of("good", ["good"]) is None
    assert near.nearest_of("goodness", ["good"]) is None
