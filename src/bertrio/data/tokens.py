"""Token sequences of a task's rows: tokenised once, padded when batches are made."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from bertrio.core.tasks import Task

Tokens = dict[str, Tensor]
FIELDS = ("input_ids", "token_type_ids")  # fields of the tokenizer's output; the mask follows from lengths
CHUNK = 1000  # rows tokenised at a time: the tokenizer's output needs many times the memory of the ids


@dataclass(frozen=True)
class Sequences:
    """One token sequence for each row, all concatenated, so that padding needs no loop over rows.

    Attributes:
        fields: `input_ids`, and `token_type_ids` if the tokenizer returns them: int32 [all tokens].
        starts: position of each row's first token in `fields`: int64 [N].
        lengths: tokens of each row: int64 [N].
        padding: id of the padding token.
    """

    fields: Mapping[str, np.ndarray]
    starts: np.ndarray
    lengths: np.ndarray
    padding: int

    def take(self, positions: np.ndarray) -> Sequences:
        """Return only the rows at these positions; the tokens are shared, not copied."""
        return replace(self, starts=self.starts[positions], lengths=self.lengths[positions])

    def join(self, others: Sequences) -> Sequences:
        """Return these rows and, after them, those of `others`, of the same tokenizer."""
        fields = {name: np.concatenate([values, others.fields[name]]) for name, values in self.fields.items()}
        starts = np.concatenate([self.starts, others.starts + len(self.fields["input_ids"])])
        return replace(self, fields=fields, starts=starts, lengths=np.concatenate([self.lengths, others.lengths]))

    def padded(self, rows: np.ndarray) -> Tokens:
        """Return each field and `attention_mask` of the rows at these positions, int64 [B, T] with T the longest."""
        lengths = self.lengths[rows, None]
        columns = np.arange(lengths.max())
        mask = columns < lengths
        positions = (self.starts[rows, None] + columns)[mask]
        tokens = {}
        for name, values in self.fields.items():
            padded = np.full(mask.shape, self.padding if name == "input_ids" else 0, dtype=np.int64)
            padded[mask] = values[positions]
            tokens[name] = torch.from_numpy(padded)
        return {**tokens, "attention_mask": torch.from_numpy(mask.astype(np.int64))}


def tokenise(frame: pd.DataFrame, task: Task, tokenizer: Any, max_length: int) -> tuple[Sequences, ...]:
    """Tokenise the rows into one set of sequences, or two (one for each text) if the task's encoding is `bi`.

    Args:
        frame: a row table (data/table.py).
        task: task of the rows.
        tokenizer: a transformers fast tokenizer.
        max_length: maximal tokens of a sequence (the longer text of a cross-encoded pair is truncated first).
    """
    texts = [frame[column].tolist() for column in task.text_columns]
    inputs = [[column] for column in texts] if task.encoding == "bi" else [texts]
    return tuple(_sequences(columns, tokenizer, max_length) for columns in inputs)


def _sequences(texts: Sequence[list[str]], tokenizer: Any, max_length: int) -> Sequences:
    """Tokenise single texts, or two lists of texts as pairs."""
    lengths: list[int] = []
    parts: dict[str, list[np.ndarray]] = defaultdict(list)
    for start in range(0, len(texts[0]), CHUNK):
        chunk = [column[start : start + CHUNK] for column in texts]
        tokens = tokenizer(*chunk, truncation=True, max_length=max_length, padding=False, return_attention_mask=False)
        lengths += map(len, tokens["input_ids"])
        for name in FIELDS:
            if name in tokens:
                parts[name].append(np.fromiter(chain.from_iterable(tokens[name]), dtype=np.int32))
    fields = {name: np.concatenate(chunks) for name, chunks in parts.items()}
    counts = np.array(lengths, dtype=np.int64)
    return Sequences(fields, np.cumsum(counts) - counts, counts, tokenizer.pad_token_id)
