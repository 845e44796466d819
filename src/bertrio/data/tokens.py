"""Token sequences of a task's rows: tokenised once, padded when batches are made."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import tokenizers
import torch
from filelock import FileLock
from torch import Tensor

from bertrio.core.files import parquet_batches, whole_file
from bertrio.core.tasks import Task
from bertrio.data.table import in_batches
from bertrio.model.names import sha256

Tokens = dict[str, Tensor]
Texts = list[list[str]]  # by text column
FIELDS = {"input_ids": ("ids", np.int32), "token_type_ids": ("type_ids", np.int8)}  # the mask follows from lengths
NO_LIMIT = 10**9  # tokens of a sequence
CHUNK = 1000  # rows tokenised at a time: the tokenizer's output needs many times the memory of the ids
KEPT = 4  # Arrow files of a table: members of an ensemble may differ in max_length


@dataclass(frozen=True)
class Sequences:
    """One token sequence for each row, all concatenated, so that padding needs no loop over rows.

    Attributes:
        fields: `input_ids`, int32 [all tokens], and `token_type_ids`, int8 [all tokens], if the tokenizer returns them.
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
    return _sequences(_token_table(text_batches(frame, task), task, tokenizer, max_length), tokenizer)


def load_tokens(table: Path, task: Task, tokenizer: Any, max_length: int, folder: Path) -> tuple[Sequences, ...]:
    """Return what `tokenise` makes of the rows of a parquet file, mapped into memory from an Arrow file in `folder`.

    The first process that asks for them tokenises the rows and writes the file, while others on this machine wait.
    They and later stages read no texts. The `KEPT` newest files of a table stay.

    Args:
        table: a file that `write_table` wrote, with at least one row.
        task: task of the rows.
        tokenizer: a transformers fast tokenizer.
        max_length: as in `tokenise`.
        folder: folder of the Arrow files.
    """
    settings = [_backend(tokenizer, max_length).to_str(), tokenizer.model_input_names, task.text_columns, task.encoding]
    key = hashlib.sha256(json.dumps([tokenizers.__version__, sha256(table), *settings]).encode()).hexdigest()
    path = folder / f"{task.name}-{table.stem}-{key[:16]}.arrow"
    with FileLock(folder / ".lock"):
        if not path.exists():
            rows = parquet_batches(table, CHUNK, list(task.text_columns))
            texts = ([batch[column].to_pylist() for column in task.text_columns] for batch in rows)
            tokens = _token_table(texts, task, tokenizer, max_length)
            with whole_file(path) as temporary, pa.ipc.new_file(str(temporary), tokens.schema) as writer:
                writer.write_table(tokens)
            files = sorted(folder.glob(f"{task.name}-{table.stem}-*.arrow"), key=lambda file: file.stat().st_mtime_ns)
            for old in files[:-KEPT]:
                old.unlink()
        with pa.memory_map(str(path)) as source:  # before another process removes it as one of the oldest
            return _sequences(pa.ipc.open_file(source).read_all(), tokenizer)


def text_batches(frame: pd.DataFrame, task: Task) -> Iterator[Texts]:
    """Yield the texts of `CHUNK` rows at a time."""
    for batch in in_batches(frame, CHUNK):
        yield [batch[column].tolist() for column in task.text_columns]


def encode(texts: Texts, tokenizer: Any, max_length: int) -> list[tokenizers.Encoding]:
    """Tokenise single texts, or two lists of texts as pairs, as a call of the tokenizer does, but without offsets."""
    return _backend(tokenizer, max_length).encode_batch_fast(list(zip(*texts)) if len(texts) == 2 else texts[0])


def _backend(tokenizer: Any, max_length: int) -> tokenizers.Tokenizer:
    backend = tokenizer.backend_tokenizer
    backend.no_padding()
    backend.enable_truncation(max_length, direction=tokenizer.truncation_side)  # the longest first
    return backend


def _token_table(texts: Iterable[Texts], task: Task, tokenizer: Any, max_length: int) -> pa.Table:
    """Return a table with one batch for each set of sequences; each field is a column of lists."""
    sets: defaultdict[int, defaultdict[str, bytearray]] = defaultdict(lambda: defaultdict(bytearray))
    for columns in texts:
        for number, inputs in enumerate([[column] for column in columns] if task.encoding == "bi" else [columns]):
            encodings, part = encode(inputs, tokenizer, max_length), sets[number]
            part["lengths"] += np.fromiter(map(len, encodings), dtype=np.int64).tobytes()
            for name, (attribute, dtype) in FIELDS.items():
                if name in tokenizer.model_input_names:
                    values = chain.from_iterable(getattr(encoding, attribute) for encoding in encodings)
                    part[name] += np.fromiter(values, dtype=dtype).tobytes()
    batches = []
    for part in sets.values():
        offsets = np.append(0, np.cumsum(np.frombuffer(part.pop("lengths"), dtype=np.int64)))
        arrays = {name: np.frombuffer(part[name], dtype=FIELDS[name][1]) for name in part}
        lists = [pa.LargeListArray.from_arrays(offsets, array) for array in arrays.values()]
        batches.append(pa.record_batch(lists, list(arrays)))
    return pa.Table.from_batches(batches)


def _sequences(tokens: pa.Table, tokenizer: Any) -> tuple[Sequences, ...]:
    sets = []
    for batch in tokens.to_batches():
        fields = {name: batch[name].values.to_numpy() for name in batch.schema.names}
        offsets = batch["input_ids"].offsets.to_numpy()
        sets.append(Sequences(fields, offsets[:-1], np.diff(offsets), tokenizer.pad_token_id))
    return tuple(sets)
