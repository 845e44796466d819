"""How far a model's probabilities can be taken at their word, and the one number that often mends them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bertrio.core.files import write_json
from bertrio.core.tasks import Array, Task
from bertrio.evaluation.predictions import Scored

BINS = 15
SMALLEST = 1e-12  # a probability of 0 counts as this: one row must not make a mean log-loss infinite
TEMPERATURES = (0.05, 20.0)  # a half of dev that is all right, or all wrong, would ask for 0 or infinity
SEED = 0  # of the halves of dev; the same for every experiment, so that they are compared on the same rows


def equal_mass_bins(confidence: Array, bins: int = BINS) -> NDArray[np.int64]:
    """The bin of each row, 0 to bins - 1, by its rank in confidence; bins hold N / bins rows, give or take one.

    Rows of the same confidence share a bin, so that the order of rows has no say; a bin may then be larger, or empty.

    Args:
        confidence: [N].
        bins: how many.
    """
    _, group, counts = np.unique(confidence, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - counts / 2  # mean rank of the group, counted from 0.5
    return (middle * bins / len(confidence)).astype(np.int64)[group]


def ece(confidence: Array, correct: Array, bins: int = BINS) -> float:
    r"""Expected calibration error: how far confidence and accuracy lie apart, on average over rows; 0 is best, 1 worst.

    $\sum_b \frac{n_b}{N} |\mathrm{acc}_b - \mathrm{conf}_b|$ over bins with about equally many rows ("Mitigating Bias
    in Calibration Error Estimation"; with bins of equal width, most would be empty). Even a perfect model's is above
    0 on few rows: about $\sqrt{\mathrm{bins} / N} / 3$.

    Args:
        confidence: [N], the probability of the class that was predicted.
        correct: [N], 1 where the prediction is the label, else 0.
        bins: how many.
    """
    bin_of = equal_mass_bins(confidence, bins)
    gaps = np.bincount(bin_of, weights=np.asarray(correct, np.float64) - confidence)
    return float(np.abs(gaps).sum() / len(confidence))


def brier(probabilities: Array, labels: Array) -> float:
    """Mean squared distance of the probabilities from the truth; 0 is best.

    Summed over classes, 0 to 2, as Brier defined it (1950); of two classes it is (p - y)^2 of one of them, 0 to 1, as
    usual, which is half of that.

    Args:
        probabilities: [N, C], rows sum to 1.
        labels: [N], the class.
    """
    return float(brier_terms(probabilities, labels).mean())


def brier_terms(probabilities: Array, labels: Array) -> Array:
    """What each row adds to the mean that `brier` is: [N]."""
    truth = np.eye(probabilities.shape[1])[labels.astype(np.int64)]
    total = np.square(probabilities - truth).sum(axis=1)
    return total / 2 if probabilities.shape[1] == 2 else total


def log_loss(probabilities: Array, labels: Array) -> float:
    """Mean negative natural logarithm of the label's probability; 0 is best, and log C is what a guess has.

    Args:
        probabilities: [N, C]; those below 1e-12 count as 1e-12.
        labels: [N], the class.
    """
    given = probabilities[np.arange(len(labels)), labels.astype(np.int64)]
    return float(-np.log(np.maximum(given, SMALLEST)).mean())


def temper(probabilities: Array, temperature: float) -> Array:
    """`softmax(log p / temperature)` of each row of `probabilities` [N, C]: flatter above 1, sharper below.

    Logits differ from log p by a constant in each row, which softmax takes out, so that none have to be kept.
    """
    odds = np.log(np.maximum(probabilities, SMALLEST)) / temperature
    odds = np.exp(odds - odds.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


def fit_temperature(probabilities: Array, labels: Array) -> float:
    r"""The temperature whose tempered probabilities have the smallest log-loss, within `TEMPERATURES`.

    Guo et al. 2017, "On Calibration of Modern Neural Networks", section 4.2. With $z = \log p$ and
    $\beta = 1 / T$, the loss is convex in $\beta$ and its slope is $E[\sum_c p_c(\beta) z_c - z_{label}]$, which is
    brought to 0 by halving the interval; the class that is predicted stays the same.

    Args:
        probabilities: [N, C].
        labels: [N], the class.
    """
    z = np.log(np.maximum(probabilities, SMALLEST))
    of_label = z[np.arange(len(labels)), labels.astype(np.int64)]
    cold, hot = TEMPERATURES
    for _ in range(60):  # 400 : 1 halved sixty times is far below float64's resolution
        middle = np.sqrt(cold * hot)
        slope = ((temper(probabilities, middle) * z).sum(axis=1) - of_label).mean()
        cold, hot = (middle, hot) if slope > 0 else (cold, middle)
    return float(np.sqrt(cold * hot))


def reliability(scored: Scored, bins: int = BINS) -> pd.DataFrame:
    """What share of rows is right at each confidence: the table behind `ece` and the reliability picture.

    Returns:
        A row a bin that holds rows: bin, n, mean confidence, accuracy, and the 95 % Wilson interval of the accuracy
        as low and high. n adds up to N; sum of n / N * |accuracy - confidence| is the `ece` of as many bins.
    """
    bin_of = equal_mass_bins(scored.confidence, bins)
    rows = pd.DataFrame({"bin": bin_of, "confidence": scored.confidence, "accuracy": scored.correct})
    table = rows.groupby("bin").agg(
        n=("confidence", "size"), confidence=("confidence", "mean"), accuracy=("accuracy", "mean")
    )
    table["low"], table["high"] = wilson(table["accuracy"].to_numpy(), table["n"].to_numpy())
    return table.reset_index()


def wilson(share: float | Array, n: int | Array, z: float = 1.959964) -> tuple[Array, Array]:
    """Wilson's score interval of a share that was found in n rows, which keeps its promise near 0 and 1 and for few
    rows ("Probable Inference, the Law of Succession, and Statistical Inference", 1927).

    Args:
        share: what was found, 0 to 1; a number or an array.
        n: of how many rows, 1 or more.
        z: of the normal distribution; 1.96 for 95 %.

    Returns:
        Lower and upper end.
    """
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    reach = z / (1 + z * z / n) * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return np.maximum(centre - reach, 0.0), np.minimum(centre + reach, 1.0)


def write_calibration(frame: pd.DataFrame, tasks: Mapping[str, Task], path: str | Path) -> None:
    """Writes how well calibrated each task with classes is on dev, as it is and after temperature scaling.

    `{task: {"rows", "ece", "brier", "nll", "temperature", "ece_scaled", "brier_scaled", "nll_scaled"}}`. The
    temperature is fitted on one half of the labelled dev rows and all figures are those of the other half, whose
    size is `rows`. Halves are drawn with a fixed seed: the same for every experiment on the same rows. Tasks that
    predict a score, or have fewer than two such rows, are left out.
    """
    write_json(path, {name: report for name in tasks if (report := _calibration(frame, name))})


def _calibration(frame: pd.DataFrame, task: str) -> dict[str, float]:
    rows = frame[(frame["task"] == task) & (frame["split"] == "dev") & frame["label"].notna()]
    rows = rows[rows["probabilities"].notna()]
    if len(rows) < 2:
        return {}
    order = np.random.default_rng(SEED).permutation(len(rows))
    fitted, measured = np.array_split(order, [len(rows) // 2])
    labels, predictions = rows["label"].to_numpy(np.float64), rows["prediction"].to_numpy(np.int64)
    probabilities = np.stack(rows["probabilities"].to_list())
    temperature = fit_temperature(probabilities[fitted], labels[fitted])
    labels, predictions, plain = labels[measured], predictions[measured], probabilities[measured]
    report = {"rows": len(measured), **_figures(labels, predictions, plain), "temperature": temperature}
    scaled = _figures(labels, predictions, temper(plain, temperature))
    return report | {f"{name}_scaled": value for name, value in scaled.items()}


def _figures(labels: Array, predictions: NDArray[np.int64], probabilities: Array) -> dict[str, float]:
    confidence = probabilities[np.arange(len(predictions)), predictions]
    return {
        "ece": ece(confidence, labels == predictions),
        "brier": brier(probabilities, labels),
        "nll": log_loss(probabilities, labels),
    }
