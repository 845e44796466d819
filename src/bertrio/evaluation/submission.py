"""Submission files of Stanford's CS 224N, in the format of its grader."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from bertrio.core.files import write_text
from bertrio.core.tasks import Task

COURSE = {  # task: file name and header, with the course's spelling
    "sst": ("sst", "Predicted_Sentiment"),
    "qqp": ("para", "Predicted_Is_Paraphrase"),
    "sts": ("sts", "Predicted_Similiary"),
}
SPLITS = {"dev": ("dev", "selection"), "test": ("test",)}  # `selection`: dev rows that the ensemble was chosen on
SHORTEST = partial(np.format_float_positional, trim="0")  # that reads back equal, without exponent


def write_submissions(frame: pd.DataFrame, folder: str | Path, tasks: Mapping[str, Task]) -> None:
    """Write `{sst,para,sts}-{dev,test}-output.csv` into `folder`, rows in the order of the table.

    The first line is `id \\t HEADER ` and each row is `ID , VALUE `, the blanks at the ends included. Classes are
    whole numbers, scores are clipped to their range and have no exponent. Other tasks are left out. Dev files hold all
    of dev, with the rows that the ensemble was chosen on. Files of an earlier run that have no rows now are removed.
    """
    for name, (file_name, header) in COURSE.items():
        for split, parts in SPLITS.items():
            path = Path(folder) / f"{file_name}-{split}-output.csv"
            rows = frame[(frame["task"] == name) & frame["split"].isin(parts)]
            if rows.empty:
                path.unlink(missing_ok=True)
                continue
            text = int if tasks[name].target.discrete else SHORTEST
            lines = [f"{row_id} , {text(value)} \n" for row_id, value in zip(rows["id"], rows["prediction"])]
            write_text(path, f"id \t {header} \n" + "".join(lines))
