import numpy as np
import pandas as pd
import pytest
import scipy.stats
import sklearn.metrics

from bertrio.core.errors import UserError
from bertrio.core.tasks import Binary, Task
from bertrio.evaluation.metrics import CORRELATIONS, METRICS, evaluate_predictions, selection_score
from bertrio.evaluation.predictions import Scored, prediction_rows
from tests.evaluation.tables import TASKS


def rows(name, labels, predictions, split="dev"):
    """A table of one task with these predictions."""
    column = np.array(predictions, float)[:, None]
    outputs = {"sst": -((column - np.arange(5)) ** 2), "qqp": 2 * column - 1, "sts": column}[name]
    return prediction_rows(TASKS[name], split, [str(i) for i in range(len(column))], np.array(labels, float), outputs)


def full(split="dev"):
    """sst accuracy 0.75; qqp accuracy 0.5 and f1 0.5; sts correlation -1."""
    sst = rows("sst", [0, 1, 2, 3], [0, 1, 2, 4], split)
    qqp = rows("qqp", [1, 1, 0, 0], [1, 0, 1, 0], split)
    return pd.concat([sst, qqp, rows("sts", [0, 1, 2], [3, 2, 1], split)], ignore_index=True)


def measure(metric, labels, predictions):
    return METRICS[metric](Scored(np.array(labels, float), np.array(predictions, float)))


def measure_probabilities(metric, labels, yes):
    yes = np.array(yes, float)
    return METRICS[metric](Scored(np.array(labels, float), (yes > 0.5).astype(float), np.stack((1 - yes, yes), 1)))


CLASSES = {
    "accuracy": sklearn.metrics.accuracy_score,
    "macro_f1": lambda y, p: sklearn.metrics.f1_score(y, p, average="macro"),
    "balanced_accuracy": lambda y, p: np.mean([(p[y == c] == c).mean() for c in np.unique(y)]),
    "mae": sklearn.metrics.mean_absolute_error,
    "quadratic_kappa": lambda y, p: sklearn.metrics.cohen_kappa_score(y, p, labels=range(5), weights="quadratic"),
    "matthews_correlation": sklearn.metrics.matthews_corrcoef,
    "off_by_one": lambda y, p: np.mean(np.abs(y - p)[y != p] == 1),
}


@pytest.mark.parametrize("metric", CLASSES)
@pytest.mark.parametrize("classes", [[0, 1, 2, 3, 4], [0, 2, 4], [1, 2]])  # some classes have no rows
def test_class_metrics_match_sklearn(metric, classes):
    generator = np.random.default_rng(1)
    labels = generator.choice(classes, 200, p=np.arange(1, len(classes) + 1) / sum(range(1, len(classes) + 1)))
    predictions = np.where(generator.random(200) < 0.5, labels, generator.choice(classes, 200))
    assert measure(metric, labels, predictions) == pytest.approx(CLASSES[metric](labels, predictions))


@pytest.mark.parametrize("digits", [8, 1])  # one digit: many ties
def test_binary_metrics_match_sklearn(digits):
    generator = np.random.default_rng(1)
    labels = generator.integers(0, 2, 200)
    yes = np.round(1 / (1 + np.exp(-generator.normal(labels - 0.5, 1))), digits)
    assert measure("f1", labels, yes > 0.5) == pytest.approx(sklearn.metrics.f1_score(labels, yes > 0.5))
    for metric, expected in (
        ("roc_auc", sklearn.metrics.roc_auc_score),
        ("average_precision", sklearn.metrics.average_precision_score),
        ("brier", sklearn.metrics.brier_score_loss),
    ):
        assert measure_probabilities(metric, labels, yes) == pytest.approx(expected(labels, yes)), metric


def test_score_metrics_match_numpy_scipy_and_sklearn():
    generator = np.random.default_rng(1)
    gold = generator.integers(0, 6, 200).astype(float)  # with ties
    scores = gold + generator.normal(0, 2, 200)
    assert measure("pearson", gold, scores) == pytest.approx(np.corrcoef(gold, scores)[0, 1])
    assert measure("spearman", gold, scores) == pytest.approx(scipy.stats.spearmanr(gold, scores).statistic)
    assert measure("rmse", gold, scores) == pytest.approx(sklearn.metrics.root_mean_squared_error(gold, scores))


@pytest.mark.parametrize("name", CORRELATIONS)
@pytest.mark.filterwarnings("error")
def test_a_correlation_with_a_constant_is_zero(name):
    changing, constant = [1.0, 2.0, 4.0], [0.1] * 3
    for labels, predictions in ((changing, constant), (constant, changing), (constant, constant)):
        assert measure(name, labels, predictions) == 0
    assert measure(name, [3.0], [2.0]) == 0  # one row is constant too


@pytest.mark.filterwarnings("error")
def test_degenerate_metrics_are_those_of_no_information():
    for labels, predictions in (([0, 0], [0, 0]), ([0, 0], [1, 1]), ([1, 1], [0, 0])):
        assert measure("f1", labels, predictions) == 0
    assert measure("off_by_one", [0, 1, 2], [0, 1, 2]) == 0  # no errors
    assert measure("quadratic_kappa", [2, 2, 2], [2, 2, 2]) == 0  # nothing but chance
    assert measure_probabilities("roc_auc", [1, 1, 1], [0.2, 0.6, 0.8]) == 0.5
    assert measure_probabilities("roc_auc", [0, 1, 1], [0.4, 0.4, 0.4]) == 0.5
    assert measure_probabilities("average_precision", [0, 0, 0], [0.2, 0.6, 0.8]) == 0


def test_confidence_is_the_probability_of_the_prediction():
    # a vote may overrule the probabilities
    scored = Scored(np.array([1.0, 0]), np.array([0.0, 1]), np.array([[0.25, 0.75], [0.375, 0.625]]))
    assert scored.confidence.tolist() == [0.25, 0.625] and scored.correct.tolist() == [0, 0]
    assert scored.take(np.array([False, True])).confidence.tolist() == [0.625]


def test_main_metric_of_a_task_is_configurable():
    tasks = {"qqp": Task("qqp", "pair", "cross", Binary(metric="f1"))}
    dev = evaluate_predictions(rows("qqp", [0, 0, 0, 1], [1, 0, 0, 1]), tasks)["dev"]
    assert next(iter(dev["qqp"])) == "f1" and set(dev["qqp"]) == set(Binary().metrics)
    assert dev["overall_mean"] == selection_score(dev, "qqp", tasks) == pytest.approx(2 / 3)


def test_overall_and_selection_scores_by_hand():
    dev = evaluate_predictions(full(), TASKS)["dev"]
    assert dev["sst"]["accuracy"] == 0.75 and dev["sst"]["off_by_one"] == 1 and dev["sst"]["mae"] == 0.25
    assert dev["qqp"]["accuracy"] == dev["qqp"]["f1"] == 0.5
    assert dev["sts"]["pearson"] == dev["sts"]["spearman"] == pytest.approx(-1)
    assert dev["overall_mean"] == pytest.approx((0.75 + 0.5 - 1) / 3)
    assert dev["overall_normalized"] == pytest.approx((0.75 + 0.5 + 0) / 3)
    assert {name: tuple(dev[name]) for name in TASKS} == {name: task.target.metrics for name, task in TASKS.items()}
    assert selection_score(dev, "overall_mean", TASKS) == dev["overall_mean"]
    assert [selection_score(dev, name, TASKS) for name in TASKS] == [0.75, 0.5, pytest.approx(-1)]


def test_unlabelled_rows_are_left_out():
    hidden = full("test").assign(label=np.nan)
    assert evaluate_predictions(pd.concat([full(), hidden]), TASKS) == evaluate_predictions(full(), TASKS)
    half = evaluate_predictions(rows("sst", [0, 1, np.nan, np.nan], [0, 2, 3, 3]), TASKS)
    assert half == evaluate_predictions(rows("sst", [0, 1], [0, 2]), TASKS) and set(half["dev"]) == {"sst"}


def test_scores_are_clipped_before_they_are_measured():
    clipped = evaluate_predictions(rows("sts", [0, 1, 5, 5], [0, 1, 9, 5]), TASKS)["dev"]["sts"]
    assert clipped["pearson"] == pytest.approx(1) and clipped["spearman"] == pytest.approx(1) and clipped["rmse"] == 0


def test_selection_without_labels_is_an_error():
    dev = evaluate_predictions(rows("sst", [1], [1]), TASKS)["dev"]
    with pytest.raises(UserError, match="finetune.select: overall_mean needs labels.* none for task qqp, sts"):
        selection_score(dev, "overall_mean", TASKS)
    with pytest.raises(UserError, match="none for task sts"):
        selection_score(dev, "sts", TASKS)
