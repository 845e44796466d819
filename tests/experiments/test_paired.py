import numpy as np
import pytest

from bertrio.core.errors import UserError
from bertrio.evaluation.significance import ALPHA
from bertrio.experiments.paired import differ, value_of
from tests.experiments.simulated import seeds, simulate


@pytest.mark.parametrize("metric", ["sst", "sts", "overall_mean", "overall_normalized"])
@pytest.mark.parametrize("count", [1, 3])
def test_the_difference_is_that_of_the_means(metric, count):
    a, b = seeds("a", count), seeds("b", count, skill=0.8)
    difference = differ(a, b, metric)
    means = [np.mean([value_of(run, metric) for run in side]) for side in (a, b)]
    assert (difference.first, difference.second) == pytest.approx(means)
    assert difference.low < difference.difference < difference.high
    assert difference.rows_alone == (count == 1)


@pytest.mark.parametrize(("count", "seeds_differ"), [(1, 0.0), (3, 0.15)])
@pytest.mark.parametrize("metric", ["sst", "sts", "overall_normalized"])
def test_without_an_effect_about_one_in_twenty_is_false(metric, count, seeds_differ):
    given = {"rows": 150, "seeds_differ": seeds_differ}
    ps = [
        differ(seeds("a", count, data=data, **given), seeds("b", count, data=data, **given), metric).p
        for data in range(150)
    ]
    assert np.mean(np.array(ps) < ALPHA) <= 0.1  # three standard errors above 5 %


def test_runs_that_cannot_be_compared_are_named():
    without = simulate("b", metrics={"dev": {"qqp": {"accuracy": 0.7}}, "test": {}})
    for second, message in (
        (seeds("b", data=1), "b and a were measured on other dev rows of sst"),
        ([without], "b has no sst on dev"),
        ([simulate("b", by_row={})], "b has no contributions by row of sst"),
        ([], "no run"),
    ):
        with pytest.raises(UserError, match=message):
            differ(seeds("a"), second, "sst")
    assert value_of(without, "sst") is None
