"""Small runs on disk with the files that `compare` and `Revision` read, without training."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from bertrio.core.files import write_json
from bertrio.core.tasks import Task, build_target
from bertrio.data.table import write_table
from bertrio.evaluation.predictions import prediction_rows, write_predictions

TASKS = {
    "sst": {"kind": "single", "target": "ordered", "classes": 5},
    "qqp": {"kind": "pair", "target": "binary", "encoding": "cross"},
    "sts": {"kind": "pair", "target": "score", "range": [0, 5], "encoding": "cross"},
}


def tables(seed: int = 0, skill: float = 1.0, rows: int = 200, split: str = "dev") -> pd.DataFrame:
    """Return a prediction table; labels depend only on `rows`, and a larger `skill` gives better predictions."""
    truth, noise = np.random.default_rng(rows), np.random.default_rng([seed, rows])
    frames = []
    for name, block in TASKS.items():
        limits = tuple(block["range"]) if "range" in block else None
        target = build_target(block["target"], block.get("classes"), limits)
        task = Task(name, block["kind"], block.get("encoding", "cross"), target)
        if name == "sts":
            labels = truth.uniform(0, 5, rows)
            outputs = (labels * skill + noise.normal(0, 1.5, rows))[:, None]
        else:
            labels = truth.integers(0, block.get("classes", 2), rows)
            outputs = noise.normal(0, 1, (rows, block.get("classes", 2)))
            outputs[np.arange(rows), labels] += skill
            outputs = outputs if name == "sst" else outputs[:, 1:] - outputs[:, :1]
        frames.append(prediction_rows(task, split, [f"{split}-{i}" for i in range(rows)], labels, outputs))
    return pd.concat(frames, ignore_index=True)


def write_run(folder: Path, frame: pd.DataFrame, tasks: dict | None = None, **params: object) -> None:
    """Write params.yaml, predictions and dev texts of a run to `folder`."""
    settings = {"runtime": {"seed": 1}, "tasks": TASKS if tasks is None else tasks, **params}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "params.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    write_predictions(frame, folder / "predictions/ensemble.parquet")
    for name, block in TASKS.items():
        rows_of_task = frame[(frame["task"] == name) & frame["split"].isin(("dev", "selection"))]
        columns = ("text",) if block["kind"] == "single" else ("text_a", "text_b")
        texts = {column: [f"{column} [red]of[/red] {row_id}" for row_id in rows_of_task["id"]] for column in columns}
        table = pd.DataFrame({"id": rows_of_task["id"], **texts, "label": rows_of_task["label"]})
        write_table(table, folder / f"data/splits/{name}/dev.parquet")
    write_json(folder / "metrics/evaluation.json", {"selected_on": {"rows": "dev", "by": "overall_normalized"}})


@pytest.fixture(scope="session")
def run_of(tmp_path_factory) -> Callable[..., Path]:
    """Write a run to a new folder of this name; see `tables` and `write_run`."""

    def make(name: str, frame: pd.DataFrame | None = None, seed: int = 0, skill: float = 1.0, rows: int = 200, **other):
        folder = tmp_path_factory.mktemp("run") / name
        write_run(folder, tables(seed, skill, rows) if frame is None else frame, **other)
        return folder

    return make
