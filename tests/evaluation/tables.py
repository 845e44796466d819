"""Tasks and synthetic predictions that the tests of this folder share."""

import numpy as np
import pandas as pd

from bertrio.core.tasks import Binary, Ordered, Score, Task
from bertrio.evaluation.predictions import prediction_rows

SST = Task("sst", "single", "cross", Ordered(5))
QQP = Task("qqp", "pair", "cross", Binary())
STS = Task("sts", "pair", "cross", Score(0.0, 5.0))
TASKS = {task.name: task for task in (SST, QQP, STS)}


def predictions(seed: int = 0, rows: int = 40) -> pd.DataFrame:
    """All tasks: dev with labels that correlate with the outputs, and test without. Every seed has the same labels."""
    labels = np.random.default_rng(0).integers(0, 2, rows).astype(float)
    generator, ids, parts = np.random.default_rng([7, seed]), [str(i) for i in range(rows)], []
    for task in TASKS.values():
        outputs = generator.normal(0, 1.5, (rows, task.target.size))
        outputs[:, -1] += 2 * labels
        gold = labels * 4 if task is SST else labels
        parts.append(prediction_rows(task, "dev", ids, gold, outputs))
        parts.append(prediction_rows(task, "test", ids, np.full(rows, np.nan), outputs[::-1]))
    return pd.concat(parts, ignore_index=True)
