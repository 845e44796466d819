import json

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from scipy.stats import binomtest

from bertrio.core.tasks import Binary, Ordered, Score, Task
from bertrio.evaluation.calibration import (
    TEMPERATURES,
    brier,
    ece,
    equal_mass_bins,
    fit_temperature,
    log_loss,
    reliability,
    temper,
    wilson,
    write_calibration,
)
from bertrio.evaluation.predictions import Scored, object_column


def drawn(rows=4000, classes=4, temperature=1.0, seed=0):
    """Logits, and labels drawn from softmax(logits / temperature)."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, 2, (rows, classes))
    truth = softmax(logits / temperature, axis=1)
    labels = (truth.cumsum(axis=1) < generator.uniform(size=(rows, 1))).sum(axis=1).astype(float)
    return logits, labels


def scored(rows=1000, classes=5, seed=0, temperature=1.0):
    logits, labels = drawn(rows, classes, temperature, seed)
    return Scored(labels, logits.argmax(axis=1).astype(float), softmax(logits, axis=1))


def test_calibration_error_of_a_case_by_hand():
    confidence, correct = np.array([0.9, 0.5, 0.6, 1.0]), np.array([1.0, 1.0, 0.0, 0.0])
    # bins {0.5, 0.6} and {0.9, 1.0}: |0.5 - 0.55| and |0.5 - 0.95|, half of the rows each
    assert ece(confidence, correct, bins=2) == pytest.approx(0.5 * 0.05 + 0.5 * 0.45)
    assert ece(confidence, correct, bins=1) == pytest.approx(abs(0.75 - 0.5))
    assert ece(confidence, correct, bins=4) == pytest.approx(np.abs(confidence - correct).mean())


def test_calibration_error_of_rows_as_sure_as_they_are_right_is_0_and_at_worst_1():
    assert ece(np.full(10, 0.7), np.arange(10) < 7) == pytest.approx(0)
    assert ece(np.ones(20), np.zeros(20)) == 1


def test_finer_bins_that_split_coarser_ones_never_find_less():
    generator = np.random.default_rng(1)
    confidence = generator.uniform(0.2, 1, 960)
    correct = generator.uniform(size=960) < confidence
    found = [ece(confidence, correct, bins) for bins in (1, 2, 4, 8, 16, 32)]
    assert found == sorted(found)


def test_the_order_of_rows_has_no_say_even_where_confidences_are_equal():
    generator = np.random.default_rng(2)
    confidence, correct = generator.choice([0.3, 0.6, 0.9], 500), generator.integers(0, 2, 500).astype(float)
    order = generator.permutation(500)
    assert ece(confidence[order], correct[order]) == pytest.approx(ece(confidence, correct), abs=1e-12)


@pytest.mark.parametrize(("rows", "bins"), [(1101, 15), (15, 15), (7, 15), (40, 3)])
def test_bins_hold_as_many_rows_each_and_rise_with_confidence(rows, bins):
    confidence = np.random.default_rng(rows).permutation(np.linspace(0.2, 1, rows))
    bin_of = equal_mass_bins(confidence, bins)
    sizes = np.bincount(bin_of, minlength=bins)
    assert sizes.sum() == rows and sizes.max() - sizes.min() <= 1 and len(sizes) == bins
    assert (np.diff(bin_of[confidence.argsort()]) >= 0).all()


def test_brier_is_sklearns():
    from sklearn.metrics import brier_score_loss

    for classes in (2, 5):
        of = scored(classes=classes)
        truth = of.labels if classes == 2 else np.eye(classes)[of.labels.astype(int)]
        # one column of yes for two classes, and the sum over classes, as Brier has it, for more
        expected = (
            brier_score_loss(truth, of.probabilities[:, 1])
            if classes == 2
            else np.square(truth - of.probabilities).sum(axis=1).mean()
        )
        assert brier(of.probabilities, of.labels) == pytest.approx(expected)
    assert brier(np.eye(3), np.arange(3.0)) == 0
    assert brier(np.eye(3), np.array([1.0, 2.0, 0.0])) == 2


def test_log_loss_is_sklearns_and_finite_for_a_label_without_any_probability():
    from sklearn.metrics import log_loss as oracle

    of = scored()
    assert log_loss(of.probabilities, of.labels) == pytest.approx(oracle(of.labels, of.probabilities))
    assert log_loss(np.array([[1.0, 0.0]]), np.array([1.0])) == pytest.approx(-np.log(1e-12))


@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.5])
def test_the_temperature_is_scipys_optimum_and_near_the_one_that_labels_were_drawn_with(temperature):
    logits, labels = drawn(temperature=temperature)

    def loss(log_t):
        return -log_softmax(logits / np.exp(log_t), axis=1)[np.arange(len(labels)), labels.astype(int)].mean()

    best = np.exp(minimize_scalar(loss, bounds=np.log(TEMPERATURES), method="bounded", options={"xatol": 1e-9}).x)
    found = fit_temperature(softmax(logits, axis=1), labels)
    assert found == pytest.approx(best, rel=1e-5)
    assert found == pytest.approx(temperature, rel=0.1)


def test_the_temperature_of_two_rows_by_hand():
    # odds of 9 : 1 that are right three times in four want odds of 3 : 1, which is 9 to the power of 1 / 2
    probabilities, labels = np.tile([0.9, 0.1], (4, 1)), np.array([0.0, 0, 0, 1])
    assert fit_temperature(probabilities, labels) == pytest.approx(2)
    np.testing.assert_allclose(temper(probabilities, 2)[0], [0.75, 0.25])


def test_a_half_that_is_all_right_or_all_wrong_has_a_temperature_at_the_end_of_the_range():
    probabilities = np.tile([0.8, 0.2], (5, 1))
    assert fit_temperature(probabilities, np.zeros(5)) == pytest.approx(TEMPERATURES[0])
    assert fit_temperature(probabilities, np.ones(5)) == pytest.approx(TEMPERATURES[1])


def test_tempering_keeps_the_order_of_classes_and_at_1_the_probabilities():
    of = scored()
    np.testing.assert_allclose(temper(of.probabilities, 1.0), of.probabilities, atol=1e-12)
    for temperature in (0.3, 4.0):
        tempered = temper(of.probabilities, temperature)
        assert (tempered.argsort(axis=1) == of.probabilities.argsort(axis=1)).all()
        np.testing.assert_allclose(tempered.sum(axis=1), 1)


def test_the_table_of_reliability_has_all_rows_and_adds_up_to_the_calibration_error():
    of = scored(rows=1101)
    table = reliability(of)
    assert list(table.columns) == ["bin", "n", "confidence", "accuracy", "low", "high"]
    assert table["n"].sum() == 1101 and table["n"].max() - table["n"].min() <= 1
    gaps = (table["accuracy"] - table["confidence"]).abs()
    assert (table["n"] / 1101 * gaps).sum() == pytest.approx(ece(of.confidence, of.correct))
    assert (table["n"] * table["accuracy"]).sum() == pytest.approx(of.correct.sum())
    for row in table.itertuples():
        expected = binomtest(round(row.accuracy * row.n), row.n).proportion_ci(method="wilson")
        assert (row.low, row.high) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_wilsons_interval_is_scipys():
    for right, rows in ((0, 7), (3, 10), (10, 10), (700, 1101)):
        expected = binomtest(right, rows).proportion_ci(method="wilson")
        assert wilson(right / rows, rows) == pytest.approx((expected.low, expected.high), abs=1e-6)


def table_of(task, of, split="dev"):
    return pd.DataFrame(
        {
            "id": [str(i) for i in range(len(of.labels))],
            "task": task,
            "split": split,
            "label": of.labels,
            "prediction": of.predictions,
            "probabilities": object_column([None] * len(of.labels) if of.probabilities is None else of.probabilities),
            "score": np.nan,
        }
    )


TASKS = {
    "stars": Task("stars", "single", "cross", Ordered(5)),
    "same": Task("same", "pair", "cross", Binary()),
    "near": Task("near", "pair", "cross", Score(0.0, 5.0)),
    "silent": Task("silent", "pair", "cross", Binary()),
}


def test_the_report_is_of_the_half_that_the_temperature_has_not_seen(tmp_path):
    sure = scored(rows=2001, temperature=3.0)  # three times as sure as it should be
    numbers = Scored(np.linspace(0, 5, 10), np.linspace(1, 4, 10))
    unlabelled = scored(rows=30, classes=2)
    unlabelled.labels[:] = np.nan
    frame = pd.concat(
        [
            table_of("stars", sure),
            table_of("stars", scored(rows=50), "test"),
            table_of("same", scored(rows=200, classes=2)),
            table_of("near", numbers),
            table_of("silent", unlabelled),
        ]
    )
    write_calibration(frame, TASKS, tmp_path / "calibration.json")
    report = json.loads((tmp_path / "calibration.json").read_text())
    assert list(report) == ["stars", "same"]
    stars = report["stars"]
    assert stars["rows"] == 1001 and stars["temperature"] == pytest.approx(3, rel=0.1)
    assert stars["ece_scaled"] < 0.06 < 0.2 < stars["ece"]
    assert stars["nll_scaled"] < stars["nll"] and stars["brier_scaled"] < stars["brier"]

    half = np.random.default_rng(0).permutation(2001)[:1000]
    assert stars["temperature"] == pytest.approx(fit_temperature(sure.probabilities[half], sure.labels[half]), abs=1e-5)
    rest = np.setdiff1d(np.arange(2001), half)
    probabilities, labels = sure.probabilities[rest], sure.labels[rest]
    for name, own in (("", probabilities), ("_scaled", temper(probabilities, stars["temperature"]))):
        assert stars[f"ece{name}"] == pytest.approx(ece(own.max(axis=1), own.argmax(axis=1) == labels), abs=1e-4)
        assert stars[f"nll{name}"] == pytest.approx(log_loss(own, labels), abs=1e-4)
        assert stars[f"brier{name}"] == pytest.approx(brier(own, labels), abs=1e-4)

    write_calibration(frame, TASKS, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "calibration.json").read_bytes()


def test_no_labelled_rows_make_an_empty_report(tmp_path):
    write_calibration(table_of("stars", scored()).head(0), TASKS, tmp_path / "calibration.json")
    assert json.loads((tmp_path / "calibration.json").read_text()) == {}
