import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score

from bertrio.analysis import slices
from bertrio.analysis.slices import Facts, as_json, families, measure_slices
from bertrio.core.tasks import Binary, Classes, Ordered, Score, Task
from bertrio.evaluation.calibration import wilson
from bertrio.evaluation.predictions import Scored

SINGLE = Task("one", "single", "cross", Ordered(3))
PAIR = Task("two", "pair", "cross", Binary())
ALIKE = Task("alike", "pair", "bi", Score(0, 5))


def facts(task, rows, labels, train=()):
    frame, train = (pd.DataFrame(texts, columns=list(task.text_columns), dtype=str) for texts in (rows, train))
    return Facts(task, frame.assign(label=np.array(labels, float)), train)


def test_length_counts_the_words_of_the_longer_text():
    rows = [("a " * 3, "a"), ("a", "b " * 11), ("x " * 40, "x"), ("!", "?"), ("a " * 41, "b")]
    names = slices.length(facts(PAIR, rows, [0] * 5))
    assert list(names) == ["up to 10 words", "11 to 20 words", "21 to 40 words", "up to 10 words", "over 40 words"]


def test_negation():
    names = slices.negation(facts(SINGLE, ["Not bad .", "It is n't", "knot", "never", "don\u2019t"], [0] * 5))
    assert list(names) == [f"with{out} negation" for out in ("", "", "out", "", "")]
    names = slices.negation(facts(PAIR, [("no", "yes"), ("no", "nor"), ("a", "b")], [0] * 3))
    assert list(names) == ["in one text alone", "in both texts", "in neither text"]


def test_rare_words_go_by_the_rarest_word():
    train = [("the film", "the plot")] * 4 + [("the film", "x")]
    rows = [("the film", "film"), ("plot", "the"), ("new", "the"), ("?", "!")]
    names = slices.rare_words(facts(PAIR, rows, [0] * 4, train))
    seldom, often, never = "a word seen 1 to 4 times", "all words seen 5 times or more", "a word never seen"
    assert list(names) == [often, seldom, never, often]


def test_overlap_and_misleading_overlap():
    rows = [("a b", "A b"), ("a b", "c d"), ("a b", "a b"), ("a b", "c d"), ("a b c", "a d e")]
    pairs = facts(PAIR, rows, [1, 1, 0, 0, 1])
    np.testing.assert_allclose(pairs.overlap, [1, 0, 1, 0, 0.2])
    assert list(slices.overlap(pairs)) == ["0.5 and over", "below 0.25"] * 2 + ["below 0.25"]
    high, low = "high overlap, but not a paraphrase", "low overlap, but a paraphrase"
    assert list(slices.misleading_overlap(pairs)) == ["all others", low, high, "all others", low]
    pairs = facts(ALIKE, rows, [5, 4, 1, 0, 2.5])
    low, high = "low overlap, but alike", "high overlap, but not alike"
    assert list(slices.misleading_overlap(pairs)) == ["all others", low, high, "all others", "all others"]


def test_labels_are_classes_or_bands_of_the_range():
    assert list(slices.label(facts(SINGLE, ["a"] * 3, [0, 2, 1]))) == ["label 0", "label 2", "label 1"]
    names = slices.label(facts(ALIKE, [("a", "b")] * 4, [0, 1, 4.9, 5]))
    assert list(names) == ["label 0 to 1", "label 1 to 2", "label 4 to 5", "label 4 to 5"]


def test_texts_seen_in_train_match_whatever_their_case_and_white_space():
    rows = [("a b", "c"), ("d", "x "), ("A  B", "c"), ("ab", "c")]
    names = slices.seen_in_train(facts(PAIR, rows, [0] * 4, [("x", "a b")]))
    assert list(names) == ["a text is in train"] * 3 + ["no text is in train"]


@pytest.mark.parametrize("task", [SINGLE, PAIR, ALIKE, Task("nli", "pair", "cross", Classes(3))])
def test_each_row_is_in_one_slice_of_each_family(task):
    words = ["a", "b", "c", "d", "e", "not", "never", "film", "plot"]
    rng = np.random.default_rng(0)
    rows = [tuple(" ".join(rng.choice(words, rng.integers(1, 45))) for _ in task.text_columns) for _ in range(200)]
    labels = rng.integers(0, 2, 200)
    split = facts(task, rows, labels, rows[:30])
    predictions = np.where(rng.random(200) < 0.8, labels, 1 - labels).astype(float)
    scored = Scored(split.labels, predictions, None if task is ALIKE else np.ones((200, 3)) / 3)
    names = {family: slice_names(split) for family, slice_names in families(task).items()}
    assert all(len(column) == 200 and not column.isna().any() for column in names.values())
    table = measure_slices(split, scored)
    assert table.iloc[0][["family", "slice", "n"]].tolist() == ["all", "all rows", 200]
    assert (table["low"] <= table["value"]).all() and (table["value"] <= table["high"]).all()
    if task.target.discrete:
        for row in table.iloc[1:].itertuples():
            members = np.asarray(names[row.family] == row.slice)
            assert row.n == members.sum() >= slices.MIN_SLICE_ROWS
            assert row.value == pytest.approx(accuracy_score(labels[members], predictions[members]))
            assert (row.low, row.high) == pytest.approx(wilson(row.value, row.n))


def test_score_slices_use_the_error_instead_of_the_correlation():
    rng = np.random.default_rng(0)
    labels = rng.uniform(0, 5, 2000)
    scored = Scored(labels, labels + rng.normal(0, 0.5, 2000))
    table = measure_slices(facts(ALIKE, [("a", "b")] * 2000, labels), scored).set_index("slice")
    assert table["value"].to_numpy() == pytest.approx(0.5, abs=0.06)
    assert table["pearson"]["all rows"] > 0.9 and (table["pearson"].drop("all rows") < 0.8).any()


def test_small_slices_and_families_of_one_slice_are_left_out():
    split = facts(SINGLE, ["a film"] * 20 + ["not a film"] * 4, [0] * 10 + [1] * 14)
    table = measure_slices(split, Scored(split.labels, split.labels, np.eye(3)[split.labels.astype(int)]))
    assert set(table["family"]) == {"all", "label"}
    assert measure_slices(facts(SINGLE, [], []), Scored(np.zeros(0), np.zeros(0), np.zeros((0, 3)))).empty
    whole = {"n": 24, "accuracy": 1.0, "low": pytest.approx(0.862, abs=1e-3), "high": pytest.approx(1)}
    assert as_json(table, "accuracy")["all"]["all rows"] == whole
