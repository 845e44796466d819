"""Tokenised rows, and batches of rows of similar length."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from bertrio.tasks import Task

Tokens = dict[str, Tensor]
CHUNK = 1000  # rows that are tokenised together: what the tokenizer returns takes many times the room of the ids
WINDOW = 50  # batches that are sorted together: enough for little padding, few enough for a fresh order every epoch


@dataclass(frozen=True)
class Batch:
    """Rows of one task: `rows` are positions in its table, `inputs` one token batch a text or cross-encoded pair."""

    task: str
    rows: np.ndarray
    inputs: tuple[Tokens, ...]
    labels: Tensor | None

    def to(self, device: torch.device) -> Batch:
        """The same batch on `device`."""
        inputs = tuple({name: value.to(device) for name, value in tokens.items()} for tokens in self.inputs)
        return Batch(self.task, self.rows, inputs, None if self.labels is None else self.labels.to(device))


class Rows:
    """The tokenised rows of one task and split.

    Args:
        frame: a row table (data/table.py).
        task: what the rows belong to.
        tokenizer: a transformers fast tokenizer.
        max_length: tokens kept of a text or of a cross-encoded pair (the longer one is cut first).
    """

    def __init__(self, frame: pd.DataFrame, task: Task, tokenizer: Any, max_length: int) -> None:
        self.task = task
        self.ids = frame["id"].to_numpy()
        self.label_values = frame["label"].to_numpy(dtype=np.float64, copy=True)
        texts = [frame[column].tolist() for column in task.text_columns]
        self._padding = {"input_ids": tokenizer.pad_token_id, "attention_mask": 0, "token_type_ids": 0}
        self._fields: dict[str, list[np.ndarray]] = {}
        for start in range(0, len(frame), CHUNK):
            chunk = [column[start : start + CHUNK] for column in texts]
            for name, rows in tokenizer(*chunk, truncation=True, max_length=max_length, padding=False).items():
                if name in self._padding:
                    self._fields.setdefault(name, []).extend(np.asarray(row, dtype=np.int32) for row in rows)
        self.lengths = np.array([len(row) for row in self._fields["input_ids"]])
        labels = torch.from_numpy(self.label_values)
        self._labels = None if np.isnan(self.label_values).any() else labels.to(getattr(torch, task.target.label_dtype))

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, positions: np.ndarray) -> Rows:
        """The rows at these positions alone."""
        taken = copy.copy(self)
        taken.ids, taken.label_values, taken.lengths = (
            of[positions] for of in (self.ids, self.label_values, self.lengths)
        )
        taken._fields = {name: [rows[at] for at in positions] for name, rows in self._fields.items()}
        taken._labels = None if self._labels is None else self._labels[positions]
        return taken

    def batch(self, rows: np.ndarray) -> Batch:
        """The rows at these positions as one batch, padded to the longest of them."""
        width = int(self.lengths[rows].max())
        tokens = {}
        for name, values in self._fields.items():
            padded = np.full((len(rows), width), self._padding[name], dtype=np.int64)
            for index, row in enumerate(rows):
                padded[index, : self.lengths[row]] = values[row]
            tokens[name] = torch.from_numpy(padded)
        return Batch(self.task.name, rows, (tokens,), None if self._labels is None else self._labels[rows])

    def sorted_batches(self, size: int) -> Iterator[Batch]:
        """All rows once, longest first (so that memory runs out at once or never), for inference."""
        order = np.argsort(-self.lengths, kind="stable")
        for start in range(0, len(order), size):
            yield self.batch(order[start : start + size])


def similar_length_batches(lengths: np.ndarray, size: int, generator: torch.Generator) -> list[np.ndarray]:
    """Positions 0 to N - 1 in batches of `size` rows of similar length, every position exactly once.

    Rows are shuffled, sorted by length within windows of `WINDOW` batches, cut into batches, and the batches shuffled.
    Only the last batch of the last window may be smaller.
    """
    order = torch.randperm(len(lengths), generator=generator).numpy()
    batches = []
    for start in range(0, len(order), size * WINDOW):
        window = order[start : start + size * WINDOW]
        window = window[np.argsort(lengths[window], kind="stable")]
        batches += [window[at : at + size] for at in range(0, len(window), size)]
    return [batches[index] for index in torch.randperm(len(batches), generator=generator).tolist()]


class BatchStream:
    """An endless stream of a task's training batches; every pass over the rows has an order of its own.

    Args:
        rows: the training rows.
        size: rows in a batch.
        generator: decides the order, and nothing else uses it.
    """

    def __init__(self, rows: Rows, size: int, generator: torch.Generator) -> None:
        self.rows, self.size, self._generator = rows, size, generator
        self._waiting: list[np.ndarray] = []

    def __len__(self) -> int:
        """Batches in one pass."""
        return -(-len(self.rows) // self.size)

    def __next__(self) -> Batch:
        if not self._waiting:
            self._waiting = similar_length_batches(self.rows.lengths, self.size, self._generator)[::-1]
        return self.rows.batch(self._waiting.pop())

    def __iter__(self) -> BatchStream:
        return self
