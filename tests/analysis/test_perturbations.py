import re
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from bertrio.analysis.perturbations import EDITS, edit_each, perturbations, robustness
from bertrio.core.tasks import Binary, Classes, MultiLabel, Ordered, Score, Task
from bertrio.evaluation.calibration import wilson

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
        ("expanded", "We're sure they weren't and wouldn't.", "We are sure they were not and would not."),
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
def test_edits_are_deterministic_and_never_empty(edit):
    edited = [edit(text) for text in TEXTS]
    assert [edit(text) for text in reversed(TEXTS)] == edited[::-1]
    assert edited != TEXTS
    assert all(new for (new,) in (edit_each(edit, (text,)) for text in TEXTS))


def test_typo_swaps_adjacent_letters_inside_a_word():
    for text in [f"{text} {number}" for text in TEXTS for number in range(20)]:
        edited = EDITS["typo"](text)
        changed = [index for index, (before, after) in enumerate(zip(text, edited)) if before != after]
        if not changed:
            assert edited == text and not re.search(r"[^\W\d_]{4}", text)
            continue
        assert len(changed) == 2 and changed[1] == changed[0] + 1 and Counter(text) == Counter(edited)
        assert text[changed[0] - 1].isalpha() and text[changed[1] + 1].isalpha()


@pytest.mark.parametrize("target", [Binary(), Score(0, 5), Classes(3), Ordered(3)])
def test_order_is_swapped_for_symmetric_targets_only(target):
    assert list(perturbations(Task("t", "single", "cross", target))) == list(EDITS)
    swapped = isinstance(target, Binary | Score)  # entailment is not symmetric
    expected = [*EDITS, "order_swapped"] if swapped else list(EDITS)
    assert list(perturbations(Task("t", "pair", "cross", target))) == expected


class Fake:
    """A model whose outputs are a function of a row's texts."""

    def __init__(self, task, outputs):
        self.task, self.outputs = task, outputs

    def predict(self, task, texts):
        assert task == self.task.name
        rows = texts[list(self.task.text_columns)].itertuples(index=False)
        return self.task.target.predict(np.array([self.outputs(*row) for row in rows], dtype=float))


SINGLE = pd.DataFrame({"text": ["A good film.", "a bad film", "a film?", "SHE"]})
PAIRS = pd.DataFrame({"text_a": ["one", "Two words", "the same"], "text_b": ["a b c", "three words here", "the same"]})


def test_flips_are_counted_over_the_edited_rows():
    task = Task("t", "single", "cross", Binary())
    result = robustness(Fake(task, lambda text: [4.0 if text.islower() else -4.0]), task, SINGLE)
    certain = 1 / (1 + np.exp(-4))
    assert result["lower_case"]["n"] == 2 and result["lower_case"]["flips"] == 1.0
    assert result["lower_case"]["shift"] == pytest.approx(2 * certain - 1)
    assert (result["upper_case"]["n"], result["upper_case"]["flips"]) == (3, pytest.approx(2 / 3))
    assert (result["upper_case"]["low"], result["upper_case"]["high"]) == pytest.approx(wilson(2 / 3, 3))
    assert result["names_swapped"] == {"n": 0, "flips": None, "shift": None, "low": None, "high": None}


def test_shift_is_that_of_the_class_predicted_before():
    task = Task("t", "single", "cross", Classes(3))
    model = Fake(task, lambda text: np.log([0.6, 0.3, 0.1] if text.islower() else [0.2, 0.3, 0.5]))
    upper = robustness(model, task, SINGLE.iloc[[1]])["upper_case"]
    assert (upper["flips"], upper["shift"]) == (1.0, pytest.approx(0.4))


def test_swapped_order_flips_a_model_that_reads_one_text():
    task = Task("t", "pair", "cross", Binary())
    one_side = robustness(Fake(task, lambda a, b: [1.0 if len(a) > 3 else -1.0]), task, PAIRS)["order_swapped"]
    assert (one_side["n"], one_side["flips"]) == (2, 0.5)


@pytest.mark.parametrize("target", [Ordered(3), Binary(), Score(0, 5), Classes(3), MultiLabel(3)])
def test_gender_bias_is_positive_towards_women(target):
    task = Task("t", "single", "cross", target)
    texts = ["he came with his dog", "she slept", "the actress and her film", "he and she"]  # the last has no sign
    outputs = {3: [0.0, 0.0, 3.0], 1: [3.0]}[target.size]
    model = Fake(task, lambda text: outputs if re.search(r"\b(she|her|actress)\b", text) else [0.0] * target.size)
    swapped = robustness(model, task, pd.DataFrame({"text": texts}))["gender_swapped"]
    if type(target) in (Classes, MultiLabel):  # labels without an order have no mean
        assert "bias" not in swapped
        return
    levels = [target.expected(target.predict(np.array([row]))).item() for row in (outputs, [0.0] * target.size)]
    assert swapped["bias"] == pytest.approx(levels[0] - levels[1]) and swapped["bias"] > 0
    assert swapped["bias_low"] == pytest.approx(swapped["bias_high"])  # all rows alike


@pytest.mark.parametrize(("by", "flips"), [(0.49, 0.0), (0.51, 1.0)])
def test_a_score_flips_beyond_a_tenth_of_its_range(by, flips):
    task = Task("t", "pair", "bi", Score(0, 5))
    model = Fake(task, lambda a, b: [2.0 + by * ("today" in a)])
    result = robustness(model, task, PAIRS)["clause_appended"]
    assert result["flips"] == flips and result["shift"] == pytest.approx(by)
