"""Tokenised rows, and batches of rows of similar length."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from bertrio.core.tasks import Task
from bertrio.data.tokens import Tokens, tokenise

# Batches that are sorted together: enough for little padding (3 % of a pass over SST, QQP or STS), few enough for fresh
# company: of two rows that meet in a batch, 4 to 5 % meet again in the next pass, and twice as many at 200
WINDOW = 50


@dataclass(frozen=True)
class BatchShard:
    """Where the rows of a batch stand in the one that it is a part of, where several processes share that out.

    Attributes:
        rows: positions in the whole batch, [B], on the CPU.
        count: rows of the whole batch.
        labels: of the whole batch, [count], or none.
        weight: the share of these rows in a mean over the whole batch.
    """

    rows: Tensor
    count: int
    labels: Tensor | None
    weight: float


@dataclass(frozen=True)
class Batch:
    """Rows of one task: `rows` are positions in its table, `inputs` one token batch a text or cross-encoded pair.

    `shard` is None unless the batch is a part of another one that several processes share.
    """

    task: str
    rows: np.ndarray
    inputs: tuple[Tokens, ...]
    labels: Tensor | None
    shard: BatchShard | None = None

    @property
    def weight(self) -> float:
        """The share of its rows in a mean over the whole batch: 1 unless it is a part of one."""
        return 1.0 if self.shard is None else self.shard.weight

    def to(self, device: torch.device) -> Batch:
        """The same batch on `device`; a CUDA device fetches it while the host goes on."""

        def moved(value: Tensor) -> Tensor:
            return value.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else value.to(device)

        inputs = tuple({name: moved(value) for name, value in tokens.items()} for tokens in self.inputs)
        return Batch(self.task, self.rows, inputs, None if self.labels is None else moved(self.labels))

    def pieces(self, count: int) -> list[Batch]:
        """The batch in `count` pieces of equal size but for one row, or in single rows if it has fewer."""
        if count == 1:  # taking all rows would copy them, and make the host wait for the device
            return [self]
        parts = np.array_split(np.arange(len(self.rows)), min(count, len(self.rows)))
        return [self._taken(part) for part in parts]

    def part(self, index: int, count: int) -> Batch:
        """The part of process `index` of `count`, which all have an equal number of rows but for one.

        Where a batch has fewer rows than there are processes, the last ones get its first row once more, with weight 0:
        so all of them take the same steps and wait for each other in the same places. A part is as wide as the whole.
        """
        if count == 1:
            return self
        rows = np.array_split(np.arange(len(self.rows)), count)[index]
        weight = len(rows) / len(self.rows)
        rows = rows if len(rows) else np.zeros(1, dtype=np.int64)
        return replace(self._taken(rows), shard=BatchShard(torch.from_numpy(rows), len(self.rows), self.labels, weight))

    def _taken(self, rows: np.ndarray) -> Batch:
        """The rows at these positions of the batch."""
        inputs = tuple({name: value[rows] for name, value in tokens.items()} for tokens in self.inputs)
        return Batch(self.task, self.rows[rows], inputs, None if self.labels is None else self.labels[rows])


class Rows:
    """The tokenised rows of one task and split.

    A row makes one token sequence, or two where the task's encoding is `bi`: one for each text. `lengths` [N] counts a
    row's tokens over all of its sequences, `widths` [N] those of the longest, which padding is a matter of.

    Args:
        frame: a row table (data/table.py).
        task: what the rows belong to.
        tokenizer: a transformers fast tokenizer.
        max_length: tokens kept of each sequence (of a cross-encoded pair the longer text is cut first).
    """

    def __init__(self, frame: pd.DataFrame, task: Task, tokenizer: Any, max_length: int) -> None:
        self.task = task
        self.ids = frame["id"].to_numpy()
        self.label_values = frame["label"].to_numpy(dtype=np.float64, copy=True)
        self._sequences = tokenise(frame, task, tokenizer, max_length)
        lengths = [sequences.lengths for sequences in self._sequences]
        self.lengths, self.widths = np.sum(lengths, axis=0), np.max(lengths, axis=0)
        labels = torch.from_numpy(self.label_values)
        self._labels = None if np.isnan(self.label_values).any() else labels.to(getattr(torch, task.target.label_dtype))

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, positions: np.ndarray) -> Rows:
        """The rows at these positions alone."""
        taken = copy.copy(self)
        taken.ids, taken.label_values, taken.lengths, taken.widths = (
            of[positions] for of in (self.ids, self.label_values, self.lengths, self.widths)
        )
        taken._sequences = tuple(sequences.take(positions) for sequences in self._sequences)
        taken._labels = None if self._labels is None else self._labels[positions]
        return taken

    def batch(self, rows: np.ndarray) -> Batch:
        """The rows at these positions as one batch, each of its inputs padded to the longest sequence in it."""
        inputs = tuple(sequences.padded(rows) for sequences in self._sequences)
        return Batch(self.task.name, rows, inputs, None if self._labels is None else self._labels[rows])

    def sorted_batches(self, size: int) -> Iterator[Batch]:
        """All rows once, longest first (so that memory runs out at once or never), for inference."""
        order = np.argsort(-self.widths, kind="stable")
        for start in range(0, len(order), size):
            yield self.batch(order[start : start + size])


Split = dict[str, Rows]  # rows by task


def similar_length_batches(
    lengths: np.ndarray, size: int, generator: torch.Generator, common: torch.Generator | None = None
) -> list[np.ndarray]:
    """Positions 0 to N - 1 in batches of `size` rows of similar length, every position exactly once.

    Rows are shuffled, sorted by length within windows of `WINDOW` batches, cut into batches, and the batches shuffled.
    Only one batch, of the last window, may be smaller.

    Args:
        lengths: of each row, [N].
        size: rows in a batch.
        generator: shuffles the rows, and the batches.
        common: decides in its place, for several sets alike, when short rows come and when long ones. It gives each
            batch a number from 0 to 1; in a window, the batch of the k-th shortest rows comes where the k-th smallest
            number is. Sets whose windows end at different places keep step so, too.
    """
    order = torch.randperm(len(lengths), generator=generator).numpy()
    batches = []
    for start in range(0, len(order), size * WINDOW):
        window = order[start : start + size * WINDOW]
        window = window[np.argsort(lengths[window], kind="stable")]
        cut = [window[at : at + size] for at in range(0, len(window), size)]
        if common is not None:
            numbers = torch.rand(len(cut), generator=common, dtype=torch.float64)
            cut = [cut[rank] for rank in numbers.argsort(stable=True).argsort().tolist()]
        batches += cut
    if common is not None:
        return batches
    return [batches[index] for index in torch.randperm(len(batches), generator=generator).tolist()]


class BatchStream:
    """An endless stream of a task's training batches; every pass over the rows has an order of its own.

    Args:
        rows: the training rows.
        size: rows in a batch.
        generator: decides the order and which rows a capped pass has, and nothing else uses it.
        cap: rows in a pass, 1 or more; None, or as many as there are, gives every pass all rows.
        redraw: draws the rows of a capped pass anew for every pass; else they are drawn once for all.
        common: decides when short rows come, see `similar_length_batches`; nothing else uses it. The n-th batches of
            streams whose `common` starts from one seed are of like rank by length.
    """

    def __init__(
        self,
        rows: Rows,
        size: int,
        generator: torch.Generator,
        cap: int | None = None,
        redraw: bool = True,
        common: torch.Generator | None = None,
    ) -> None:
        self.rows, self.size, self._generator, self._common = rows, size, generator, common
        self._count = len(rows) if cap is None else min(cap, len(rows))
        self._drawn = None if redraw else self._draw()
        self._generators = [generator] if common is None else [generator, common]
        self._before, self._taken = self._generator_states(), 0
        self._waiting: list[np.ndarray] = []  # batches of this pass that are still to come, the next one last

    def __len__(self) -> int:
        """Batches in one pass."""
        return -(-self._count // self.size)

    def _draw(self) -> np.ndarray:
        """The positions of the rows of a pass."""
        if self._count == len(self.rows):  # nothing to draw: the order must not depend on a cap that cuts nothing off
            return np.arange(self._count)
        return torch.randperm(len(self.rows), generator=self._generator).numpy()[: self._count]

    def _pass(self) -> list[np.ndarray]:
        """Draw the batches of a pass: the positions of the rows of each."""
        drawn = self._draw() if self._drawn is None else self._drawn
        batches = similar_length_batches(self.rows.widths[drawn], self.size, self._generator, self._common)
        return [drawn[batch] for batch in batches]

    def _begin(self) -> None:
        self._before, self._taken = self._generator_states(), 0
        self._waiting = self._pass()[::-1]

    def __next__(self) -> Batch:
        if not self._waiting:
            self._begin()
        self._taken += 1
        return self.rows.batch(self._waiting.pop())

    def __iter__(self) -> BatchStream:
        return self

    def _generator_states(self) -> list[Tensor]:
        return [generator.get_state() for generator in self._generators]

    def state_dict(self) -> dict[str, Any]:
        """Return the generators' states before this pass, and how many of its batches were taken."""
        return {"before": self._before, "taken": self._taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another stream of the same rows and arguments was."""
        for generator, before in zip(self._generators, state["before"], strict=True):
            generator.set_state(before)
        self._begin()
        del self._waiting[len(self._waiting) - state["taken"] :]
        self._taken = state["taken"]
