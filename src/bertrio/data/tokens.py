"""Token sequences of a task's rows: made once, and padded into batches."""

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
FIELDS = ("input_ids", "token_type_ids")  # of what a tokenizer gives; the mask follows from lengths
CHUNK = 1000  # rows that are tokenised together: what the tokenizer returns takes many times the room of the ids


@dataclass(frozen=True)
class Sequences:
    """One token sequence a row, all rows end to end, so that neither reading nor padding them needs a loop over rows.

    Attributes:
        fields: `input_ids`, and `token_type_ids` where the tokenizer gives them: int32 [all tokens].
        starts: where each row starts in them: int64 [N].
        lengths: tokens of each row: int64 [N].
        padding: the id that fills up short rows.
    """

    fields: Mapping[str, np.ndarray]
    starts: np.ndarray
    lengths: np.ndarray
    padding: int

    def take(self, positions: np.ndarray) -> Sequences:
        """The rows at these positions alone; the tokens themselves are shared, not copied."""
        return replace(self, starts=self.starts[positions], lengths=self.lengths[positions])

    def padded(self, rows: np.ndarray) -> Tokens:
        """The rows at these positions, each field and `attention_mask` as int64 [B, T], T being the longest of them."""
        lengths = self.lengths[rows, None]
        places = np.arange(lengths.max())
        mask = places < lengths
        at = (self.starts[rows, None] + places)[mask]
        tokens = {}
        for name, values in self.fields.items():
            padded = np.full(mask.shape, self.padding if name == "input_ids" else 0, dtype=np.int64)
            padded[mask] = values[at]
            tokens[name] = torch.from_numpy(padded)
        return {**tokens, "attention_mask": torch.from_numpy(mask.astype(np.int64))}


def tokenise(frame: pd.DataFrame, task: Task, tokenizer: Any, max_length: int) -> tuple[Sequences, ...]:
    """The rows as one set of sequences, or as two, one for each text, where the task's encoding is `bi`.

    Args:
        frame: a row table (data/table.py).
        task: what the rows belong to.
        tokenizer: a transformers fast tokenizer.
        max_length: tokens kept of each sequence (of a cross-encoded pair the longer text is cut first).
    """
    texts = [frame[column].tolist() for column in task.text_columns]
    together = [[text] for text in texts] if task.encoding == "bi" else [texts]
    return tuple(_sequences(columns, tokenizer, max_length) for columns in together)


def _sequences(texts: Sequence[list[str]], tokenizer: Any, max_length: int) -> Sequences:
    """The sequences of one text, or of two as a pair."""
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
