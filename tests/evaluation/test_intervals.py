"""The bootstrap against closed forms, scipy, and the truth of simulations."""

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from bertrio.core.tasks import Binary, Ordered, Score, Task
from bertrio.evaluation.intervals import (
    WEIGHTED,
    bootstrap,
    contributions,
    generator_for,
    interval,
    intervals,
    metric_interval,
    overall,
    resamples_of,
)
from bertrio.evaluation.metrics import METRICS, evaluate_predictions
from bertrio.evaluation.predictions import Scored, prediction_rows

TASKS = {
    "sst": Task("sst", "single", "cross", Ordered(5)),
    "qqp": Task("qqp", "pair", "cross", Binary()),
    "sts": Task("sts", "pair", "cross", Score(0.0, 5.0)),
}
BY_TASK = [(name, metric) for name, task in TASKS.items() for metric in task.target.metrics]


def table(name: str, rows: int, split: str = "dev", digits: int = 8) -> pd.DataFrame:
    """Predictions that know something of the labels; few digits make ties."""
    generator, target = np.random.default_rng(rows), TASKS[name].target
    if name == "sts":
        labels = generator.integers(0, 26, rows) / 5
        outputs = labels[:, None] + generator.normal(0, 1, (rows, 1))
    else:
        labels = generator.integers(0, max(2, target.size), rows).astype(float)
        signal = np.eye(5)[labels.astype(int)] if target.size > 1 else labels[:, None] - 0.5
        outputs = 2 * signal + generator.normal(0, 1, (rows, target.size))
    return prediction_rows(TASKS[name], split, [str(i) for i in range(rows)], labels, outputs.round(digits))


def scored(name: str, rows: int, digits: int = 8) -> Scored:
    return Scored.of(table(name, rows, digits=digits))


def binary(yes: np.ndarray, labels: np.ndarray) -> Scored:
    return Scored(labels.astype(float), (yes > 0.5).astype(float), np.stack((1 - yes, yes), axis=1))


@pytest.mark.parametrize(("task", "metric"), BY_TASK)
@pytest.mark.parametrize("digits", [8, 0])
def test_counting_a_row_several_times_is_having_it_several_times(task, metric, digits):
    rows = scored(task, 40, digits)
    counts = np.random.default_rng(0).multinomial(40, np.full(40, 1 / 40), 50)
    counts[:3] = 40 * np.eye(40)[:3]  # one row alone
    found = WEIGHTED[metric](rows)(counts.astype(float))
    expected = [METRICS[metric](rows.take(np.repeat(np.arange(40), times))) for times in counts]
    np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize("rows", [50, 1000])  # drawn row by row, and as counts
def test_resampled_accuracy_is_binomial(rows):
    labels = np.zeros(rows)
    predictions = np.where(np.arange(rows) < 0.2 * rows, 1.0, 0.0)
    [values] = bootstrap([Scored(labels, predictions)], "accuracy", np.random.default_rng(0), 10_000)
    expected = scipy.stats.binom(rows, 0.8)
    found = np.round(values * rows)
    low, high = expected.ppf([0.001, 0.999])
    inner = np.arange(low, high)
    cumulated = np.searchsorted(np.sort(found), inner, side="right") / len(found)
    assert np.abs(cumulated - expected.cdf(inner)).max() < 1.63 / np.sqrt(10_000)  # Kolmogorov-Smirnov, 1 %
    assert np.array(interval(values)) * rows == pytest.approx(expected.ppf([0.025, 0.975]), abs=1)


def test_the_interval_of_a_correlation_is_fisher_s():
    generator, rows = np.random.default_rng(2), 2000
    labels = generator.normal(size=rows)
    one = Scored(labels, 0.8 * labels + 0.6 * generator.normal(size=rows))
    z = np.arctanh(METRICS["pearson"](one))
    expected = np.tanh(z + np.array([-1.96, 1.96]) / np.sqrt(rows - 3))
    [values] = bootstrap([one], "pearson", generator, 10_000)
    assert interval(values) == pytest.approx(expected, abs=0.1 * (expected[1] - expected[0]))


@pytest.mark.parametrize(("task", "metric"), [pair for pair in BY_TASK if pair[1] != "ece"])
def test_intervals_are_those_of_scipy(task, metric):
    rows = scored(task, 120)
    expected = scipy.stats.bootstrap(
        (np.arange(120),),
        lambda places: METRICS[metric](rows.take(places)),
        n_resamples=2000,
        method="percentile",
        vectorized=False,
        rng=np.random.default_rng(0),
    )
    [values] = bootstrap([rows], metric, np.random.default_rng(1), 4000)
    low, high = expected.confidence_interval
    assert values.std() == pytest.approx(expected.standard_error, rel=0.07)
    assert interval(values) == pytest.approx((low, high), abs=0.12 * (high - low))


def resampled(metric: str, worlds: list[Scored], generator: np.random.Generator) -> np.ndarray:
    """Values [worlds, 800].

    Worlds go in as sides, for they have as many rows; but only fifty share their resamples, and so the luck of those.
    """
    starts = range(0, len(worlds), 50)
    return np.concatenate([bootstrap(worlds[start : start + 50], metric, generator, 800) for start in starts])


def held(values: np.ndarray, truth: float) -> float:
    """In what share of the worlds the interval holds the truth."""
    low, high = np.transpose([interval(own) for own in values])
    return float(np.mean((low <= truth) & (truth <= high)))


def coverage(metric: str, worlds: list[Scored], truth: float) -> float:
    return held(resampled(metric, worlds, np.random.default_rng(0)), truth)


def test_intervals_of_accuracy_cover_the_truth():
    right = np.random.default_rng(0).random((1000, 400)) < 0.8
    worlds = [Scored(np.zeros(400), (~row).astype(float)) for row in right]
    assert coverage("accuracy", worlds, 0.8) == pytest.approx(0.95, abs=0.02)


def test_intervals_of_pearson_cover_the_truth():
    labels, noise = np.random.default_rng(1).normal(size=(2, 1000, 200))
    worlds = [Scored(one, 0.8 * one + 0.6 * other) for one, other in zip(labels, noise)]
    assert coverage("pearson", worlds, 0.8) == pytest.approx(0.95, abs=0.02)


def test_intervals_of_rmse_cover_the_truth():
    labels, noise = np.random.default_rng(4).normal(size=(2, 1000, 400))
    worlds = [Scored(one, one + 0.7 * other) for one, other in zip(labels, noise)]
    assert coverage("rmse", worlds, 0.7) == pytest.approx(0.95, abs=0.02)


def test_intervals_of_macro_f1_cover_the_truth():
    cells = np.array([[0.35, 0.1, 0.05], [0.06, 0.2, 0.04], [0.02, 0.06, 0.12]])  # chances of label and prediction
    truth = np.mean(2 * np.diag(cells) / (cells.sum(axis=0) + cells.sum(axis=1)))
    drawn = np.random.default_rng(5).choice(9, (1000, 400), p=cells.ravel())
    worlds = [Scored(*(of.astype(float) for of in divmod(own, 3))) for own in drawn]
    generator = np.random.default_rng(0)
    values = [bootstrap([world], "macro_f1", generator, 800)[0] for world in worlds]  # labels of their own: no sides
    assert held(np.array(values), truth) == pytest.approx(0.95, abs=0.02)


def test_intervals_of_overall_normalized_cover_the_truth():
    generator = np.random.default_rng(6)
    worlds = {}
    for name, rows, chance in (("sst", 300, 0.5), ("qqp", 400, 0.8)):
        wrong = generator.random((1000, rows)) >= chance
        worlds[name] = ("accuracy", [Scored(np.zeros(rows), one.astype(float)) for one in wrong])
    labels, noise = generator.normal(size=(2, 1000, 200))
    worlds["sts"] = ("pearson", [Scored(one, 0.8 * one + 0.6 * other) for one, other in zip(labels, noise)])
    values = overall({name: (metric, resampled(metric, own, generator)) for name, (metric, own) in worlds.items()})
    assert held(values["overall_normalized"], (0.5 + 0.8 + 0.9) / 3) == pytest.approx(0.95, abs=0.02)


def test_intervals_of_roc_auc_cover_the_truth():
    generator = np.random.default_rng(2)
    labels = (generator.random((1500, 200)) < 0.4).astype(float)
    logits = generator.normal(labels, 1)
    worlds = [binary(1 / (1 + np.exp(-one)), own) for one, own in zip(logits, labels)]
    assert coverage("roc_auc", worlds, scipy.stats.norm.cdf(1 / np.sqrt(2))) == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize(
    ("confidence", "least"), [(1.0, 0.93), (2.0, 0.85)]
)  # logits that are right, or twice too large
def test_the_interval_of_ece_holds_the_truth_where_the_percentiles_miss_it(confidence, least):
    generator = np.random.default_rng(3)
    logits = generator.normal(0, 1.5, (150, 400))
    labels = generator.random(logits.shape) < 1 / (1 + np.exp(-logits))
    worlds = [binary(1 / (1 + np.exp(-confidence * one)), own) for one, own in zip(logits, labels)]
    many = generator.normal(0, 1.5, 400_000)
    chance, said = (1 / (1 + np.exp(-np.abs(scale * many))) for scale in (1, confidence))
    truth = np.abs(chance - said).mean()
    values = bootstrap(worlds, "ece", generator, 300)
    found = [(interval(own), metric_interval(world, "ece", own)) for world, own in zip(worlds, values)]
    plain, mended = np.mean([[low <= truth <= high for low, high in pair] for pair in found], axis=0)
    assert mended >= least > plain
    lows, highs = np.array([own for _, own in found]).T
    widths = np.array([high - low for (low, high), _ in found])
    assert (highs - lows).mean() < 3 * widths.mean()
    assert (lows > 0).mean() > 0.9 if confidence == 2.0 else (lows == 0).mean() > 0.5


def test_all_sides_see_the_same_resamples_whatever_their_order():
    labels = np.random.default_rng(0).integers(0, 2, 300).astype(float)
    sides = [Scored(labels, np.random.default_rng(seed).permutation(labels)) for seed in range(2)]
    for metric in ("accuracy", "macro_f1", "pearson", "spearman"):
        a, b, again = bootstrap([*sides, sides[0]], metric, np.random.default_rng(1), 200)
        np.testing.assert_array_equal(a, again)
        first, second = bootstrap(sides, metric, np.random.default_rng(1), 200)
        swapped = bootstrap(sides[::-1], metric, np.random.default_rng(1), 200)
        np.testing.assert_array_equal(np.stack((second, first)), swapped)
        assert not np.array_equal(a, b)


@pytest.mark.parametrize("metric", ["accuracy", "pearson"])
def test_resamples_are_paired(metric):
    """The difference of two sides that err on the same rows moves less than each side does."""
    labels = np.random.default_rng(0).integers(0, 5, 500).astype(float)
    one = np.where(np.random.default_rng(1).random(500) < 0.4, 4 - labels, labels)
    other = np.where(np.arange(500) < 5, 4 - labels, one)
    a, b = bootstrap([Scored(labels, one), Scored(labels, other)], metric, np.random.default_rng(2), 1000)
    assert (a - b).std() < 0.4 * min(a.std(), b.std())


@pytest.mark.parametrize(("task", "metric"), BY_TASK)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.filterwarnings("error")
def test_a_handful_of_rows_leaves_no_nan(task, metric, rows):
    values = bootstrap([scored(task, rows)], metric, np.random.default_rng(0), 200)
    assert values.shape == (1, 200) and np.isfinite(values).all()


def all_tasks(rows: int = 80, split: str = "dev") -> pd.DataFrame:
    return pd.concat([table(name, rows, split) for name in TASKS], ignore_index=True)


def test_there_is_an_interval_around_every_figure_that_is_measured():
    found, measured = intervals(all_tasks(), TASKS)["dev"], evaluate_predictions(all_tasks(), TASKS)["dev"]
    assert list(found) == list(measured)
    for name, value in measured.items():
        pairs = [(value, found[name])] if name not in TASKS else [(value[key], found[name][key]) for key in value]
        assert all(low <= one <= high and low < high for one, (low, high) in pairs), name


def test_an_interval_depends_on_nothing_else_that_is_measured():
    both = intervals(pd.concat([all_tasks(), all_tasks(50, "test")]), TASKS)
    alone = intervals(table("qqp", 80), TASKS)
    assert both == intervals(pd.concat([all_tasks(), all_tasks(50, "test")]), TASKS)
    assert alone == {"dev": {"qqp": both["dev"]["qqp"]}}
    for metric, found in alone["dev"]["qqp"].items():  # nor on the other metrics
        rows = scored("qqp", 80)
        [values] = bootstrap([rows], metric, generator_for("dev", "qqp"), resamples_of(metric))
        assert found == pytest.approx(metric_interval(rows, metric, values), abs=1e-9)


def test_a_split_without_labels_has_none_and_overall_ones_need_all_tasks():
    hidden = all_tasks(20, "test").assign(label=np.nan)
    assert set(intervals(pd.concat([all_tasks(20), hidden]), TASKS)) == {"dev"}
    assert set(intervals(table("sst", 20), TASKS)["dev"]) == {"sst"}


def test_tasks_that_lead_with_metrics_of_unlike_numbers_of_resamples_have_overall_intervals():
    led = {
        "sst": Task("sst", "single", "cross", Ordered(5, metric="quadratic_kappa")),
        "qqp": Task("qqp", "pair", "cross", Binary(metric="roc_auc")),
        "sts": Task("sts", "pair", "cross", Score(0.0, 5.0, metric="spearman")),
    }
    assert len({resamples_of(task.target.metrics[0]) for task in led.values()}) == 2
    found, measured = intervals(all_tasks(), led)["dev"], evaluate_predictions(all_tasks(), led)["dev"]
    for name in ("overall_mean", "overall_normalized"):
        low, high = found[name]
        assert low < measured[name] < high


def test_overall_scores_move_as_independent_tasks_do():
    frame, firsts = all_tasks(300), {}
    for name, task in TASKS.items():
        metric = task.target.metrics[0]
        rows = Scored.of(frame[frame["task"] == name])
        firsts[name] = (metric, bootstrap([rows], metric, generator_for("dev", name), 10_000)[0])
    found = overall(firsts)
    apart = sum(values.var() for _, values in firsts.values()) / len(firsts) ** 2
    assert found["overall_mean"].var() == pytest.approx(apart, rel=0.05)
    expected = (firsts["sst"][1] + firsts["qqp"][1] + (firsts["sts"][1] + 1) / 2) / 3
    np.testing.assert_allclose(found["overall_normalized"], expected)
    assert intervals(frame, TASKS)["dev"]["overall_mean"] == pytest.approx(interval(found["overall_mean"]))


@pytest.mark.parametrize("metric", ["accuracy", "f1", "macro_f1", "balanced_accuracy", "quadratic_kappa", "roc_auc",
                                    "average_precision", "pearson", "spearman"])  # fmt: skip
def test_contributions_are_those_of_the_jackknife(metric):
    generator, rows = np.random.default_rng(0), 2000
    labels = generator.integers(0, 2, rows).astype(float)
    yes = np.round(np.clip(0.5 + 0.2 * (labels - 0.5) + 0.2 * generator.normal(size=rows), 0.01, 0.99), 2)
    values = yes if metric in ("pearson", "spearman") else (yes > 0.5).astype(float)
    scored = Scored(labels, values, np.stack([1 - yes, yes], axis=1))
    found = contributions(scored, metric)
    for row in range(5):
        without = METRICS[metric](scored.take(np.arange(rows) != row))
        jackknife = (rows - 1) * (METRICS[metric](scored) - without)
        assert found[row] - found.mean() == pytest.approx(jackknife, rel=0.01, abs=0.01)
