from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.neighbors import NearestNeighbors

from bertrio.analysis.words import NearWords, words_of
from bertrio.analysis.worst_rows import distance, nearest, row_error, strongest_changes
from bertrio.core.tasks import Classes, Predicted, Score, Task
from bertrio.evaluation.predictions import Scored

SINGLE = Task("mood", "single", "cross", Classes(2))
PAIR = Task("alike", "pair", "bi", Score(0, 5))


class WordCounter:
    """A model that counts words: class 1 has more "good" than "bad", a pair's score is its share of common words."""

    config = SimpleNamespace(encoder=SimpleNamespace(max_length=3))

    def predict(self, task, texts):
        if task == "mood":
            odds = [words_of(text).count("good") - words_of(text).count("bad") for text in texts["text"]]
            yes = 1 / (1 + np.exp(-2.0 * np.array(odds)))
            return Predicted((yes > 0.5).astype(float), np.stack((1 - yes, yes), 1), None)
        words = [(set(words_of(a)), set(words_of(b))) for a, b in zip(texts["text_a"], texts["text_b"])]
        scores = np.array([5 * len(a & b) / len(a | b) for a, b in words])
        return Predicted(scores, None, scores)

    def pooled(self, task, texts):
        return np.array(
            [[[text.count("a"), text.count("b"), 1]] for text in texts.filter(like="text").iloc[:, 0]], float
        )


@pytest.fixture
def near(tokenizer):
    rng = np.random.default_rng(0)
    words = ["good", "bad", "film", "question", "why", "this"]
    return NearWords(dict.fromkeys(words, 1), tokenizer, rng.normal(size=(len(tokenizer), 8)))


def test_row_errors():
    probabilities = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    scored = Scored(np.array([0.0, 0, 1]), probabilities.argmax(1).astype(float), probabilities)
    assert row_error(scored, SINGLE).tolist() == [0, 0.8, 0.6], "confidence in the wrong class"
    assert row_error(Scored(np.array([0.0, 2, 5]), np.array([1.0, 2, 1])), PAIR).tolist() == [1, 0, 4]


def test_neighbours_match_sklearn():
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("abc"), 30)) for _ in range(40)]
    train = pd.DataFrame({"id": [f"t{i}" for i in range(40)], "text": texts, "label": np.arange(40) % 2})
    rows = pd.DataFrame({"text": ["aaab", "b", "bbba", "ccc"]})
    neighbours = nearest(WordCounter(), SINGLE, rows, train, 3)
    oracle = NearestNeighbors(n_neighbors=3, metric="cosine").fit(WordCounter().pooled("mood", train[["text"]])[:, 0])
    distances, _ = oracle.kneighbors(WordCounter().pooled("mood", rows)[:, 0])
    np.testing.assert_allclose([[near["similarity"] for near in row] for row in neighbours], 1 - distances)
    first = neighbours[0][0]
    assert train.loc[train["id"] == first["id"], "text"].item() == first["texts"][0]
    assert nearest(WordCounter(), SINGLE, rows, train.head(0), 3) == [[], [], [], []]


def test_strongest_change_is_the_deciding_word(near):
    rows = pd.DataFrame({"text": ["A Good film", "why this film", "?"]})
    first, _, none = strongest_changes(WordCounter(), SINGLE, rows, near, 5)
    # dropping "Good" moves the probability of class 1 from 0.88 to 0.5, and "bad" in its place to 0.12
    expected = {"text": 0, "position": 1, "from": "Good", "to": "bad", "changed": "A Bad film"}
    assert first | expected == first
    assert (first["before"], first["after"]) == (1, 0)
    assert [first["confidence_before"], first["confidence_after"]] == pytest.approx([1 / (1 + np.exp(-2))] * 2)
    assert none is None, "no word, no change"
    (read,) = strongest_changes(WordCounter(), SINGLE, pd.DataFrame({"text": ["why this film bad"]}), near, 0)
    assert read["position"] < 3, "the model reads no further"
    dropped = strongest_changes(WordCounter(), SINGLE, rows, near, 0)[0]
    assert (dropped["from"], dropped["to"], dropped["changed"]) == ("Good", None, "A film")


def test_pairs_try_words_of_the_other_text(near):
    rows = pd.DataFrame({"text_a": ["this good film"], "text_b": ["this good question"]})
    (change,) = strongest_changes(WordCounter(), PAIR, rows, near, 0)
    # replacing one word by the other makes the texts equal: from 2/4 to 4/4 of 5
    assert (change["before"], change["after"]) == (2.5, 5.0)
    assert {change["from"], change["to"]} == {"film", "question"}


def test_distance_is_total_variation_or_absolute_difference():
    one = Predicted(np.zeros(2), np.array([[0.2, 0.8, 0], [1, 0, 0]]), None)
    other = Predicted(np.zeros(2), np.array([[0.2, 0.3, 0.5], [0, 0.5, 0.5]]), None)
    np.testing.assert_allclose(distance(one, other), [0.5, 1])
    np.testing.assert_allclose(distance(Predicted(np.ones(1), None, None), Predicted(np.zeros(1), None, None)), [1])
