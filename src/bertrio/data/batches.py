"""Tokenised rows, and batches of rows of similar length."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from bertrio.core.tasks import Task
from bertrio.data.tokens import Sequences, Tokens

# Batches that are sorted together. A window of 50 keeps padding at 3 % of a pass over SST, QQP or STS, and 4 to 5 % of
# the pairs of rows that share a batch share one again in the next pass (twice as many at 200).
WINDOW = 50
ARRAYS = ("ids", "label_values", "sources", "widths")  # of `Rows`, with one entry a row
FACTOR = 6364136223846793005  # an odd number of 64 bits: Knuth's multiplier


@dataclass(frozen=True)
class BatchShard:
    """Position of a process's rows in the whole batch, which several processes share.

    Attributes:
        whole: the whole batch.
        rows: positions in it: [B], on the CPU.
        weight: weight of these rows in a mean over the whole batch.
    """

    whole: Batch
    rows: Tensor
    weight: float


@dataclass(frozen=True)
class Batch:
    """Rows of one task: `rows` are positions in its table, `inputs` has one token batch for each text (one for a
    cross-encoded pair).

    `labels` are None if no row has one. If only some have, `labelled` [B] says which, and the other `labels` mean
    nothing. `shard` is None unless the batch is one process's part of a larger batch. Batches of a step with the same
    `text_group` hold the same texts.
    """

    task: str
    rows: np.ndarray
    inputs: tuple[Tokens, ...]
    labels: Tensor | None
    labelled: Tensor | None = None
    shard: BatchShard | None = None
    text_group: str = ""

    @property
    def weight(self) -> float:
        """Weight of the rows in a mean over the whole batch: 1 if the batch is not a shard."""
        return 1.0 if self.shard is None else self.shard.weight

    @property
    def labelled_share(self) -> Tensor | float:
        """Share of the rows that have a label."""
        return 1.0 if self.labelled is None else self.labelled.float().mean()

    @property
    def text_numbers(self) -> Tensor:
        """Numbers of the texts by their tokens, [B, one or two]: int64, equal for equal texts whatever their padding.

        They are polynomials of the token ids modulo 2^64; two of different texts are equal by chance alone.
        """
        return torch.stack([_numbers(tokens) for tokens in self.inputs], dim=1)

    def to(self, device: torch.device) -> Batch:
        """Return the batch on `device`; copies to a CUDA device are asynchronous."""

        def move(value: Tensor) -> Tensor:
            return value.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else value.to(device)

        return self._map(move)

    def pieces(self, count: int) -> list[Batch]:
        """Return the batch in `count` pieces of (nearly) equal size, or in single rows if it has fewer."""
        if count == 1:  # indexing would copy the rows and synchronise with the device
            return [self]
        parts = np.array_split(np.arange(len(self.rows)), min(count, len(self.rows)))
        return [self._select(part) for part in parts]

    def part(self, index: int, count: int) -> Batch:
        """Return the part of process `index` of `count`; sizes of parts differ by at most one row.

        If a batch has fewer rows than there are processes, the last processes get its first row again, with weight 0,
        so that all processes take the same steps and collectives. Parts keep the padded width of the whole batch.
        """
        if count == 1:
            return self
        rows = np.array_split(np.arange(len(self.rows)), count)[index]
        weight = len(rows) / len(self.rows)
        rows = rows if len(rows) else np.zeros(1, dtype=np.int64)
        return replace(self._select(rows), shard=BatchShard(self, torch.from_numpy(rows), weight))

    def _select(self, rows: np.ndarray) -> Batch:
        """Return the rows at these positions of the batch."""
        return replace(self._map(lambda value: value[rows]), rows=self.rows[rows])

    def _map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """Return the batch with `change` applied to its inputs and labels."""
        inputs = tuple({name: change(value) for name, value in tokens.items()} for tokens in self.inputs)
        labels, labelled = (None if part is None else change(part) for part in (self.labels, self.labelled))
        return replace(self, inputs=inputs, labels=labels, labelled=labelled)


def _numbers(tokens: Tokens) -> Tensor:
    ids = tokens["input_ids"] * tokens.get("attention_mask", 1)  # blocks of MLM have none
    powers = torch.full_like(ids[0], FACTOR).cumprod(dim=0)  # wraps around
    return (ids * powers).sum(dim=1)


class Rows:
    """The tokenised rows of one task and split.

    A row has one token sequence, or two (one for each text) if the task's encoding is `bi`. `widths` [N] are the tokens
    of a row's longest sequence, which decides the padding. `sources` [N] are the tables' column `source`, "" for rows
    of the task's own source. `text_group` is the name of the first task with the same texts, or of the task itself.

    Args:
        frame: a row table (data/table.py); its texts are not read.
        task: task of the rows.
        sequences: what `tokenise` or `load_tokens` makes of them.
    """

    def __init__(self, frame: pd.DataFrame, task: Task, sequences: tuple[Sequences, ...]) -> None:
        self.task, self.text_group = task, task.name
        self.ids = frame["id"].to_numpy()
        self.label_values = frame["label"].to_numpy(dtype=np.float64, copy=True)
        self._sequences = sequences
        self.widths = np.max([part.lengths for part in sequences], axis=0)
        no_source = np.full(len(frame), "", dtype=object)
        self.sources = frame["source"].fillna("").to_numpy(object) if "source" in frame else no_source

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each row, of both sequences together [N]."""
        return np.sum([part.lengths for part in self._sequences], axis=0)

    @property
    def labelled_count(self) -> int:
        """Number of rows that have a label."""
        return int((~np.isnan(self.label_values)).sum())

    def take(self, positions: np.ndarray) -> Rows:
        """Return only the rows at these positions."""
        taken = copy.copy(self)
        for name in ARRAYS:
            setattr(taken, name, getattr(self, name)[positions])
        taken._sequences = tuple(sequences.take(positions) for sequences in self._sequences)
        return taken

    def join(self, others: Rows) -> Rows:
        """Return these rows and, after them, those of `others`, of the same task and tokenizer."""
        joined = copy.copy(self)
        for name in ARRAYS:
            setattr(joined, name, np.concatenate([getattr(self, name), getattr(others, name)]))
        joined._sequences = tuple(ours.join(theirs) for ours, theirs in zip(self._sequences, others._sequences))
        return joined

    def batch(self, rows: np.ndarray) -> Batch:
        """Return the rows at these positions as a batch, each input padded to its longest sequence."""
        inputs = tuple(sequences.padded(rows) for sequences in self._sequences)
        return self.relabelled(Batch("", rows, inputs, None, text_group=self.text_group))

    def relabelled(self, batch: Batch) -> Batch:
        """Return a batch, which may be another task's of the same texts, as one of this task, with its labels."""
        values = self.label_values[batch.rows]
        labelled = ~np.isnan(values)
        if not labelled.any():
            return replace(batch, task=self.task.name, labels=None, labelled=None)
        target = self.task.target
        labels = torch.from_numpy(target.encode(np.nan_to_num(values))).to(getattr(torch, target.label_dtype))
        mask = None if labelled.all() else torch.from_numpy(labelled)
        return replace(batch, task=self.task.name, labels=labels, labelled=mask)

    def same_texts(self, others: Rows) -> bool:
        """Return whether `others` have the same ids and tokens in the same order."""
        if self.task.encoding != others.task.encoding or not np.array_equal(self.widths, others.widths):
            return False
        tokens = [
            [part for one in rows._sequences for part in (one.starts, *one.fields.values())] for rows in (self, others)
        ]
        return np.array_equal(self.ids, others.ids) and all(map(np.array_equal, *tokens))

    def sorted_batches(self, size: int) -> Iterator[Batch]:
        """Yield all rows once, longest first (so that memory runs out in the first batch or never), for inference."""
        order = np.argsort(-self.widths, kind="stable")
        for start in range(0, len(order), size):
            yield self.batch(order[start : start + size])


Split = dict[str, Rows]  # rows by task


def similar_length_batches(
    lengths: np.ndarray, size: int, generator: torch.Generator, common: torch.Generator | None = None
) -> list[np.ndarray]:
    """Return positions 0 to N - 1 in batches of `size` rows of similar length, every position exactly once.

    Rows are shuffled, sorted by length within windows of `WINDOW` batches, cut into batches, and the batches shuffled.
    Only one batch, in the last window, may be smaller.

    Args:
        lengths: length of each row: [N].
        size: rows in a batch.
        generator: shuffles the rows and the batches.
        common: generator of the order of batches within a window, equal for several row sets, so that their short and
            long batches coincide. Each batch gets a random number from 0 to 1, and the batch of the k-th shortest rows
            takes the position of the k-th smallest number. Windows of the sets need not end at the same positions.
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
    """Endless stream of a task's training batches, in a new order for every pass over the rows.

    Args:
        rows: training rows.
        size: rows in a batch.
        generator: draws the order and the rows of a capped pass; nothing else may use it.
        cap: rows in a pass, 1 or more; None for all rows.
        redraw: draw the rows of a capped pass anew for every pass instead of once.
        common: generator of the order by length, see `similar_length_batches`; nothing else may use it. The n-th
            batches of streams whose `common` has the same seed have a similar rank by length.
        smallest: rows from which the loss learns; a last batch of fewer rows joins the batch before it.
        drawn: by source, the number of its rows in a pass, fewer than there are; a pass has all rows of other sources.
    """

    def __init__(
        self,
        rows: Rows,
        size: int,
        generator: torch.Generator,
        cap: int | None = None,
        redraw: bool = True,
        common: torch.Generator | None = None,
        smallest: int = 1,
        drawn: Mapping[str, int] | None = None,
    ) -> None:
        self.rows, self.size, self._generator, self._common, self._smallest = rows, size, generator, common, smallest
        self._sources = [(np.flatnonzero(rows.sources == name), count) for name, count in sorted((drawn or {}).items())]
        self._always = np.flatnonzero(~np.isin(rows.sources, list(drawn or {})))
        count = len(self._always) + sum(count for _, count in self._sources)
        self._count = count if cap is None else min(cap, count)
        self._drawn = None if redraw else self._draw()
        self._generators = [generator] if common is None else [generator, common]
        self._before, self._taken = self._generator_states(), 0
        self._waiting: list[np.ndarray] = []  # remaining batches of this pass, the next one last

    def __len__(self) -> int:
        """Return the number of batches in a pass."""
        whole, rest = divmod(self._count, self.size)
        return max(whole + (rest >= self._smallest), 1)

    @property
    def rows_a_batch(self) -> int:
        """Rows of a batch, of which the last one of a pass can have fewer."""
        return min(self.size, self._count)

    def _draw(self) -> np.ndarray:
        """Draw the positions of the rows of a pass."""
        pool = np.concatenate([self._always, *(self._choose(rows, count) for rows, count in self._sources)])
        return self._choose(pool, self._count)

    def _choose(self, rows: np.ndarray, count: int) -> np.ndarray:
        if count == len(rows):  # without a draw, so that a cap that leaves out no row does not change the order
            return rows
        return rows[torch.randperm(len(rows), generator=self._generator).numpy()[:count]]

    def _pass(self) -> list[np.ndarray]:
        """Draw the batches of a pass, each as row positions."""
        drawn = self._draw() if self._drawn is None else self._drawn
        batches = similar_length_batches(self.rows.widths[drawn], self.size, self._generator, self._common)
        sizes = [len(batch) for batch in batches]
        if len(batches) > 1 and min(sizes) < self._smallest:
            rest = sizes.index(min(sizes))
            joined = batches.pop(rest)
            batches[rest - 1] = np.concatenate([batches[rest - 1], joined])
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
        """Return the generators' states before this pass, and the number of batches taken from it."""
        return {"before": self._before, "taken": self._taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at the position of another stream with the same rows and arguments."""
        for generator, before in zip(self._generators, state["before"], strict=True):
            generator.set_state(before)
        self._begin()
        del self._waiting[len(self._waiting) - state["taken"] :]
        self._taken = state["taken"]
