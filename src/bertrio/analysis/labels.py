"""Rows whose label looks wrong, by what a model says of them that has not learned them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from bertrio.core.tasks import Array, Task
from bertrio.evaluation.predictions import Scored

FAR = 3.0  # standard deviations of the residuals beyond which a score looks wrong: 0.3 % of a normal distribution


def suspects(scored: Scored, task: Task) -> pd.DataFrame:
    """Rows whose label looks wrong, the most doubtful first.

    Predictions must be out of fold: made by a model that was not trained on these labels, as those of dev are.

    Returns:
        Columns `row` (position), `suggested` (class or score), `doubt`: for classes by how much more probable the
        suggested class is, -1 to 1; for scores the residual in standard deviations.
    """
    if len(scored.labels) == 0:
        found = np.zeros(0, np.int64), np.zeros(0), np.zeros(0)
    elif task.target.discrete:
        found = _by_confident_learning(scored.labels.astype(np.int64), scored.probabilities)
    else:
        found = _by_residual(scored)
    table = pd.DataFrame(dict(zip(("row", "suggested", "doubt"), found)))
    return table.sort_values("doubt", ascending=False, kind="stable", ignore_index=True)


def _by_confident_learning(labels: np.ndarray, probabilities: Array) -> tuple[np.ndarray, Array, Array]:
    r"""Rows off the diagonal of the confident joint.

    A class has a threshold of its own, its mean probability among the rows that are labelled with it,

    .. math:: t_j = \frac{1}{|X_j|} \sum_{x \in X_j} p(j \mid x)

    and a row counts as the most probable of the classes whose threshold it reaches, if there is one (Northcutt, Jiang
    and Chuang 2021, "Confident Learning: Estimating Uncertainty in Dataset Labels", section 3.1, eqs. 1 and 2). So a
    class that the model is never sure of can still be suspected. It is of the rows where that is not the label that
    the label is in doubt. A class that no row is labelled with is never suggested.
    """
    own = probabilities[np.arange(len(labels)), labels]
    counts = np.bincount(labels, minlength=probabilities.shape[1])
    sums = np.bincount(labels, weights=own, minlength=probabilities.shape[1])
    limits = np.divide(sums, counts, out=np.full(len(counts), np.inf), where=counts > 0)
    reached = np.where(probabilities >= limits - 1e-12, probabilities, -1.0)  # a lone row reaches its own mean
    suggested = reached.argmax(axis=1)
    rows = np.flatnonzero((reached.max(axis=1) >= 0) & (suggested != labels))
    chosen = suggested[rows]
    return rows, chosen.astype(np.float64), probabilities[rows, chosen] - own[rows]


def _by_residual(scored: Scored) -> tuple[np.ndarray, Array, Array]:
    """Rows whose residual lies more than `FAR` standard deviations from the mean of all."""
    residuals = scored.labels - scored.predictions
    spread = residuals.std()
    far = np.abs(residuals - residuals.mean()) / spread if spread > 0 else np.zeros(len(residuals))
    rows = np.flatnonzero(far > FAR)
    return rows, scored.predictions[rows], far[rows]
