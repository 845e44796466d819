import re
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

from bertrio.analysis.perturbations import EDITS, edit_each, perturbations, robustness
from bertrio.core.tasks import Binary, Classes, Ordered, Score, Task

TEXTS = [
    "It 's a lovely film , and Thomas does n't know it .", "Why can't Mary do not what she likes?",
    "I cannot say: they are not here; you will see (at 3.50).", "Naïve façade — ça va?", "42", "!",
    "My son's actress is his; give her the book, I'm sure he won't mind!",
]  # fmt: skip


@pytest.mark.parametrize(
    ("edit", "text", "expected"),
    [
        ("punctuation_removed", "Well , it is : good .", "Well it is good"),
        ("punctuation_removed", "At 3.50, by the U.S. side?", "At 3.50 by the U.S side"),
        ("punctuation_removed", "great!", None),
        ("punctuation_added", "a good film", "a good film."),
        ("punctuation_added", "is it?", "is it??"),
        ("contracted", "Do not go, I am sure they will not.", "Don't go, I'm sure they won't."),
        ("expanded", "You ca n't , you do n't .", "You cannot , you do not ."),
        ("expanded", "It's John's.", None),
        ("gender_swapped", "She told HER to go, his way.", "He told HIM to go, her way."),
        ("gender_swapped", "The human mandate", None),
        ("names_swapped", "James met MARY; james left", "Robert met PATRICIA; robert left"),
        ("names_swapped", "Petersburg", None),
    ],
)
def test_examples(edit, text, expected):
    assert EDITS[edit](text) == (text if expected is None else expected)


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edit_depends_on_the_text_alone_and_leaves_something(edit):
    edited = [edit(text) for text in TEXTS]
    assert [edit(text) for text in reversed(TEXTS)] == edited[::-1]
    assert edited != TEXTS
    assert all(new for (new,) in (edit_each(edit, (text,)) for text in TEXTS))


def test_a_typo_swaps_two_neighbours_inside_a_word():
    for text in [f"{text} {place}" for text in TEXTS for place in range(20)]:
        new = EDITS["typo"](text)
        apart = [place for place, (one, other) in enumerate(zip(text, new)) if one != other]
        if not apart:
            assert new == text and not re.search(r"[^\W\d_]{4}", text)
            continue
        assert len(apart) == 2 and apart[1] == apart[0] + 1 and Counter(text) == Counter(new)
        assert text[apart[0] - 1].isalpha() and text[apart[1] + 1].isalpha()


@pytest.mark.parametrize("text", ["He is not here.", "they were not and would not", "We are sure you cannot."])
def test_expanding_undoes_contracting(text):
    assert EDITS["expanded"](EDITS["contracted"](text)) == text


@pytest.mark.parametrize("target", [Binary(), Score(0, 5), Classes(3), Ordered(3)])
def test_texts_change_places_where_the_answer_can_not(target):
    assert list(perturbations(Task("t", "single", "cross", target))) == list(EDITS)
    swapped = isinstance(target, Binary | Score)  # "entails" is another answer the other way round
    expected = [*EDITS, "order_swapped"] if swapped else list(EDITS)
    assert list(perturbations(Task("t", "pair", "cross", target))) == expected


class Simple:
    """A model whose outputs are a function of a row's texts."""

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
    assert found["names_swapped"] == {"n": 0, "flips": None, "shift": None, "low": None, "high": None}


def test_the_shift_of_classes_is_that_of_the_class_predicted_before():
    task = Task("t", "single", "cross", Classes(3))
    model = Simple(task, lambda text: np.log([0.6, 0.3, 0.1] if text.islower() else [0.2, 0.3, 0.5]))
    upper = robustness(model, task, SINGLE.iloc[[1]])["upper_case"]
    assert (upper["flips"], upper["shift"]) == (1.0, pytest.approx(0.4))


def test_order_matters_to_who_looks_at_one_side_alone():
    task = Task("t", "pair", "cross", Binary())
    one_side = robustness(Simple(task, lambda a, b: [1.0 if len(a) > 3 else -1.0]), task, PAIRS)["order_swapped"]
    assert (one_side["n"], one_side["flips"]) == (2, 0.5)


@pytest.mark.parametrize("target", [Ordered(3), Binary(), Score(0, 5), Classes(3)])
def test_gender_bias_is_signed_towards_women_whichever_way_rows_are_swapped(target):
    task = Task("t", "single", "cross", target)
    texts = ["he came with his dog", "she slept", "the actress and her film", "he and she"]  # the last one has no sign
    outputs = {3: [0.0, 0.0, 3.0], 1: [3.0]}[target.size]
    model = Simple(task, lambda text: outputs if re.search(r"\b(she|her|actress)\b", text) else [0.0] * target.size)
    found = robustness(model, task, pd.DataFrame({"text": texts}))["gender_swapped"]
    if type(target) is Classes:
        assert "bias" not in found
        return
    levels = [target.expected(target.predict(np.array([row]))).item() for row in (outputs, [0.0] * target.size)]
    assert found["bias"] == pytest.approx(levels[0] - levels[1]) and found["bias"] > 0
    assert (found["bias_low"], found["bias_high"]) == pytest.approx((found["bias"], found["bias"]))  # all rows alike


@pytest.mark.parametrize(("by", "flips"), [(0.49, 0.0), (0.51, 1.0)])
def test_a_score_flips_beyond_a_tenth_of_its_range(by, flips):
    task = Task("t", "pair", "bi", Score(0, 5))
    model = Simple(task, lambda a, b: [2.0 + by * ("today" in a)])
    found = robustness(model, task, PAIRS)["clause_appended"]
    assert found["flips"] == flips and found["shift"] == pytest.approx(by)
