import numpy as np
import pandas as pd
import pytest
import scipy.stats
import sklearn.metrics

from bertrio.errors import UserError
from bertrio.evaluation.metrics import METRICS, evaluate_predictions, selection_score
from bertrio.evaluation.predictions import prediction_rows
from bertrio.tasks import Binary, Ordered, Score, Task

TASKS = {
    "sst": Task("sst", "single", "cross", Ordered(5)),
    "qqp": Task("qqp", "pair", "cross", Binary()),
    "sts": Task("sts", "pair", "cross", Score(0.0, 5.0)),
}


def rows(name, labels, predictions, split="dev"):
    """A table of one task whose predictions are as given."""
    column = np.array(predictions, float)[:, None]
    outputs = {"sst": -((column - np.arange(5)) ** 2), "qqp": 2 * column - 1, "sts": column}[name]
    return prediction_rows(TASKS[name], split, [str(i) for i in range(len(column))], np.array(labels, float), outputs)


def full(split="dev"):
    """sst accuracy 0.75; qqp accuracy 0.5 and f1 0.5; sts correlation -1."""
    sst = rows("sst", [0, 1, 2, 3], [0, 1, 2, 4], split)
    qqp = rows("qqp", [1, 1, 0, 0], [1, 0, 1, 0], split)
    return pd.concat([sst, qqp, rows("sts", [0, 1, 2], [3, 2, 1], split)], ignore_index=True)


def test_metrics_equal_those_of_scikit_learn_and_the_formulas():
    generator = np.random.default_rng(1)
    labels, predictions = generator.integers(0, 2, (2, 200)).astype(float)
    expected = sklearn.metrics.accuracy_score(labels, predictions)
    assert METRICS["accuracy"](labels, predictions) == pytest.approx(expected)
    assert METRICS["f1"](labels, predictions) == pytest.approx(sklearn.metrics.f1_score(labels, predictions))
    gold = generator.integers(0, 6, 200).astype(float)  # with ties
    scores = gold + generator.normal(0, 2, 200)
    assert METRICS["pearson"](gold, scores) == pytest.approx(np.corrcoef(gold, scores)[0, 1])
    ranks = [pd.Series(values).rank() for values in (gold, scores)]
    assert METRICS["spearman"](gold, scores) == pytest.approx(np.corrcoef(*ranks)[0, 1])
    assert METRICS["spearman"](gold, scores) == pytest.approx(scipy.stats.spearmanr(gold, scores).statistic)


@pytest.mark.parametrize("name", ["pearson", "spearman"])
@pytest.mark.filterwarnings("error")
def test_a_correlation_with_a_constant_is_zero(name):
    changing, constant = np.array([1.0, 2.0, 4.0]), np.full(3, 0.1)
    for labels, predictions in ((changing, constant), (constant, changing), (constant, constant)):
        assert METRICS[name](labels, predictions) == 0
    assert METRICS[name](np.array([3.0]), np.array([2.0])) == 0  # one row is constant too


@pytest.mark.filterwarnings("error")
def test_f1_without_positives_is_zero():
    no, yes = np.zeros(3), np.ones(3)
    assert METRICS["f1"](no, no) == METRICS["f1"](no, yes) == METRICS["f1"](yes, no) == 0
    assert METRICS["f1"](yes, yes) == 1


def test_both_overall_scores_by_hand():
    dev = evaluate_predictions(full(), TASKS)["dev"]
    assert dev["sst"] == {"accuracy": 0.75}
    assert dev["qqp"] == {"accuracy": 0.5, "f1": 0.5}
    assert dev["sts"] == {"pearson": pytest.approx(-1), "spearman": pytest.approx(-1)}
    assert dev["overall_mean"] == pytest.approx((0.75 + 0.5 - 1) / 3)
    assert dev["overall_normalized"] == pytest.approx((0.75 + 0.5 + 0) / 3)


def test_unlabelled_rows_are_left_out_and_a_split_of_them_is_absent():
    hidden = full("test").assign(label=np.nan)
    assert evaluate_predictions(pd.concat([full(), hidden]), TASKS) == evaluate_predictions(full(), TASKS)
    half = rows("sst", [0, 1, np.nan, np.nan], [0, 2, 3, 3])
    assert evaluate_predictions(half, TASKS) == {"dev": {"sst": {"accuracy": 0.5}}}


def test_overall_scores_need_labels_of_every_task():
    test = evaluate_predictions(pd.concat([full(), rows("sst", [1], [1], "test")]), TASKS)["test"]
    assert test == {"sst": {"accuracy": 1.0}}
    assert "overall_mean" in evaluate_predictions(rows("sst", [1], [1]), {"sst": TASKS["sst"]})["dev"]


def test_scores_are_measured_as_clipped():
    clipped = evaluate_predictions(rows("sts", [0, 1, 5, 5], [0, 1, 9, 5]), TASKS)["dev"]["sts"]
    assert clipped["pearson"] == pytest.approx(1) and clipped["spearman"] == pytest.approx(1)


def test_order_of_rows_does_not_change_metrics():
    shuffled = evaluate_predictions(full().sample(frac=1, random_state=3), TASKS)["dev"]
    for name, values in evaluate_predictions(full(), TASKS)["dev"].items():
        assert shuffled[name] == pytest.approx(values)


def test_selection_takes_an_overall_score_or_the_first_metric_of_a_task():
    dev = evaluate_predictions(full(), TASKS)["dev"]
    assert selection_score(dev, "overall_mean", TASKS) == dev["overall_mean"]
    assert selection_score(dev, "overall_normalized", TASKS) == dev["overall_normalized"]
    assert [selection_score(dev, name, TASKS) for name in TASKS] == [0.75, 0.5, pytest.approx(-1)]


def test_selection_on_rows_without_labels_is_an_error_that_names_the_task():
    dev = evaluate_predictions(rows("sst", [1], [1]), TASKS)["dev"]
    with pytest.raises(UserError, match="finetune.select: overall_mean needs labels.* none for task qqp, sts"):
        selection_score(dev, "overall_mean", TASKS)
    with pytest.raises(UserError, match="none for task sts"):
        selection_score(dev, "sts", TASKS)
