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


class Plain:
    """A model that anyone can work out: a text with more "good" than "bad" is class 1, and a pair's score is
    the share of words that it has in common."""

    def predict(self, task, texts):
        if task == "mood":
            odds = [words_of(text).count("good") - words_of(text).count("bad") for text in texts["text"]]
            yes = 1 / (1 + np.exp(-2.0 * np.array(odds)))
            return Predicted((yes > 0.5).astype(float), np.stack((1 - yes, yes), 1), None)
        shares = []
        for a, b in zip(texts["text_a"], texts["text_b"]):
            one, other = set(words_of(a)), set(words_of(b))
            shares.append(5 * len(one & other) / len(one | other) if one | other else 5.0)
        return Predicted(np.array(shares), None, np.array(shares))

    def embed(self, task, texts):
        return np.array([[text.count("a"), text.count("b"), 1] for text in texts.filter(like="text").iloc[:, 0]], float)


@pytest.fixture
def near(tokenizer):
    rng = np.random.default_rng(0)
    words = ["good", "bad", "film", "question", "why", "this"]
    return NearWords(dict.fromkeys(words, 1), tokenizer, rng.normal(size=(len(tokenizer), 8)))


def test_row_errors():
    probabilities = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    scored = Scored(np.array([0.0, 0, 1]), probabilities.argmax(1).astype(float), probabilities)
    assert row_error(scored, SINGLE).tolist() == [0, 0.8, 0.6], "the confidence in a wrong class"
    assert row_error(Scored(np.array([0.0, 2, 5]), np.array([1.0, 2, 1])), PAIR).tolist() == [1, 0, 4]


def test_neighbours_are_those_that_scikit_learn_finds():
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("abc"), 30)) for _ in range(40)]
    train = pd.DataFrame({"id": [f"t{i}" for i in range(40)], "text": texts, "label": np.arange(40) % 2})
    rows = pd.DataFrame({"text": ["aaab", "b", "bbba", "ccc"]})
    found = nearest(Plain(), SINGLE, rows, train, 3)
    oracle = NearestNeighbors(n_neighbors=3, metric="cosine").fit(Plain().embed("mood", train[["text"]]))
    distances, _ = oracle.kneighbors(Plain().embed("mood", rows))
    np.testing.assert_allclose([[one["similarity"] for one in own] for own in found], 1 - distances)
    first = found[0][0]
    assert train.loc[train["id"] == first["id"], "text"].item() == first["texts"][0]
    assert nearest(Plain(), SINGLE, rows, train.head(0), 3) == [[], [], [], []]


def test_the_strongest_change_is_the_word_that_decides(near):
    rows = pd.DataFrame({"text": ["A Good film", "why this film", "?"]})
    first, _, none = strongest_changes(Plain(), SINGLE, rows, near, 5)
    # leaving "Good" out moves the probability of class 1 from 0.88 to 0.5, and "bad" in its place to 0.12
    expected = {"text": 0, "position": 1, "from": "Good", "to": "bad", "changed": "A Bad film"}
    assert first | expected == first
    assert (first["before"], first["after"]) == (1, 0)
    assert [first["confidence_before"], first["confidence_after"]] == pytest.approx([1 / (1 + np.exp(-2))] * 2)
    assert none is None, "no word, no change"
    left_out = strongest_changes(Plain(), SINGLE, rows, near, 0)[0]
    assert (left_out["from"], left_out["to"], left_out["changed"]) == ("Good", None, "A film")


def test_a_pair_tries_the_words_of_the_other_text(near):
    rows = pd.DataFrame({"text_a": ["this good film"], "text_b": ["this good question"]})
    (change,) = strongest_changes(Plain(), PAIR, rows, near, 0)
    # one word in place of the other makes the two texts the same: from 2/4 to 4/4 of 5
    assert (change["before"], change["after"]) == (2.5, 5.0)
    assert {change["from"], change["to"]} == {"film", "question"}
    assert change["changed"] in ("this good film", "this good question")


def test_distance_is_that_of_scores_and_the_total_variation_of_probabilities():
    one = Predicted(np.zeros(2), np.array([[0.2, 0.8, 0], [1, 0, 0]]), None)
    other = Predicted(np.zeros(2), np.array([[0.2, 0.3, 0.5], [0, 0.5, 0.5]]), None)
    np.testing.assert_allclose(distance(one, other), [0.5, 1])
    np.testing.assert_allclose(distance(Predicted(np.ones(1), None, None), Predicted(np.zeros(1), None, None)), [1])
