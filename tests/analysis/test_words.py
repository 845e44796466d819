import numpy as np
import pandas as pd
import pytest

from bertrio.analysis.words import WORD, NearWords, count_words, delete_span, replace_span, words_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's a well-made film , is n't it ?", ["it's", "a", "well-made", "film", "is", "n't", "it"]),
        ("Café №5 - déjà_vu!", ["café", "5", "déjà", "vu"]),
        ("... !", []),
        ("Don\u2019t", ["don\u2019t"]),
    ],
)
def test_words_are_what_people_call_words(text, words):
    assert words_of(text) == words


def test_counts_add_up_over_columns():
    frame = pd.DataFrame({"text_a": ["A film", "film"], "text_b": ["a FILM", "plot"]})
    assert count_words(frame, ["text_a", "text_b"]) == {"a": 2, "film": 3, "plot": 1}


@pytest.mark.parametrize(
    ("text", "position", "left"),
    [
        ("It is good.", 2, "It is."),
        ("It is good .", 2, "It is ."),
        ("It is good", 2, "It is"),
        ("It is good", 0, "is good"),
        ("a , b", 1, "a ,"),
        ("alone", 0, ""),
        ("so (very) good", 1, "so () good"),
    ],
)
def test_a_word_leaves_no_blank_behind(text, position, left):
    assert delete_span(text, *list(WORD.finditer(text))[position].span()) == left


def test_another_word_takes_over_the_capital():
    assert replace_span("Why me", 0, 3, "how") == "How me"
    assert replace_span("why me", 0, 3, "how") == "how me"


@pytest.fixture
def near(tokenizer):
    """Words on a half circle: their vectors' angles decide what is near."""
    angles = {"good": 0.0, "bad": 0.2, "film": 0.5, "question": 2.0}
    vectors = np.zeros((len(tokenizer), 2))
    for word, angle in angles.items():
        vectors[tokenizer.convert_tokens_to_ids(word)] = np.cos(angle), np.sin(angle)
    return NearWords({word: 1 for word in [*angles, "goodness"]}, tokenizer, vectors)


def test_near_words_are_whole_words_of_the_vocabulary_by_their_angle(near):
    assert near.near(["good", "question", "goodness"], 2) == {
        "good": ["bad", "film"],
        "question": ["film", "bad"],
        "goodness": [],
    }
    assert near.near(["good"], 9)["good"] == ["bad", "film", "question"]
    assert near.near([], 2) == {}


def test_the_nearest_of_some_words(near):
    assert near.nearest_of("good", ["question", "film", "goodness", "good"]) == "film"
    assert near.nearest_of("good", ["good"]) is None
    assert near.nearest_of("goodness", ["good"]) is None
