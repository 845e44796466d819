import numpy as np
import pytest
from scipy import stats

from bertrio.core.errors import UserError
from bertrio.evaluation.bootstrap import bootstrap
from bertrio.evaluation.metrics import Scored
from bertrio.evaluation.significance import ALPHA, welch
from bertrio.experiments.paired import differ, row_variance, value_of
from bertrio.experiments.recipes.measured import ByRow
from tests.experiments.simulated import seeds, simulate

METRICS = ("sst", "qqp", "sts", "overall_mean", "overall_normalized")


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("count", [1, 3])
def test_the_difference_is_that_of_the_means_and_turns_its_sign_with_the_sides(metric, count):
    a, b = seeds("a", count), seeds("b", count, skill=0.8)
    there, back = differ(a, b, metric), differ(b, a, metric)
    means = [np.mean([value_of(run, metric) for run in side]) for side in (a, b)]
    assert (there.first, there.second) == pytest.approx(means)
    assert there.low < there.difference < there.high
    assert there.difference == -back.difference
    assert (there.low, there.high, there.p) == pytest.approx((-back.high, -back.low, back.p))
    assert there.rows_alone == (count == 1)


def test_rows_have_the_variance_that_the_paired_bootstrap_finds():
    generator = np.random.default_rng(0)
    labels, hard = np.ones(500), generator.normal(size=500)
    sides = [Scored(labels, (hard + generator.normal(size=500) < skill).astype(float)) for skill in (0.4, 0.6)]
    runs = [[simulate(name, by_row={"sst": ByRow("same", side.correct)})] for name, side in zip(("a", "b"), sides)]
    resampled = bootstrap(sides, "accuracy", np.random.default_rng(1), 10_000)
    assert row_variance(*runs, "sst") == pytest.approx(np.var(resampled[1] - resampled[0]), rel=0.05)


def test_overall_scores_add_the_variances_of_the_tasks():
    a, b = seeds("a"), seeds("b")
    sst, qqp, sts = (row_variance(a, b, task) for task in ("sst", "qqp", "sts"))
    assert row_variance(a, b, "overall_mean") == pytest.approx((sst + qqp + sts) / 9)
    assert row_variance(a, b, "overall_normalized") == pytest.approx((sst + qqp) / 9 + sts / 36)


def test_seeds_and_rows_both_count():
    a, b = seeds("a"), seeds("b")
    values = [[value_of(run, "sst") for run in side] for side in (a, b)]
    found, of_seeds = differ(a, b, "sst"), welch(*values)
    assert found.p == welch(*values, rows=row_variance(a, b, "sst")).p
    assert found.p > of_seeds.p


def test_with_one_seed_a_side_it_is_the_normal_test_of_paired_rows():
    a, b = [simulate("a")], seeds("b", 2)
    found = differ(a, b, "qqp")
    apart = np.mean([run.by_row["qqp"].values for run in b], axis=0) - a[0].by_row["qqp"].values
    error = np.std(apart) / np.sqrt(len(apart))
    assert found.p == pytest.approx(2 * stats.norm.sf(abs(found.difference) / error))
    assert found.high - found.difference == pytest.approx(stats.norm.ppf(0.975) * error)


def test_an_interval_is_within_what_is_possible():
    """Two seeds that differ by much leave one degree of freedom, and Student's t reaches far beyond."""
    a = [simulate("a", 1, skill=-1, seeds_differ=0), simulate("a", 2, skill=1.5, seeds_differ=0)]
    b = seeds("b", 2)
    for metric, most in {"sst": 1, "sts": 2, "overall_mean": 4 / 3, "overall_normalized": 1}.items():
        values = [[value_of(run, metric) for run in side] for side in (a, b)]
        assert welch(*values, rows=row_variance(a, b, metric)).high > most
        found = differ(a, b, metric)
        assert (found.low, found.high) == pytest.approx((-most, most))


def test_the_same_answers_are_no_difference():
    found = differ([simulate("a")], [simulate("a")], "sst")
    assert (found.difference, found.low, found.high, found.p) == (0, 0, 0, 1)


@pytest.mark.parametrize(("count", "seeds_differ"), [(1, 0.0), (3, 0.15)])
@pytest.mark.parametrize("metric", ["sst", "sts", "overall_normalized"])
def test_without_an_effect_about_one_in_twenty_is_false(metric, count, seeds_differ):
    given = {"rows": 150, "seeds_differ": seeds_differ}
    found = [
        differ(seeds("a", count, data=data, **given), seeds("b", count, data=data, **given), metric)
        for data in range(250)
    ]
    assert 0.01 <= np.mean([one.p < ALPHA for one in found]) <= 0.09  # three standard errors above 5 %
    assert 0.01 <= np.mean([one.low > 0 or one.high < 0 for one in found]) <= 0.09


def test_other_dev_rows_are_not_compared():
    with pytest.raises(UserError, match="b and a were measured on other dev rows of sst"):
        differ(seeds("a"), seeds("b", data=1), "sst")


def test_what_was_not_measured_is_named():
    without = simulate("b", metrics={"dev": {"qqp": {"accuracy": 0.7}}, "test": {}})
    with pytest.raises(UserError, match="b has no sst on dev"):
        differ(seeds("a"), [without], "sst")
    with pytest.raises(UserError, match="b has no figures by row of sst"):
        differ(seeds("a"), [simulate("b", by_row={})], "sst")
    assert value_of(without, "sst") is None
    assert value_of(without, "qqp") == 0.7
