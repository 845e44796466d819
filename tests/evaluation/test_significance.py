from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests

from bertrio.evaluation.intervals import contributions
from bertrio.evaluation.metrics import METRICS, WEIGHTED
from bertrio.evaluation.predictions import Scored
from bertrio.evaluation.significance import ALPHA, TaskScore, holm, paired_difference


def run(scored, metric="accuracy"):
    return {"task": TaskScore(metric, METRICS[metric](scored), contributions(scored, metric))}


def accuracy_runs(fixed, broken, rows=1000):
    """Two runs: `fixed` rows are right in the second alone, `broken` rows in the first alone."""
    first = np.repeat([0.0, 1.0, 1.0], [fixed, broken, rows - fixed - broken])
    second = np.repeat([1.0, 0.0, 1.0], [fixed, broken, rows - fixed - broken])
    return [[run(Scored(np.ones(rows), predictions))] for predictions in (first, second)]


def seeds(values, rows=None):
    rows = np.zeros(10) if rows is None else rows
    return [{"task": TaskScore("rmse", value, rows)} for value in values]


@pytest.mark.parametrize(("fixed", "broken"), [(3, 9), (7, 7), (0, 12), (45, 30), (50, 50), (60, 80), (120, 80)])
def test_p_value_of_accuracies_is_close_to_mcnemar(fixed, broken):
    """It lies between the exact test, which is conservative, and its mid-p variant."""
    exact = mcnemar([[5, fixed], [broken, 5]], exact=True).pvalue
    mid = exact - stats.binom.pmf(fixed, fixed + broken, 0.5)
    assert mid - 0.01 < paired_difference(*accuracy_runs(fixed, broken), "task").p < exact + 0.01


@pytest.mark.parametrize("metric", ["accuracy", "pearson", "macro_f1", "roc_auc"])
@pytest.mark.parametrize("overlap", [0.0, 0.9])
def test_row_variance_matches_the_paired_bootstrap(metric, overlap):
    generator, rows = np.random.default_rng(0), 1000
    labels = generator.normal(size=rows) if metric == "pearson" else generator.integers(0, 2, rows).astype(float)
    shared, sides = generator.normal(size=rows), []
    for _ in range(2):
        values = labels + np.sqrt(overlap) * shared + np.sqrt(1 - overlap) * generator.normal(size=rows)
        yes = 1 / (1 + np.exp(-values))
        graded = Scored(labels, (values > 0.5).astype(float), np.stack([1 - yes, yes], axis=1))
        sides.append(Scored(labels, values) if metric == "pearson" else graded)
    counts = generator.multinomial(rows, np.full(rows, 1 / rows), 4000).astype(float)
    first, second = (WEIGHTED[metric](side)(counts) for side in sides)
    difference = paired_difference(*([run(side, metric)] for side in sides), "task")
    assert difference.rows_alone
    assert (difference.high - difference.low) / 2 / 1.96 == pytest.approx(np.std(second - first), rel=0.07)


def test_without_row_variance_it_is_the_t_test_of_scipy():
    generator = np.random.default_rng(0)
    for sizes in ((2, 2), (3, 5), (10, 4), (1, 3), (4, 1)):
        first, second = (generator.normal(0.8, 0.01 * (i + 1), size) for i, size in enumerate(sizes))
        expected = stats.ttest_ind(second, first, equal_var=min(sizes) == 1)  # Student's with one run, else Welch's
        difference = paired_difference(seeds(first), seeds(second), "task")
        assert difference.p == pytest.approx(expected.pvalue)
        assert (difference.low, difference.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))


def test_sides_are_symmetric_and_intervals_agree_with_p():
    generator = np.random.default_rng(1)
    for _ in range(20):
        rows = generator.normal(0, 0.3, (2, 100))
        a, b = (seeds(generator.normal(0.8, 0.02, count), row) for count, row in zip((2, 3), rows))
        ab, ba = paired_difference(a, b, "task"), paired_difference(b, a, "task")
        assert (ab.difference, ab.low, ab.high, ab.p) == pytest.approx((-ba.difference, -ba.high, -ba.low, ba.p))
        assert (ab.p < ALPHA) == (not ab.low <= 0 <= ab.high)


@pytest.mark.parametrize("count", [3, 5])
def test_false_positive_rate_is_five_percent(count):
    """Rows and seeds have the same variance."""
    generator, rows, significant = np.random.default_rng(count), 200, []
    for _ in range(600):  # so the rate is known to +-1.8 points
        gains = generator.normal(0, np.sqrt(rows), rows)  # difference of both sides on each row, the same for all seeds
        first, second = generator.normal(0, np.sqrt(count / 2), (2, count))
        difference = paired_difference(seeds(first, 0 * gains), seeds(second + gains.mean(), gains), "task")
        significant.append(difference.p < ALPHA)
    assert 0.03 < np.mean(significant) < 0.07


def test_overall_scores_weight_the_tasks():
    generator = np.random.default_rng(0)
    metrics = {"a": "accuracy", "b": "pearson"}
    runs = [{task: TaskScore(metrics[task], 0.5, generator.normal(size=300)) for task in metrics} for _ in range(2)]
    variance = {task: np.var(runs[1][task].rows - runs[0][task].rows) / 300 for task in ("a", "b")}
    for name, weights in {"overall_mean": (1 / 2, 1 / 2), "overall_normalized": (1 / 2, 1 / 4)}.items():
        difference = paired_difference(runs[:1], runs[1:], name)
        error = np.sqrt(sum(w**2 * variance[task] for w, task in zip(weights, ("a", "b"))))
        assert (difference.high - difference.low) / 2 == pytest.approx(1.96 * error, rel=0.02)


def test_intervals_are_cut_off_at_possible_differences():
    """Two seeds that differ by much leave one degree of freedom, and Student's t reaches far beyond."""
    for metric, largest in {"accuracy": 1, "pearson": 2, "matthews_correlation": 2}.items():
        sides = [[{"task": TaskScore(metric, value, np.zeros(9))} for value in side] for side in ((0, 1), (0.4, 0.9))]
        difference = paired_difference(*sides, "task")
        assert (difference.low, difference.high) == (-largest, largest)


def test_tasks_of_the_same_texts_count_once():
    sides = accuracy_runs(60, 40)
    shared = [[dict.fromkeys("ab", replace(one["task"], ids=("0", "1"))) for one in side] for side in sides]
    both, alone = paired_difference(*shared, "overall_mean"), paired_difference(*sides, "task")
    assert (both.low, both.high, both.p) == pytest.approx((alone.low, alone.high, alone.p))


def test_without_variance_it_is_the_sign_test():
    assert paired_difference(seeds([0.8, 0.8]), seeds([0.9, 0.9]), "task").p == 1
    same = paired_difference(*accuracy_runs(0, 0), "task")
    assert (same.difference, same.low, same.high, same.p) == (0, 0, 0, 1)
    assert paired_difference(*accuracy_runs(50, 0, 50), "task").p == pytest.approx(2 * 0.5**50)


@pytest.mark.parametrize("ps", [[], [0.01], [0.04, 0.01, 0.03], [0.5, 0.5, 0.01, 0.02], [0.9, 0.8], [0.0, 1.0, 0.02]])
def test_holm_matches_statsmodels(ps):
    assert holm(ps) == pytest.approx(multipletests(ps, method="holm")[1] if ps else [])
