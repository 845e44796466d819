"""Whether a difference is more than luck: tests for two sets of predictions of the same rows, or of several seeds.

Every p-value here is two-sided: the chance of a difference at least as large, in either direction, if there were none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bertrio.core.tasks import Array

ALPHA = 0.05  # a p-value below it counts as a difference
EXACT_BELOW = 100  # rows that only one side has right; from here on chi-square is off by less than 1 point at 5 %
KNOWN = 1e6  # degrees of freedom from which on Student's t is the normal distribution to six digits
DIGITS = 12  # differences that are equal to so many are equal: beyond is rounding


class Mean(NamedTuple):
    """A difference of two means: its 95 % interval, and the p-value of none."""

    difference: float
    low: float
    high: float
    p: float


def mcnemar(fixed: int, broken: int) -> float:
    """The p-value that two accuracies on the same rows are equal; McNemar (1947), "Note on the sampling error of the
    difference between correlated proportions".

    Only rows that one side has right and the other wrong bear on it. Without a difference each of them is a throw of
    a coin. Below `EXACT_BELOW` of them: the exact binomial test, whose rate of false positives is never above 5 %. From
    there: chi-square with one degree of freedom, (fixed - broken)^2 / (fixed + broken), without a correction for
    continuity, which would only make it miss more.

    Args:
        fixed: rows that only the second side has right.
        broken: rows that only the first side has right.
    """
    apart = fixed + broken
    if apart == 0:
        return 1.0
    if apart < EXACT_BELOW:
        from scipy.stats import binom  # takes a second to import, and most of bertrio does without

        return float(min(1.0, 2 * binom.cdf(min(fixed, broken), apart, 0.5)))
    from scipy.special import chdtrc

    return float(chdtrc(1, (fixed - broken) ** 2 / apart))


def bootstrap_p(differences: Array) -> float:
    """The p-value of no difference, from paired bootstrap `differences` [R] of two sides under the same resamples.

    Twice the share of resamples on the rarer side of 0, resamples at 0 counted for both; Efron and Tibshirani (1993),
    "An Introduction to the Bootstrap", chapter 15. It is below 5 % where the percentile interval leaves 0 out. One is
    added to both counts, for R resamples can't show a chance below 1 / R.
    """
    differences = np.round(differences, DIGITS)
    rarer = min(np.sum(differences <= 0), np.sum(differences >= 0))
    return float(min(1.0, 2 * (rarer + 1) / (len(differences) + 1)))


def holm(ps: Sequence[float]) -> list[float]:
    r"""P-values that allow for the number of tests; Holm (1979), "A simple sequentially rejective multiple test
    procedure".

    Of K tests in rising order of p: $\max_{j \le i} \min(1, (K - j + 1) p_j)$. If those below 5 % are called
    differences, the chance that any of them is false is at most 5 %, however the tests hang together.

    Returns:
        The corrected values, in the order of `ps`.
    """
    order = np.argsort(ps, kind="stable")
    steps = np.minimum(1.0, np.asarray(ps, dtype=np.float64)[order] * np.arange(len(ps), 0, -1))
    corrected = np.empty(len(ps))
    corrected[order] = np.maximum.accumulate(steps)
    return corrected.tolist()


def welch(first: Sequence[float], second: Sequence[float], rows: float = 0.0, level: float = 0.95) -> Mean:
    r"""The difference of the means of two sets of seeds, second minus first, for other seeds and other rows.

    The variances add: $e^2 = v + s_1^2 / n_1 + s_2^2 / n_2$, v being that of the rows, and the difference over e is
    taken for Student's t with $e^4 / \sum_k (s_k^2 / n_k)^2 / (n_k - 1)$ degrees of freedom; Satterthwaite (1946), "An
    approximate distribution of estimates of variance components", with v as known. Without rows it is Welch's t-test
    (1947), "The generalization of 'Student's' problem when several different population variances are involved". Two
    tests apart, one of rows and one of seeds, would not do, even if both had to find a difference: each takes for
    certain what the other doubts.

    The seeds of the sides are taken as independent, also where they have the same numbers: equal seeds rarely bring
    more than a little correlation, and if they do, this errs on the safe side. So it does where seeds differ by chance
    from row to row, which is in v as well as in s: were it all that seeds differ by, 2 % and not 5 % would be false.

    Args:
        first, second: a metric for each seed, all measured on the same rows; two or more of each.
        rows: variance of the difference of the means over other rows, with the seeds as they are, such as that of
            paired bootstrap differences; 0: these rows are all there are.
        level: of the interval.

    Returns:
        Where nothing varies the test is undefined. p is 1 then: a few equal values do not show that the next will be
        equal too.

    Raises:
        ValueError: if a side has fewer than two seeds.
    """
    if min(len(first), len(second)) < 2:
        raise ValueError(f"expected two or more seeds a side, found {len(first)} and {len(second)}")
    difference = float(np.mean(second) - np.mean(first))
    squared = [float(np.var(side, ddof=1)) / len(side) for side in (first, second)]
    error = float(np.sqrt(sum(squared) + rows))
    if error < 1e-12:  # values are near 1: below this is rounding
        return Mean(difference, difference, difference, 1.0)
    from scipy.special import stdtr, stdtrit

    doubt = sum(part**2 / (len(side) - 1) for part, side in zip(squared, (first, second)))
    freedom = min(error**4 / doubt, KNOWN) if doubt else KNOWN
    reach = float(stdtrit(freedom, (1 + level) / 2)) * error
    p = 2 * float(stdtr(freedom, -abs(difference) / error))
    return Mean(difference, difference - reach, difference + reach, p)
