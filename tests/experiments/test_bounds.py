import math

import numpy as np
import pytest

from bertrio.evaluation.metrics import METRICS, Scored
from bertrio.experiments.bounds import RANGES, widest, widest_overall, within


def drawn(generator, classes):
    labels = generator.integers(0, classes, 30).astype(float)
    if generator.random() < 0.3:  # as bad as can be
        probabilities = np.eye(classes)[(labels.astype(int) + 1) % classes]
    else:
        probabilities = generator.dirichlet(np.full(classes, 0.2), 30)
    return Scored(labels, probabilities.argmax(axis=1).astype(float), probabilities)


@pytest.mark.parametrize("classes", [2, 4])
def test_no_value_of_a_metric_is_outside_of_its_range(classes):
    generator = np.random.default_rng(0)
    for scored in (drawn(generator, classes) for _ in range(40)):
        for metric, (low, high) in RANGES.items():
            if classes > 2 and metric in ("f1", "roc_auc", "average_precision"):  # of yes or no alone
                continue
            assert low - 1e-9 <= METRICS[metric](scored) <= high + 1e-9, metric


def test_every_metric_is_bounded_but_those_in_units_of_the_labels():
    assert {metric for metric in METRICS if math.isinf(widest(metric))} == {"rmse", "mae"}
    assert (widest("accuracy"), widest("pearson")) == (1, 2)


def test_an_overall_score_is_as_wide_as_its_tasks_on_average():
    assert widest_overall({"sst": "accuracy", "qqp": "accuracy", "sts": "pearson"}) == pytest.approx(
        {"overall_mean": 4 / 3, "overall_normalized": 1}
    )
    assert math.isinf(widest_overall({"sst": "accuracy", "sts": "rmse"})["overall_mean"])


def test_an_interval_is_cut_on_both_sides_and_only_beyond():
    assert within((-5.4, 4.2), 2) == (-2, 2)
    assert within((-0.1, 1.2), 1) == (-0.1, 1)
    assert within((-5.4, 4.2), math.inf) == (-5.4, 4.2)
