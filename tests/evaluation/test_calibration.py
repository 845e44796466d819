import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from scipy.stats import binomtest
from sklearn.metrics import log_loss as sklearn_log_loss

from bertrio.core.files import read_json
from bertrio.core.tasks import MultiLabel, Predicted, Task
from bertrio.evaluation import calibration
from bertrio.evaluation.calibration import TEMPERATURES, fit_temperature, log_loss, temper
from bertrio.evaluation.metrics import BINS, METRICS
from bertrio.evaluation.predictions import Scored, predicted_rows
from tests.evaluation.tables import SST, TASKS, predictions


def drawn(rows=4000, classes=4, temperature=1.0, seed=0):
    """Logits, and labels drawn from softmax(logits / temperature)."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, 2, (rows, classes))
    truth = softmax(logits / temperature, axis=1)
    labels = (truth.cumsum(axis=1) < generator.uniform(size=(rows, 1))).sum(axis=1).astype(float)
    return logits, labels


def scored(rows=1000, classes=5, temperature=1.0):
    logits, labels = drawn(rows, classes, temperature)
    return Scored(labels, logits.argmax(axis=1).astype(float), softmax(logits, axis=1))


def binary(confidence, correct):
    """Rows predicted as class 1 with this confidence."""
    confidence, correct = np.array(confidence, float), np.array(correct, float)
    return Scored(correct, np.ones(len(correct)), np.stack([1 - confidence, confidence], axis=1))


def test_ece_by_hand():
    confidence = np.repeat([0.6, 0.8], [BINS, BINS])  # equal confidences share a bin, however many
    right = np.concatenate([np.ones(BINS), np.zeros(BINS)])
    assert METRICS["ece"](binary(confidence, right)) == pytest.approx(0.5 * 0.4 + 0.5 * 0.8)
    confidence, right = np.linspace(0.5, 1, BINS), np.arange(BINS) % 2  # a bin each
    assert METRICS["ece"](binary(confidence, right)) == pytest.approx(np.abs(confidence - right).mean())
    assert METRICS["ece"](binary(np.full(10, 0.7), np.arange(10) < 7)) == pytest.approx(0)


def test_brier_and_log_loss_match_formula_and_sklearn():
    rows = scored()
    truth = np.eye(5)[rows.labels.astype(int)]
    assert METRICS["brier"](rows) == pytest.approx(np.square(truth - rows.probabilities).sum(axis=1).mean())
    assert log_loss(rows.probabilities, rows.labels) == pytest.approx(sklearn_log_loss(rows.labels, rows.probabilities))
    assert log_loss(np.array([[1.0, 0.0]]), np.array([1.0])) == pytest.approx(-np.log(1e-12))


@pytest.mark.parametrize("temperature", [0.4, 2.5])
def test_temperature_matches_scipy_and_the_true_one(temperature):
    logits, labels = drawn(temperature=temperature)

    def loss(log_t):
        return -log_softmax(logits / np.exp(log_t), axis=1)[np.arange(len(labels)), labels.astype(int)].mean()

    best = np.exp(minimize_scalar(loss, bounds=np.log(TEMPERATURES), method="bounded", options={"xatol": 1e-9}).x)
    fitted = fit_temperature(softmax(logits, axis=1), labels)
    assert fitted == pytest.approx(best, rel=1e-5)
    assert fitted == pytest.approx(temperature, rel=0.1)


def test_temperature_by_hand_and_at_its_bounds():
    # odds of 9 : 1 that are right three times in four should be 3 : 1, which is 9 to the power of 1 / 2
    probabilities, labels = np.tile([0.9, 0.1], (4, 1)), np.array([0.0, 0, 0, 1])
    assert fit_temperature(probabilities, labels) == pytest.approx(2)
    np.testing.assert_allclose(temper(probabilities, 2)[0], [0.75, 0.25])
    assert fit_temperature(probabilities, np.zeros(4)) == pytest.approx(TEMPERATURES[0])
    assert fit_temperature(probabilities, np.ones(4)) == pytest.approx(TEMPERATURES[1])


def test_reliability_table_adds_up_to_the_ece():
    rows = scored(rows=1101)
    table = calibration.reliability(rows)
    assert list(table.columns) == ["bin", "n", "confidence", "accuracy", "low", "high"]
    gaps = (table["accuracy"] - table["confidence"]).abs()
    assert (table["n"] / 1101 * gaps).sum() == pytest.approx(METRICS["ece"](rows))
    assert (table["n"] * table["accuracy"]).sum() == pytest.approx(rows.correct.sum())


@pytest.mark.parametrize(("right", "rows"), [(0, 7), (3, 10), (10, 10), (700, 1101)])
def test_wilson_interval_matches_scipy(right, rows):
    expected = binomtest(right, rows).proportion_ci(method="wilson")
    assert calibration.wilson(right / rows, rows) == pytest.approx((expected.low, expected.high), abs=1e-6)


def table_of(rows, split="dev"):
    predicted = Predicted(rows.predictions, rows.probabilities, None)
    return predicted_rows(SST, split, [str(i) for i in range(len(rows.labels))], rows.labels, predicted)


def test_report_measures_the_half_that_was_not_fitted(tmp_path):
    overconfident, scores = scored(rows=2001, temperature=3.0), predictions().query("task == 'sts'")
    parts = [table_of(overconfident), table_of(scored(50), "test"), scores]
    tasks = {**TASKS, "moods": Task("moods", "single", "cross", MultiLabel(2))}  # without rows
    calibration.write_calibration(pd.concat(parts), tasks, tmp_path / "calibration.json")
    [(task, figures)] = read_json(tmp_path / "calibration.json").items()
    assert task == "sst" and figures["rows"] == 1001
    assert figures["ece_scaled"] < 0.06 < 0.2 < figures["ece"]
    halves = np.split(np.random.default_rng(0).permutation(2001), [1000])
    fitted, measured = (overconfident.take(half) for half in halves)
    assert figures["temperature"] == pytest.approx(fit_temperature(fitted.probabilities, fitted.labels), abs=1e-5)
    scaled = temper(measured.probabilities, figures["temperature"])
    for name, probabilities in (("", measured.probabilities), ("_scaled", scaled)):
        rows = Scored(measured.labels, measured.predictions, probabilities)
        assert figures[f"ece{name}"] == pytest.approx(METRICS["ece"](rows), abs=1e-4)
        assert figures[f"nll{name}"] == pytest.approx(log_loss(probabilities, rows.labels), abs=1e-4)
        assert figures[f"brier{name}"] == pytest.approx(METRICS["brier"](rows), abs=1e-4)
