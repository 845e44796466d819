import numpy as np
import pytest
from scipy.special import expit, softmax

from bertrio.core.tasks import Binary, Classes, Ordered, Score, build_target

OUTPUTS = np.random.default_rng(0).normal(size=(50, 5)) * 10


def test_classes_predict_the_largest_softmax():
    predicted = Classes(5).predict(OUTPUTS)
    np.testing.assert_allclose(predicted.probabilities, softmax(OUTPUTS, axis=-1), rtol=1e-12)
    np.testing.assert_array_equal(predicted.values, OUTPUTS.argmax(axis=-1))
    assert predicted.scores is None


def test_binary_predicts_yes_above_a_logit_of_zero():
    logits = np.array([[-800.0], [-1.0], [0.0], [1.0], [800.0]])
    predicted = Binary().predict(logits)
    np.testing.assert_allclose(predicted.probabilities[:, 1], expit(logits[:, 0]), atol=1e-15)
    np.testing.assert_allclose(predicted.probabilities.sum(axis=1), 1)
    np.testing.assert_array_equal(predicted.values, [0, 0, 0, 1, 1])


def test_score_is_raw_and_prediction_clipped_to_the_range():
    predicted = Score(0, 5).predict(np.array([[-1.0], [2.5], [7.0]]))
    np.testing.assert_array_equal(predicted.scores, [-1, 2.5, 7])
    np.testing.assert_array_equal(predicted.values, [0, 2.5, 5])
    assert predicted.probabilities is None


@pytest.mark.parametrize(
    ("target", "good", "bad"),
    [(Ordered(5), [0, 4], [-1, 5, 2.5]), (Binary(), [0, 1], [-1, 2, 0.5]), (Score(0, 5), [0, 2.7, 5], [-0.1, 5.0001])],
)
def test_label_problem(target, good, bad):
    assert [target.label_problem(float(label)) for label in good] == [None] * len(good)
    assert [target.label_problem(float(label)) for label in bad] == ["label out of range"] * len(bad)
    assert target.label_problem(float("nan")) == target.label_problem(float("inf")) == "label is not a number"


def test_margin():
    assert (Score(0, 5).margin, Score(-1, 1).margin, Classes(3).margin) == (0.5, 0.2, 0.5)


WORDS, DIGITS = Classes(3, labels=("no", "maybe", "yes")), Ordered(3, labels=("1", "2", "3"))


@pytest.mark.parametrize(
    ("target", "label", "number"),
    [
        (WORDS, "maybe", 1),
        (WORDS, " yes ", 2),
        (WORDS, "2", 2),  # as in a class column from the hub
        (WORDS, 0, 0),
        (DIGITS, "1", 0),
        (DIGITS, 2.0, 1),  # an integer in a column with gaps
        (Classes(2, labels=("True", "False")), np.bool_(False), 1),  # from JSON or parquet
        (Binary(("no", "yes")), True, 1),
        (Score(0, 5), "2.5", 2.5),
    ],
)
def test_label_is_a_name_or_a_number(target, label, number):
    assert target.number_of(label) == number


@pytest.mark.parametrize(
    ("target", "label"),
    [(WORDS, "Maybe"), (WORDS, ""), (WORDS, True), (DIGITS, "0"), (DIGITS, 0), (Score(0, 50), "1_0"),
     (Score(0, 5), True)],
)  # fmt: skip
def test_invalid_label_is_an_error(target, label):
    with pytest.raises(ValueError, match="none of|could not convert|is no number"):
        target.number_of(label)


def test_targets_compare_without_names_and_metric():
    assert Classes(3) == WORDS and Binary() == Binary(metric="f1") and Classes(3) != Ordered(3)
    assert Ordered(3, metric="matthews_correlation").metrics[:2] == ("matthews_correlation", "accuracy")
    assert Binary(metric="f1").metrics == ("f1", "accuracy", "roc_auc", "average_precision", "ece", "brier")
    assert build_target("classes", ["a", "b"]).size == 2 and Score(0, 5).name_of(2.5) == "2.5"


@pytest.mark.parametrize(
    ("target", "classes", "names"),
    [
        ("ordered", 3, ("0", "1", "2")),
        ("classes", ["bad", 2], ("bad", "2")),
        ("binary", None, ("no", "yes")),
        ("binary", ["different", "paraphrase"], ("different", "paraphrase")),
        ("score", None, ()),
    ],
)
def test_class_names(target, classes, names):
    built = build_target(target, classes, limits=(0.0, 5.0))
    assert built.class_names == names
    assert [built.name_of(float(number)) for number in range(len(names))] == list(names)
