"""The tokenised splits that training and prediction read, and the batch streams made of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from bertrio.data.batches import BatchStream, Rows
from bertrio.data.table import read_table
from bertrio.errors import UserError
from bertrio.model.tokenizer import load_tokenizer
from bertrio.params import Params, build_tasks
from bertrio.runtime import generator

Split = dict[str, Rows]  # rows by task


def load_split(params: Params, name: str, splits: str | Path, tokenizer_folder: str | Path) -> Split:
    """The rows of split `name` of every task; a task whose test split is empty is left out.

    Raises:
        UserError: if a task has no training or dev rows.
    """
    tokenizer = load_tokenizer(tokenizer_folder)
    split = {}
    for task in build_tasks(params).values():
        path = Path(splits) / task.name / f"{name}.parquet"
        frame = read_table(path)
        if len(frame):
            split[task.name] = Rows(frame, task, tokenizer, params.encoder.max_length)
        elif name != "test":
            raise UserError(f"{path}: found no rows; see data.split for how rows are shared out")
    return split


def hold_out(train: Split, fraction: float, seed: int) -> tuple[Split, Split]:
    """Parts training rows into those to train on and a seeded share of about `fraction` to select epochs on."""
    kept, held = {}, {}
    for task, rows in train.items():
        order = torch.randperm(len(rows), generator=generator(seed, f"holdout {task}")).numpy()
        count = min(max(1, round(fraction * len(rows))), len(rows) - 1)
        held[task], kept[task] = rows.take(np.sort(order[:count])), rows.take(np.sort(order[count:]))
    return kept, held


def build_streams(train: Split, params: Params) -> dict[str, BatchStream]:
    """A stream of training batches for each task, its order drawn by a generator of its own."""
    return {
        task: BatchStream(rows, params.tasks[task].batch_size, generator(params.runtime.seed, f"batches {task}"))
        for task, rows in train.items()
    }
