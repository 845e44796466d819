import numpy as np
import pytest

from bertrio.analysis.labels import suspects
from bertrio.core.tasks import Binary, Classes, Score, Task
from bertrio.evaluation.predictions import Scored

CLASSES = Task("t", "single", "cross", Classes(3))
BINARY = Task("t", "pair", "cross", Binary())
SCORE = Task("t", "pair", "cross", Score(0, 5))


def test_confident_learning_by_hand():
    # thresholds: class 0 (0.9 + 0.8 + 0.1) / 3 = 0.6; class 1 (0.5 + 0.3) / 2 = 0.4; class 2 has no rows
    probabilities = np.array([[0.9, 0.1, 0], [0.8, 0.1, 0.1], [0.1, 0.45, 0.45], [0.2, 0.5, 0.3], [0.7, 0.3, 0.0]])
    scored = Scored(np.array([0.0, 0, 0, 1, 1]), probabilities.argmax(1).astype(float), probabilities)
    result = suspects(scored, CLASSES)
    assert result["row"].tolist() == [4, 2]  # each reaches the other's threshold, and class 2 is never suggested
    assert result["suggested"].tolist() == [0, 1]
    np.testing.assert_allclose(result["doubt"], [0.4, 0.35])


def test_scores_beyond_three_standard_deviations_are_suspect():
    rng = np.random.default_rng(0)
    labels = rng.uniform(1, 4, 200)
    predictions = labels + rng.normal(0, 0.1, 200)
    predictions[[7, 50]] = labels[[7, 50]] + [2.0, -3.0]
    result = suspects(Scored(labels, predictions), SCORE)
    assert result["row"].tolist() == [50, 7]
    np.testing.assert_allclose(result["suggested"], predictions[[50, 7]])
    residuals = labels - predictions
    np.testing.assert_allclose(result["doubt"], np.abs((residuals - residuals.mean()) / residuals.std())[[50, 7]])


@pytest.mark.parametrize("task", [CLASSES, BINARY, SCORE])
def test_few_or_correct_rows_have_no_suspects(task):
    for count in (0, 1, 4):
        labels = np.arange(count, dtype=float) % 2
        probabilities = None if task is SCORE else np.eye(max(2, task.target.size))[labels.astype(int)]
        assert suspects(Scored(labels, labels, probabilities), task).empty
