"""Suspect labels: rows whose label contradicts out-of-fold predictions."""

from __future__ import annotations

import numpy as np
import pandas as pd

from bertrio.core.tasks import Array, Task
from bertrio.evaluation.predictions import Scored

RESIDUAL_LIMIT = 3.0  # standard deviations; 0.3 % of a normal distribution are beyond


def suspects(scored: Scored, task: Task) -> pd.DataFrame:
    """Return rows whose label looks wrong, the most doubtful first.

    Predictions must be out of fold: the model was not trained on these labels. Those of dev are. Sets are not judged.

    Returns:
        Columns `row` (position), `suggested` (class or score) and `doubt`: for classes the probability of the suggested
        class minus that of the label, -1 to 1; for scores the residual in standard deviations.
    """
    if len(scored.labels) == 0 or scored.sets:  # no method for sets here
        columns = np.zeros(0, np.int64), np.zeros(0), np.zeros(0)
    elif task.target.discrete:
        columns = _by_confident_learning(scored.labels.astype(np.int64), scored.probabilities)
    else:
        columns = _by_residual(scored)
    table = pd.DataFrame(dict(zip(("row", "suggested", "doubt"), columns)))
    return table.sort_values("doubt", ascending=False, kind="stable", ignore_index=True)


def _by_confident_learning(labels: np.ndarray, probabilities: Array) -> tuple[np.ndarray, Array, Array]:
    r"""Return the rows off the diagonal of the confident joint.

    The threshold of a class is its mean probability over the rows labelled with it,

    .. math:: t_j = \frac{1}{|X_j|} \sum_{x \in X_j} p(j \mid x)

    and the suggested class of a row is the most probable of those whose threshold the row reaches, if there is one
    (Northcutt, Jiang and Chuang 2021, "Confident Learning: Estimating Uncertainty in Dataset Labels", section 3.1,
    eqs. 1 and 2). A row is suspect if its label is another class. Because thresholds differ by class, a class whose
    probabilities are always low can still be suggested. A class without labelled rows is never suggested.
    """
    of_label = probabilities[np.arange(len(labels)), labels]
    counts = np.bincount(labels, minlength=probabilities.shape[1])
    sums = np.bincount(labels, weights=of_label, minlength=probabilities.shape[1])
    thresholds = np.divide(sums, counts, out=np.full(len(counts), np.inf), where=counts > 0)
    reached = np.where(probabilities >= thresholds - 1e-12, probabilities, -1.0)  # a single row reaches its mean
    suggested = reached.argmax(axis=1)
    rows = np.flatnonzero((reached.max(axis=1) >= 0) & (suggested != labels))
    chosen = suggested[rows]
    return rows, chosen.astype(np.float64), probabilities[rows, chosen] - of_label[rows]


def _by_residual(scored: Scored) -> tuple[np.ndarray, Array, Array]:
    """Return the rows whose residual is more than `RESIDUAL_LIMIT` standard deviations from the mean residual."""
    residuals = scored.labels - scored.predictions
    spread = residuals.std()
    far = np.abs(residuals - residuals.mean()) / spread if spread > 0 else np.zeros(len(residuals))
    rows = np.flatnonzero(far > RESIDUAL_LIMIT)
    return rows, scored.predictions[rows], far[rows]
