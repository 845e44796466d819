"""How far two values of a metric can be apart, which no interval of their difference should exceed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from bertrio.evaluation.metrics import overall

RANGES = {  # the least and the most that a metric can be; those that are not here have no end
    **dict.fromkeys(("accuracy", "f1", "macro_f1", "balanced_accuracy", "off_by_one"), (0.0, 1.0)),
    **dict.fromkeys(("roc_auc", "average_precision", "ece"), (0.0, 1.0)),
    "brier": (0.0, 2.0),  # of two classes 1
    **dict.fromkeys(("pearson", "spearman", "quadratic_kappa"), (-1.0, 1.0)),
}


def widest(metric: str) -> float:
    """The largest difference of two values of a metric: 1 of shares such as accuracy, 2 of correlations, and infinity
    of what has no bounds, such as rmse, or bounds that depend on the task, such as mae."""
    low, high = _range(metric)
    return high - low


def widest_overall(firsts: Mapping[str, str]) -> dict[str, float]:
    """The largest difference of each overall score: the mean of those of the tasks, correlations normalized or not.

    Args:
        firsts: by task, the name of its first metric.
    """
    low, high = (
        overall({task: (metric, np.float64(_range(metric)[end])) for task, metric in firsts.items()}) for end in (0, 1)
    )
    return {name: float(high[name] - low[name]) for name in high}


def within(ends: Sequence[float], most: float) -> tuple[float, float]:
    """The ends of an interval of a difference, neither of them beyond `most` on its side of 0."""
    low, high = (min(max(end, -most), most) for end in ends)
    return low, high


def _range(metric: str) -> tuple[float, float]:
    return RANGES.get(metric, (0.0, math.inf))
