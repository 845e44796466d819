import re
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

from bertrio.analysis.perturbations import (
    EDITS,
    clause_appended,
    contracted,
    edit_each,
    expanded,
    gender_swapped,
    names_swapped,
    perturbations,
    punctuation_added,
    punctuation_removed,
    robustness,
    typo,
)
from bertrio.core.tasks import Binary, Classes, Ordered, Score, Task

TEXTS = [
    "It 's a lovely film , and Thomas does n't know it .",
    "Why can't Mary do not what she likes?",
    "HE SAW HER BROTHER.",
    "I cannot say: they are not here; you will see (at 3.50).",
    "Naïve façade — ça va?",
    "no",
    "42",
    "!",
    "Is 10,000 more than 9.5?",
    "My son's actress is his; give her the book, I'm sure he won't mind!",
]


@pytest.mark.parametrize(
    ("edit", "text", "expected"),
    [
        (punctuation_removed, "Well , it is : good .", "Well it is good"),
        (punctuation_removed, "At 3.50, by the U.S. side?", "At 3.50 by the U.S side"),
        (punctuation_removed, "great!", None),
        (punctuation_added, "a good film", "a good film."),
        (punctuation_added, "is it?", "is it??"),
        (punctuation_added, "great!", None),
        (contracted, "Do not go, I am sure they will not.", "Don't go, I'm sure they won't."),
        (contracted, "It is as old as I am.", "It's as old as I am."),
        (contracted, "it is n't", None),
        (contracted, "You cannot, and he can not.", "You can't, and he can't."),
        (expanded, "It isn't, I'm sure they won't.", "It is not, I am sure they will not."),
        (expanded, "You ca n't , you do n't .", "You cannot , you do not ."),
        (expanded, "Why don\u2019t they\u2019ve it? We\u2019re off.", "Why don\u2019t they have it? We are off."),
        (expanded, "It's John's.", None),
        (clause_appended, "a good film", "a good film. This was written today."),
        (clause_appended, "is it?", "is it? This was written today."),
        (gender_swapped, "He saw her brother.", "She saw his sister."),
        (gender_swapped, "She told HER to go, his way.", "He told HIM to go, her way."),
        (gender_swapped, "Women here", "Men here"),
        (gender_swapped, "The human mandate", None),
        (names_swapped, "James met MARY; james left", "Robert met PATRICIA; robert left"),
        (names_swapped, "Petersburg", None),
    ],
)
def test_examples(edit, text, expected):
    assert edit(text) == (text if expected is None else expected)


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edit_depends_on_the_text_alone_and_leaves_something(edit):
    edited = [edit(text) for text in TEXTS]
    assert [edit(text) for text in reversed(TEXTS)] == edited[::-1]
    assert edited != TEXTS
    assert all(new for (new,) in (edit_each(edit, (text,)) for text in TEXTS))


def test_a_typo_swaps_two_neighbours_inside_a_word():
    for text in [f"{text} {place}" for text in TEXTS for place in range(20)]:
        new = typo(text)
        apart = [place for place, (one, other) in enumerate(zip(text, new)) if one != other]
        if not apart:
            assert new == text and not re.search(r"[^\W\d_]{4}", text)
            continue
        assert len(apart) == 2 and apart[1] == apart[0] + 1 and Counter(text) == Counter(new)
        assert text[apart[0] - 1].isalpha() and text[apart[1] + 1].isalpha()


@pytest.mark.parametrize(
    "text", ["He is not here.", "they were not and would not", "We are sure you cannot.", "I am glad she will not go"]
)
def test_expanding_undoes_contracting(text):
    assert expanded(contracted(text)) == text


def test_a_pair_gets_the_same_edit_in_both_texts():
    pair = ("Is James here?", "Has James come to her?")
    assert edit_each(names_swapped, pair) == ("Is Robert here?", "Has Robert come to her?")
    assert edit_each(gender_swapped, pair) == ("Is James here?", "Has James come to him?")


@pytest.mark.parametrize(
    ("kind", "target", "swapped"),
    [
        ("single", Binary(), False),
        ("pair", Binary(), True),
        ("pair", Score(0, 5), True),
        ("pair", Classes(3), False),  # "entails" is another answer the other way round
        ("pair", Ordered(3), False),
    ],
)
def test_texts_change_places_where_the_answer_can_not(kind, target, swapped):
    found = perturbations(Task("t", kind, "cross", target))
    assert ("order_swapped" in found) == swapped
    assert len(found) == len(EDITS) + swapped


class Simple:
    """A scorer whose outputs are a function of a row's texts."""

    def __init__(self, task, outputs):
        self.task, self.outputs = task, outputs

    def predict(self, task, texts):
        assert task == self.task.name
        rows = texts[list(self.task.text_columns)].itertuples(index=False)
        return self.task.target.predict(np.array([self.outputs(*row) for row in rows], dtype=float))


SINGLE = pd.DataFrame({"text": ["A good film.", "a bad film", "a film?", "SHE"]})
PAIRS = pd.DataFrame({"text_a": ["one", "Two words", "the same"], "text_b": ["a b c", "three words here", "the same"]})


def test_flips_are_counted_over_the_rows_that_the_edit_applies_to():
    task = Task("t", "single", "cross", Binary())
    found = robustness(Simple(task, lambda text: [4.0 if text.islower() else -4.0]), task, SINGLE)
    certain = 1 / (1 + np.exp(-4))
    assert found["lower_case"]["n"] == 2 and found["lower_case"]["flips"] == 1.0
    assert found["lower_case"]["shift"] == pytest.approx(2 * certain - 1)
    assert (found["upper_case"]["n"], found["upper_case"]["flips"]) == (3, pytest.approx(2 / 3))
    expected = binomtest(2, 3).proportion_ci(0.95, method="wilson")
    assert (found["upper_case"]["low"], found["upper_case"]["high"]) == pytest.approx(tuple(expected), abs=1e-6)
    assert (found["clause_appended"]["n"], found["clause_appended"]["flips"]) == (4, 0.5)  # it begins with a capital
    assert found["punctuation_added"]["flips"] == found["punctuation_added"]["shift"] == 0.0
    assert found["names_swapped"] == {"n": 0, "flips": None, "shift": None, "low": None, "high": None}


def test_the_shift_of_classes_is_that_of_the_class_predicted_before():
    task = Task("t", "single", "cross", Classes(3))
    found = robustness(Simple(task, lambda text: np.log([0.6, 0.3, 0.1] if text.islower() else [0.2, 0.3, 0.5])), task,
                       SINGLE.iloc[[1]])  # fmt: skip
    assert found["upper_case"]["flips"] == 1.0
    assert found["upper_case"]["shift"] == pytest.approx(0.4)


def test_order_matters_to_who_looks_at_one_side_alone():
    task = Task("t", "pair", "cross", Binary())
    one_side = robustness(Simple(task, lambda a, b: [1.0 if len(a) > 3 else -1.0]), task, PAIRS)["order_swapped"]
    assert (one_side["n"], one_side["flips"]) == (2, 0.5)
    both = robustness(Simple(task, lambda a, b: [len(a) + len(b) - 10.0]), task, PAIRS)["order_swapped"]
    assert (both["n"], both["flips"], both["shift"]) == (2, 0.0, 0.0)


@pytest.mark.parametrize(("by", "flips"), [(0.49, 0.0), (0.51, 1.0)])
def test_a_score_flips_beyond_a_tenth_of_its_range(by, flips):
    task = Task("t", "pair", "bi", Score(0, 5))
    scorer = Simple(task, lambda a, b: [2.0 + by * ("today" in a)])
    found = robustness(scorer, task, PAIRS)["clause_appended"]
    assert found["flips"] == flips and found["shift"] == pytest.approx(by)
    clipped = Simple(task, lambda a, b: [5.0 + by * ("today" in a)])  # what is handed in stays within the range
    assert robustness(clipped, task, PAIRS)["clause_appended"]["shift"] == 0.0
