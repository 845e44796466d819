import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar as other_mcnemar
from statsmodels.stats.multitest import multipletests

from bertrio.evaluation.bootstrap import bootstrap
from bertrio.evaluation.metrics import Scored
from bertrio.evaluation.significance import ALPHA, EXACT_BELOW, bootstrap_p, holm, mcnemar, welch

TRIALS = 2000  # the rate of 5 % is then known to +-1 point


@pytest.mark.parametrize(("fixed", "broken"), [(0, 1), (3, 9), (9, 3), (7, 7), (0, 40), (45, 30), (49, 50)])
def test_mcnemar_of_few_is_the_exact_one(fixed, broken):
    assert fixed + broken < EXACT_BELOW
    assert mcnemar(fixed, broken) == pytest.approx(stats.binomtest(fixed, fixed + broken).pvalue, rel=1e-9)
    assert mcnemar(fixed, broken) == pytest.approx(other_mcnemar([[5, fixed], [broken, 5]], exact=True).pvalue)


@pytest.mark.parametrize(("fixed", "broken"), [(50, 50), (60, 80), (300, 200), (4000, 1)])
def test_mcnemar_of_many_is_chi_square(fixed, broken):
    theirs = other_mcnemar([[5, fixed], [broken, 5]], exact=False, correction=False)
    assert mcnemar(fixed, broken) == pytest.approx(theirs.pvalue, rel=1e-9, abs=1e-300)


def test_mcnemar_at_its_edges():
    assert mcnemar(0, 0) == 1
    assert all(mcnemar(a, b) == mcnemar(b, a) for a in range(0, 120, 7) for b in range(0, 120, 11))
    for apart in (EXACT_BELOW - 1, EXACT_BELOW):  # no step where one test takes over from the other
        assert mcnemar(apart // 2 - 10, apart - apart // 2 + 10) == pytest.approx(0.045, abs=0.02)


@pytest.mark.parametrize(("rows", "wrong"), [(400, 0.2), (400, 0.5), (1100, 0.45)])
def test_mcnemar_finds_a_difference_where_there_is_none_in_one_of_twenty(rows, wrong):
    generator = np.random.default_rng(rows)
    errors = generator.random((TRIALS, 2, rows)) < wrong
    fixed, broken = (errors[:, 0] & ~errors[:, 1]).sum(-1), (~errors[:, 0] & errors[:, 1]).sum(-1)
    rate = np.mean([mcnemar(int(a), int(b)) < ALPHA for a, b in zip(fixed, broken)])
    assert 0.03 < rate < 0.07


def test_the_exact_test_errs_on_the_safe_side():
    """By the sum over all outcomes, for every number of rows that it is used for."""
    for apart in range(1, EXACT_BELOW):
        chances = stats.binom.pmf(np.arange(apart + 1), apart, 0.5)
        found = [mcnemar(fixed, apart - fixed) < ALPHA for fixed in range(apart + 1)]
        assert chances[found].sum() < ALPHA


def test_chi_square_errs_by_less_than_one_point():
    for apart in (EXACT_BELOW, EXACT_BELOW + 1, 150, 200, 500):
        chances = stats.binom.pmf(np.arange(apart + 1), apart, 0.5)
        found = [mcnemar(fixed, apart - fixed) < ALPHA for fixed in range(apart + 1)]
        assert 0.04 < chances[found].sum() < 0.06


@pytest.mark.parametrize(("metric", "spread"), [("pearson", 0.5), ("accuracy", None), ("f1", None)])
def test_the_paired_bootstrap_finds_a_difference_where_there_is_none_in_one_of_twenty(metric, spread):
    generator = np.random.default_rng(3)
    found = []
    for _ in range(600):  # the rate of 5 % is then known to +-1.8 points
        labels = generator.normal(size=300) if spread else generator.integers(0, 2, 300).astype(float)
        sides = []
        for _ in range(2):
            noise = labels + spread * generator.normal(size=300) if spread else None
            flipped = np.abs(labels - (generator.random(300) < 0.2))
            sides.append(Scored(labels, noise if spread else flipped))
        first, second = bootstrap(sides, metric, generator, 400)
        found.append(bootstrap_p(second - first) < ALPHA)
    assert 0.03 < np.mean(found) < 0.07


def test_the_bootstrap_p_says_what_the_interval_says():
    generator = np.random.default_rng(0)
    for shift in np.linspace(-3, 3, 41):
        differences = shift + generator.normal(size=2000)
        low, high = np.quantile(differences, (0.025, 0.975))
        if min(abs(low), abs(high)) > 0.02:  # at the very edge the +1 decides
            assert (bootstrap_p(differences) < ALPHA) == (not low <= 0 <= high)
        assert bootstrap_p(differences) == bootstrap_p(-differences)
    assert bootstrap_p(np.zeros(100)) == 1
    assert bootstrap_p(np.ones(999)) == pytest.approx(0.002)


def test_the_bootstrap_p_of_a_mean_is_near_the_t_test():
    values = np.random.default_rng(1).normal(0.15, 1, size=200)
    draws = np.random.default_rng(2).integers(0, 200, (10000, 200))
    assert bootstrap_p(values[draws].mean(1)) == pytest.approx(stats.ttest_1samp(values, 0).pvalue, abs=0.01)


@pytest.mark.parametrize("ps", [[0.01], [0.04, 0.01, 0.03], [0.5, 0.5, 0.01, 0.02], [0.9, 0.8], [0.0, 1.0, 0.02]])
def test_holm_is_that_of_statsmodels(ps):
    assert holm(ps) == pytest.approx(multipletests(ps, method="holm")[1])


def test_holm_keeps_the_chance_of_any_false_positive():
    ps = np.random.default_rng(0).random((TRIALS, 3))
    assert 0.03 < np.mean([min(holm(row)) < ALPHA for row in ps]) < 0.07
    assert holm([]) == []


def test_welch_is_that_of_scipy():
    generator = np.random.default_rng(0)
    for sizes in ((2, 2), (3, 5), (10, 4)):
        first, second = (generator.normal(0.8, 0.01 * (i + 1), size) for i, size in enumerate(sizes))
        theirs = stats.ttest_ind(second, first, equal_var=False)
        ours = welch(first, second)
        assert ours.p == pytest.approx(theirs.pvalue)
        assert (ours.low, ours.high) == pytest.approx(tuple(theirs.confidence_interval(0.95)))
        back = welch(second, first)
        assert (back.p, back.difference, back.low) == pytest.approx((ours.p, -ours.difference, -ours.high))


def test_welch_finds_a_difference_of_seeds_where_there_is_none_in_one_of_twenty():
    seeds = np.random.default_rng(5).normal(0.8, 0.01, (TRIALS, 2, 5))
    assert 0.03 < np.mean([welch(first, second).p < ALPHA for first, second in seeds]) < 0.07


@pytest.mark.parametrize(("seeds", "too_many"), [(3, 0.05), (5, 0.07)])
def test_rows_and_seeds_find_a_difference_where_there_is_none_in_one_of_twenty(seeds, too_many):
    """With as much luck in the rows as in the seeds; the larger p of two tests apart is no substitute."""
    generator, rows = np.random.default_rng(seeds), 200
    found = []
    for _ in range(TRIALS):
        of_rows = generator.normal(0, np.sqrt(rows), rows)  # the difference of both sides on each row, whatever seed
        first, second = generator.normal(0, np.sqrt(seeds / 2), (2, seeds))
        second = second + of_rows.mean()
        over_rows = of_rows.var() / rows  # what the bootstrap comes to
        apart = 2 * stats.norm.sf(abs(second.mean() - first.mean()) / np.sqrt(over_rows)), welch(first, second).p
        found.append((welch(first, second, over_rows).p < ALPHA, max(apart) < ALPHA))
    both, larger = np.mean(found, axis=0)
    assert 0.03 < both < 0.07
    assert larger > max(both, too_many)


def test_seeds_that_differ_by_chance_from_row_to_row_err_on_the_safe_side():
    generator, rows, seeds = np.random.default_rng(0), 200, 3
    found = []
    for _ in range(TRIALS // 2):
        first, second = generator.normal(0, np.sqrt(rows * seeds / 2), (2, seeds, rows))
        second = second + generator.normal(0, np.sqrt(rows), rows)
        over_rows = (second.mean(axis=0) - first.mean(axis=0)).var() / rows
        found.append(welch(first.mean(axis=1), second.mean(axis=1), over_rows).p < ALPHA)
    assert 0.005 < np.mean(found) < 0.05


def test_rows_alone_make_a_normal_test_and_bring_no_side_forward():
    same = [0.8, 0.8], [0.83, 0.83]  # seeds that do not vary leave the rows
    found = welch(*same, rows=0.02**2)
    assert found.p == pytest.approx(2 * stats.norm.sf(1.5), rel=1e-4)
    assert (found.low, found.high) == pytest.approx((0.03 - 1.95996 * 0.02, 0.03 + 1.95996 * 0.02), abs=1e-6)
    first, second = [0.8, 0.82, 0.81], [0.84, 0.83, 0.87]
    there, back = welch(first, second, 1e-4), welch(second, first, 1e-4)
    assert (there.p, there.low, there.high) == (back.p, -back.high, -back.low)
    assert welch(first, second, 0.01).p > 0.7  # where one row more or less is worth a tenth


def test_rounding_is_no_difference():
    noise = np.random.default_rng(0).normal(0, 1e-16, 1000)
    assert bootstrap_p(noise + 1e-15) == 1


def test_welch_makes_nothing_of_seeds_that_do_not_vary():
    assert welch([0.8, 0.8], [0.9, 0.9]).p == 1
    with pytest.raises(ValueError, match="two or more seeds"):
        welch([0.8], [0.8, 0.9])
