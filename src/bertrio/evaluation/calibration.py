"""Calibration of a model's probabilities: reliability tables and temperature scaling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bertrio.core.files import write_json
from bertrio.core.tasks import Array, Task
from bertrio.evaluation.metrics import BINS, METRICS
from bertrio.evaluation.predictions import Scored

SMALLEST = 1e-12  # lower bound of probabilities, which keeps the log-loss finite
TEMPERATURES = (0.05, 20.0)  # bounds: rows that are all right, or all wrong, have their optimum at 0 or infinity
SEED = 0  # of the split of dev; one for all experiments, so that they are compared on the same rows


def equal_mass_bins(confidence: Array) -> NDArray[np.int64]:
    """Bin of each row [N], 0 to BINS - 1, by its rank in `confidence` [N]; bins hold about N / BINS rows.

    Rows of equal confidence share a bin, so the result does not depend on the order of rows. Bins may differ in size
    or be empty.
    """
    _, group, counts = np.unique(confidence, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - counts / 2  # mean rank of the group, counted from 0.5
    return (middle * BINS / len(confidence)).astype(np.int64)[group]


def log_loss(probabilities: Array, labels: Array) -> float:
    """Mean negative natural logarithm of the label's probability; 0 is best, a uniform guess has log C.

    Args:
        probabilities: [N, C]; those below 1e-12 count as 1e-12.
        labels: [N], the class.
    """
    label_probabilities = probabilities[np.arange(len(labels)), labels.astype(np.int64)]
    return float(-np.log(np.maximum(label_probabilities, SMALLEST)).mean())


def temper(probabilities: Array, temperature: float) -> Array:
    """`softmax(log p / temperature)` of each row of `probabilities` [N, C]: flatter above 1, sharper below.

    Logits differ from log p by a constant in each row, which softmax cancels, so the logits are not needed.
    """
    logits = np.log(np.maximum(probabilities, SMALLEST)) / temperature
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


def fit_temperature(probabilities: Array, labels: Array) -> float:
    r"""Return the temperature, within `TEMPERATURES`, that minimizes the log-loss.

    Guo et al. 2017, "On Calibration of Modern Neural Networks", section 4.2. With $z = \log p$ and
    $\beta = 1 / T$, the loss is convex in $\beta$ and its slope is $E[\sum_c p_c(\beta) z_c - z_{label}]$. Bisection
    finds its root. Predicted classes do not change.

    Args:
        probabilities: [N, C].
        labels: [N], the class.
    """
    z = np.log(np.maximum(probabilities, SMALLEST))
    label_logits = z[np.arange(len(labels)), labels.astype(np.int64)]
    cold, hot = TEMPERATURES
    for _ in range(60):  # 400 : 1 halved sixty times is far below float64's resolution
        middle = np.sqrt(cold * hot)
        slope = ((temper(probabilities, middle) * z).sum(axis=1) - label_logits).mean()
        cold, hot = (middle, hot) if slope > 0 else (cold, middle)
    return float(np.sqrt(cold * hot))


def reliability(scored: Scored) -> pd.DataFrame:
    """Table of accuracy by confidence, which the reliability plot shows.

    Returns:
        One row for each bin that is not empty: bin, n, mean confidence, accuracy, and the 95 % Wilson interval of the
        accuracy as low and high. n adds up to N; the sum of n / N * |accuracy - confidence| is the `ece`.
    """
    rows = pd.DataFrame({"confidence": scored.confidence, "accuracy": scored.correct})
    bins = rows.groupby(equal_mass_bins(scored.confidence))
    table = bins.size().rename_axis("bin").to_frame("n").join(bins.mean())
    table["low"], table["high"] = wilson(table["accuracy"].to_numpy(), table["n"].to_numpy())
    return table.reset_index()


def wilson(share: float | Array, n: int | Array) -> tuple[Array, Array]:
    """95 % Wilson score interval of a share of n rows, which holds its level near 0 and 1 and on few rows
    ("Probable Inference, the Law of Succession, and Statistical Inference", 1927).

    Args:
        share: 0 to 1; a number or an array.
        n: number of rows, 1 or more.

    Returns:
        Lower and upper end.
    """
    z = 1.959964  # quantile of the normal distribution
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    reach = z / (1 + z * z / n) * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return np.maximum(centre - reach, 0.0), np.minimum(centre + reach, 1.0)


def write_calibration(frame: pd.DataFrame, tasks: Mapping[str, Task], path: str | Path) -> None:
    """Write the calibration of each task with classes on dev, before and after temperature scaling.

    `{task: {"rows", "ece", "brier", "nll", "temperature", "ece_scaled", "brier_scaled", "nll_scaled"}}`. The
    temperature is fitted on one half of the labelled dev rows, and all figures are measured on the other half, whose
    size is `rows`. A fixed seed draws the halves, so experiments on the same rows share them. Tasks that predict a
    score, or have fewer than two such rows, are left out.
    """
    report = {}
    for name, task in tasks.items():
        rows_of_dev = frame[(frame["task"] == name) & (frame["split"] == "dev")]
        scored = Scored.from_rows(rows_of_dev, task).decisions
        rows = len(scored.labels)
        if task.target.discrete and rows > 1:
            fitted, measured = np.split(np.random.default_rng(SEED).permutation(rows), [rows // 2])
            half, scored = scored.take(fitted), scored.take(measured)
            temperature = fit_temperature(half.probabilities, half.labels)
            scaled = replace(scored, probabilities=temper(scored.probabilities, temperature))
            report[name] = {"rows": len(measured), **_figures(scored), "temperature": temperature}
            report[name] |= {f"{figure}_scaled": value for figure, value in _figures(scaled).items()}
    write_json(path, report)


def _figures(scored: Scored) -> dict[str, float]:
    nll = log_loss(scored.probabilities, scored.labels)
    return {"ece": METRICS["ece"](scored), "brier": METRICS["brier"](scored), "nll": nll}
