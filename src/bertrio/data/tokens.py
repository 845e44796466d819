"""Token sequences of a task's rows: made once, kept on disk, and padded into batches."""

from __future__ import annotations

import hashlib
import json
import time
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from torch import Tensor

from bertrio.core.files import whole_file
from bertrio.core.tasks import Task

Tokens = dict[str, Tensor]
FIELDS = ("input_ids", "token_type_ids")  # what is kept of what a tokenizer gives; the mask follows from lengths
CHUNK = 1000  # rows that are tokenised together: what the tokenizer returns takes many times the room of the ids
FORMAT = 1  # of the cached files; to be raised when their layout or what they hold changes
KEPT = 4  # cached files of a task and split: members of an ensemble may differ in encoding or max_length
LEFT = 600  # seconds since its last change: a half-written file that is younger may be a stage's that runs beside this
COLUMN = pa.large_list(pa.int32())  # offsets of 64 bits, which NumPy takes as they are


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
        found = tokenizer(*chunk, truncation=True, max_length=max_length, padding=False, return_attention_mask=False)
        lengths += map(len, found["input_ids"])
        for name in FIELDS:
            if name in found:
                parts[name].append(np.fromiter(chain.from_iterable(found[name]), dtype=np.int32))
    fields = {name: np.concatenate(chunks) for name, chunks in parts.items()}
    return _laid_out(fields, np.cumsum([0, *lengths], dtype=np.int64), tokenizer.pad_token_id)


def _laid_out(fields: Mapping[str, np.ndarray], offsets: np.ndarray, padding: int) -> Sequences:
    """Sequences of which each starts where the one before it ends: row i at `offsets[i]`; [N + 1]."""
    return Sequences(fields, offsets[:-1], np.diff(offsets), padding)


@dataclass(frozen=True)
class TokenCache:
    """Keeps the sequences of a task and split in a file, and makes them anew when anything that decides them changed.

    Every split is kept, however small: one rule is simpler than a threshold, and a file costs less than what it saves.
    A file that is damaged or not ours is made again, and so is a missing one; where none can be written (a disk that
    is full or read-only), the rows are tokenised every time. The `KEPT` newest files of a split stay, and nothing
    that was left half written, so that the folder does not grow. Files are Arrow's IPC format, mapped into memory: they
    are read as they are used, and stages that run side by side share them.

    Attributes:
        table: the parquet file of the rows.
        tokenizer: the tokenizer's folder.
        folder: where files go: `<split>-<key>.arrow`; one folder a task.
    """

    table: Path
    tokenizer: Path
    folder: Path

    def sequences(self, frame: pd.DataFrame, task: Task, tokenizer: Any, max_length: int) -> tuple[Sequences, ...]:
        """What `tokenise` makes of the same arguments; `frame` holds the rows of `table`."""
        key = self._key(task, max_length)
        path = self.folder / f"{self.table.stem}-{key[:16]}.arrow"
        found = _read(path, key, tokenizer.pad_token_id)
        if found is None:
            found = tokenise(frame, task, tokenizer, max_length)
            with suppress(OSError):
                _write(path, key, found)
        with suppress(OSError):  # each time: what a process left may have been too young when its file was made again
            self._drop_old()
        return found

    def _key(self, task: Task, max_length: int) -> str:
        """SHA-256 of everything that decides the sequences."""
        parts = {
            "format": FORMAT,
            "versions": [version(package) for package in ("tokenizers", "transformers")],
            "table": _digest(self.table),
            "tokenizer": {path.name: _digest(path) for path in self.tokenizer.iterdir() if path.is_file()},
            "task": [task.text_columns, task.encoding, max_length],
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def _drop_old(self) -> None:
        """Removes all but the `KEPT` newest files of the split, and what killed processes left half written."""
        for path in self.folder.glob(f".{self.table.stem}-*.arrow.*"):  # as `whole_file` names them
            if time.time() - path.stat().st_mtime > LEFT:
                path.unlink(missing_ok=True)
        files = self.folder.glob(f"{self.table.stem}-*.arrow")
        for path in sorted(files, key=lambda path: path.stat().st_mtime_ns)[:-KEPT]:
            path.unlink(missing_ok=True)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _write(path: Path, key: str, sequences: Sequence[Sequences]) -> None:
    """Writes what `tokenise` returned: a column `<field>_<number of the sequence>` each."""
    columns = {}
    for number, of in enumerate(sequences):
        offsets = pa.array(np.append(of.starts, of.starts[-1] + of.lengths[-1]))
        for name, values in of.fields.items():
            columns[f"{name}_{number}"] = pa.LargeListArray.from_arrays(offsets, pa.array(values))
    batch = pa.record_batch(columns)
    batch = batch.replace_schema_metadata({"key": key, "checksum": _checksum(batch)})
    with (
        whole_file(path) as temporary,
        pa.OSFile(str(temporary), "wb") as sink,
        pa.ipc.new_file(sink, batch.schema) as writer,
    ):
        writer.write_batch(batch)


def _read(path: Path, key: str, padding: int) -> tuple[Sequences, ...] | None:
    """The sequences in a file that `_write` wrote under this key; None if there are none to be trusted."""
    try:
        with pa.memory_map(str(path)) as source:
            batch = pa.ipc.open_file(source).get_batch(0)
        batch.validate()
        told = batch.schema.metadata or {}
        if told.get(b"key") != key.encode() or any(field.type != COLUMN for field in batch.schema):
            return None
        if told.get(b"checksum") != _checksum(batch).encode():
            return None
    except (OSError, ValueError, pa.ArrowException):  # ArrowInvalid is a ValueError, and so are names that are no UTF-8
        return None
    found: dict[str, dict[str, pa.LargeListArray]] = defaultdict(dict)
    for column, values in zip(batch.schema.names, batch.columns):
        name, _, number = column.rpartition("_")
        found[number][name] = values
    return tuple(
        _laid_out(
            {name: column.values.to_numpy() for name, column in fields.items()},
            fields["input_ids"].offsets.to_numpy(),
            padding,
        )
        for fields in found.values()
    )


def _checksum(batch: pa.RecordBatch) -> str:
    """CRC-32 of names, offsets and values of all columns: Arrow itself checks the form of a file, not its values."""
    check = zlib.crc32(" ".join(batch.schema.names).encode())
    for column in batch.columns:
        check = zlib.crc32(column.offsets.to_numpy(), check)
        check = zlib.crc32(column.values.to_numpy(), check)
    return f"{check:08x}"
