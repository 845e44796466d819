"""The bootstrap against closed forms, scipy, and the truth of simulations."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from bertrio.core.tasks import Binary, Task
from bertrio.evaluation import intervals as module
from bertrio.evaluation.intervals import bootstrap, contributions, interval, intervals, metric_interval
from bertrio.evaluation.metrics import METRICS, ON_COUNTS, WEIGHTED, evaluate_predictions
from bertrio.evaluation.predictions import Scored, prediction_rows
from tests.evaluation.tables import TASKS

BY_TASK = [(name, metric) for name, task in TASKS.items() for metric in task.target.metrics]


def table(name: str, rows: int, split: str = "dev", digits: int = 8) -> pd.DataFrame:
    """Predictions that correlate with the labels; few digits make ties."""
    generator, target = np.random.default_rng(rows), TASKS[name].target
    if name == "sts":
        labels = generator.integers(0, 26, rows) / 5
        outputs = labels[:, None] + generator.normal(0, 1, (rows, 1))
    else:
        labels = generator.integers(0, max(2, target.size), rows).astype(float)
        signal = np.eye(5)[labels.astype(int)] if target.size > 1 else labels[:, None] - 0.5
        outputs = 2 * signal + generator.normal(0, 1, (rows, target.size))
    ids = [f"{name}-{i}" for i in range(rows)]
    return prediction_rows(TASKS[name], split, ids, labels, outputs.round(digits))


def all_tasks(rows: int = 80, split: str = "dev") -> pd.DataFrame:
    return pd.concat([table(name, rows, split) for name in TASKS], ignore_index=True)


def scored(name: str, rows: int, digits: int = 8) -> Scored:
    return Scored.from_rows(table(name, rows, digits=digits))


def binary(yes: np.ndarray, labels: np.ndarray) -> Scored:
    return Scored(labels.astype(float), (yes > 0.5).astype(float), np.stack((1 - yes, yes), axis=1))


@pytest.mark.parametrize(("task", "metric"), BY_TASK)
@pytest.mark.parametrize("digits", [8, 0])
def test_weighting_a_row_equals_repeating_it(task, metric, digits):
    rows = scored(task, 40, digits)
    counts = np.random.default_rng(0).multinomial(40, np.full(40, 1 / 40), 50)
    counts[:3] = 40 * np.eye(40)[:3]  # one row alone
    expected = [METRICS[metric](rows.take(np.repeat(np.arange(40), times))) for times in counts]
    np.testing.assert_allclose(WEIGHTED[metric](rows)(counts.astype(float)), expected, atol=1e-9)


@pytest.mark.parametrize(("task", "metric"), [pair for pair in BY_TASK if pair[1] != "ece"])
def test_bootstrap_matches_scipy(task, metric):
    rows = scored(task, 120)
    expected = scipy.stats.bootstrap(
        (np.arange(120),), lambda positions: METRICS[metric](rows.take(positions)), n_resamples=2000,
        method="percentile", vectorized=False, rng=np.random.default_rng(0),
    )  # fmt: skip
    values = bootstrap(rows, {metric: 4000}, np.random.default_rng(1))[metric]
    low, high = expected.confidence_interval
    assert values.std() == pytest.approx(expected.standard_error, rel=0.07)
    assert interval(values) == pytest.approx((low, high), abs=0.12 * (high - low))


@pytest.mark.parametrize(("scale", "least"), [(1.0, 0.93), (2.0, 0.85)])  # calibrated logits, or logits twice too large
def test_ece_interval_covers_the_truth_where_percentiles_miss(scale, least):
    generator = np.random.default_rng(3)
    logits = generator.normal(0, 1.5, (150, 400))
    labels = generator.random(logits.shape) < 1 / (1 + np.exp(-logits))
    samples = [binary(1 / (1 + np.exp(-scale * row)), gold) for row, gold in zip(logits, labels)]
    population = np.abs(generator.normal(0, 1.5, 400_000))
    truth = np.abs(1 / (1 + np.exp(-population)) - 1 / (1 + np.exp(-scale * population))).mean()
    values = np.array([bootstrap(sample, {"ece": 300}, generator)["ece"] for sample in samples])
    corrected = np.array([metric_interval(sample, "ece", row) for sample, row in zip(samples, values)])
    percentile = np.quantile(values, [0.025, 0.975], axis=1).T
    covered, missed = (np.mean((ends[:, 0] <= truth) & (truth <= ends[:, 1])) for ends in (corrected, percentile))
    assert covered >= least > missed
    assert (corrected[:, 0] > 0).mean() > 0.9 if scale == 2.0 else (corrected[:, 0] == 0).mean() > 0.5


@pytest.mark.parametrize(("task", "metric"), BY_TASK)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.filterwarnings("error")
def test_few_rows_give_no_nan(task, metric, rows):
    values = bootstrap(scored(task, rows), {metric: 200}, np.random.default_rng(0))[metric]
    assert values.shape == (200,) and np.isfinite(values).all()


@pytest.mark.parametrize("metric", ON_COUNTS)
@pytest.mark.parametrize("rows", [2, 163, 219])
@pytest.mark.filterwarnings("error")
def test_rows_of_one_class_contribute_at_most_a_row(metric, rows):
    assert np.abs(contributions(Scored(np.full(rows, 3.0), np.full(rows, 3.0)), metric)).max() <= 1


def test_every_metric_lies_within_its_interval():
    ranked = {**TASKS, "qqp": Task("qqp", "pair", "cross", Binary(metric="roc_auc"))}  # has fewer resamples
    for tasks in (TASKS, ranked):
        limits, measured = intervals(all_tasks(), tasks)["dev"], evaluate_predictions(all_tasks(), tasks)["dev"]
        assert list(limits) == list(measured)
        for name, value in measured.items():
            pairs = [(value, limits[name])] if name not in tasks else [(value[key], limits[name][key]) for key in value]
            assert all(low <= figure <= high and low < high for figure, (low, high) in pairs), name


def test_overall_interval_treats_tasks_as_independent():
    limits = intervals(all_tasks(400), TASKS)["dev"]
    widths = [np.diff(limits[name][task.target.metrics[0]]) for name, task in TASKS.items()]
    assert np.diff(limits["overall_mean"]) == pytest.approx(np.linalg.norm(widths) / 3, rel=0.1)


def test_tasks_with_the_same_row_ids_share_their_resamples():
    tasks = {name: replace(TASKS["qqp"], name=name) for name in "ab"}
    limits = intervals(pd.concat([table("qqp", 80).assign(task=name) for name in tasks]), tasks)["dev"]
    assert limits["overall_mean"] == limits["a"]["accuracy"] == limits["b"]["accuracy"]


def test_intervals_do_not_depend_on_other_tasks_or_splits():
    hidden = all_tasks(20).assign(label=np.nan, split="hidden")
    everything = intervals(pd.concat([all_tasks(), all_tasks(50, "test"), hidden]), TASKS)
    assert set(everything) == {"dev", "test"}
    assert intervals(table("qqp", 80), TASKS) == {"dev": {"qqp": everything["dev"]["qqp"]}}, "no overall score either"


@pytest.mark.parametrize("metric", ["accuracy", "f1", "macro_f1", "balanced_accuracy", "quadratic_kappa", "roc_auc",
                                    "average_precision", "pearson", "spearman"])  # fmt: skip
def test_contributions_match_the_jackknife(metric):
    generator, rows = np.random.default_rng(0), 2000
    labels = generator.integers(0, 2, rows).astype(float)
    yes = np.round(np.clip(0.5 + 0.2 * (labels - 0.5) + 0.2 * generator.normal(size=rows), 0.01, 0.99), 2)
    values = yes if metric in ("pearson", "spearman") else (yes > 0.5).astype(float)
    scored = Scored(labels, values, np.stack([1 - yes, yes], axis=1))
    influence = contributions(scored, metric)
    for row in range(5):
        without = METRICS[metric](scored.take(np.arange(rows) != row))
        jackknife = (rows - 1) * (METRICS[metric](scored) - without)
        assert influence[row] - influence.mean() == pytest.approx(jackknife, rel=0.01, abs=0.01)


@pytest.mark.parametrize("family", [("accuracy", "f1"), ("brier", "roc_auc", "ece")])
def test_metrics_of_a_family_share_their_draws(family, monkeypatch):
    monkeypatch.setattr(module, "CELLS", 700)  # several chunks
    rows = scored("qqp", 90)
    numbers = {metric: 60 if metric in module.RANKING else 200 for metric in family}
    draws = bootstrap(rows, numbers, np.random.default_rng(1))
    for metric, number in numbers.items():
        alone = bootstrap(rows, {metric: number}, np.random.default_rng(1))[metric]
        np.testing.assert_array_equal(draws[metric], alone)
