import numpy as np
import pytest

from bertrio.analysis.labels import suspects
from bertrio.core.tasks import Binary, Classes, Score, Task
from bertrio.evaluation.predictions import Scored

CLASSES = Task("t", "single", "cross", Classes(3))
BINARY = Task("t", "pair", "cross", Binary())
SCORE = Task("t", "pair", "cross", Score(0, 5))


def of(labels, probabilities):
    probabilities = np.array(probabilities)
    return Scored(np.array(labels, float), probabilities.argmax(1).astype(float), probabilities)


def test_the_rule_by_hand():
    # thresholds: class 0 (0.9 + 0.8 + 0.1) / 3 = 0.6; class 1 (0.5 + 0.3) / 2 = 0.4; class 2 has no rows
    scored = of(
        [0, 0, 0, 1, 1],
        [[0.9, 0.1, 0.0], [0.8, 0.1, 0.1], [0.1, 0.45, 0.45], [0.2, 0.5, 0.3], [0.7, 0.3, 0.0]],
    )
    found = suspects(scored, CLASSES)
    assert found["row"].tolist() == [4, 2]  # each reaches the other's threshold, and class 2 is never suggested
    assert found["suggested"].tolist() == [0, 1]
    np.testing.assert_allclose(found["doubt"], [0.4, 0.35])


def test_a_row_that_reaches_its_own_threshold_by_more_is_no_suspect():
    scored = of([0, 0, 1, 1], [[0.55, 0.45], [0.6, 0.4], [0.4, 0.6], [0.58, 0.42]])
    # thresholds 0.575 and 0.51: row 0 reaches neither, row 3 that of class 0
    assert suspects(scored, BINARY)["row"].tolist() == [3]


def test_it_finds_the_labels_that_were_made_wrong():
    rng = np.random.default_rng(0)
    true = rng.integers(0, 3, 2000)
    logits = rng.normal(size=(2000, 3)) + 5 * np.eye(3)[true]
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    wrong = rng.random(2000) < 0.1
    labels = np.where(wrong, (true + rng.integers(1, 3, 2000)) % 3, true)
    found = suspects(of(labels, probabilities), CLASSES)
    hit = wrong[found["row"]]
    assert hit.sum() / wrong.sum() > 0.9
    assert hit.mean() > 0.85
    assert hit[:50].all(), "the most doubtful come first"
    np.testing.assert_array_equal(true[found["row"][:50]], found["suggested"][:50])


def test_scores_are_suspect_beyond_three_standard_deviations():
    rng = np.random.default_rng(0)
    labels = rng.uniform(1, 4, 200)
    predictions = labels + rng.normal(0, 0.1, 200)
    predictions[[7, 50]] = labels[[7, 50]] + [2.0, -3.0]
    found = suspects(Scored(labels, predictions), SCORE)
    assert found["row"].tolist() == [50, 7]
    np.testing.assert_allclose(found["suggested"], predictions[[50, 7]])
    residuals = labels - predictions
    np.testing.assert_allclose(found["doubt"], np.abs((residuals - residuals.mean()) / residuals.std())[[50, 7]])


@pytest.mark.parametrize("task", [CLASSES, BINARY, SCORE])
def test_no_rows_one_row_and_rows_all_right_have_no_suspects(task):
    width = {"t": None} if task is SCORE else np.eye(max(2, task.target.size))
    for count in (0, 1, 4):
        labels = np.arange(count, dtype=float) % 2
        scored = Scored(labels, labels, None if task is SCORE else width[labels.astype(int)])
        assert suspects(scored, task).empty
