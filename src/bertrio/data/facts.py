"""Statistics of a task's rows: labels, token lengths and overlap between splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bertrio.core.tasks import Task
from bertrio.data.splits import number_texts
from bertrio.data.table import SPLITS, is_labelled
from bertrio.data.tokens import NO_LIMIT, encode, text_batches


def describe(splits: Mapping[str, pd.DataFrame], task: Task, tokenizer: Any) -> dict[str, dict[str, Any]]:
    """Return statistics by split, as nested dicts of numbers.

    - `rows`: number of rows.
    - `labels`: rows of each label for classes and binary targets; mean, deviation and quartiles for scores.
    - `tokens`: quantiles and maximum of the token lengths.
    - `pairs_shared_with_train` (dev and test of pair tasks): rows whose pair, in either order, is also in train.
    - `rows_sharing_a_sentence_with_train` (dev and test): rows with a sentence that is also in train.

    Args:
        splits: tables of train, dev and test; others are not described.
        task: task of the rows.
        tokenizer: a transformers fast tokenizer.
    """
    tables = {split: splits[split] for split in SPLITS}
    shared = _shared_with_train(tables, task.text_columns)
    facts: dict[str, dict[str, Any]] = {split: {"rows": len(table)} for split, table in tables.items()}
    for split, table in tables.items():
        if is_labelled(table):
            facts[split]["labels"] = _labels(table["label"].dropna().to_numpy(), task)
        if len(table):
            facts[split]["tokens"] = _lengths(table, task, tokenizer)
        if split != "train":
            facts[split] |= shared[split]
    return facts


def _labels(labels: NDArray, task: Task) -> dict[str, float]:
    if task.target.discrete:
        counts = zip(task.target.class_names, task.target.counts(labels))
        return {name: count for name, count in counts if count}
    quartiles = np.quantile(labels, (0, 0.25, 0.5, 0.75, 1))
    named = dict(zip(("min", "p25", "p50", "p75", "max"), map(float, quartiles), strict=True))
    return {"mean": float(labels.mean()), "std": float(labels.std()), **named}


def _lengths(table: pd.DataFrame, task: Task, tokenizer: Any) -> dict[str, int]:
    """Return quantiles of the tokens of texts or pairs, with special tokens and without truncation."""
    lengths = [len(tokens) for batch in text_batches(table, task) for tokens in encode(batch, tokenizer, NO_LIMIT)]
    quantiles = np.quantile(lengths, (0.5, 0.9, 0.99, 1), method="higher")  # no interpolation
    return dict(zip(("p50", "p90", "p99", "max"), map(int, quantiles), strict=True))


def _shared_with_train(splits: Mapping[str, pd.DataFrame], columns: Sequence[str]) -> dict[str, dict[str, int]]:
    """Count shared rows by split, ignoring case and white space."""
    overlap = number_texts(splits, columns)
    in_train = overlap.table == "train"
    shared: dict[str, Any] = {}
    if len(columns) == 2:
        shared["pairs_shared_with_train"] = np.isin(overlap.rows, overlap.rows[in_train])
    sentences = np.isin(overlap.sentences, overlap.sentences[in_train])
    shared["rows_sharing_a_sentence_with_train"] = sentences.any(axis=1)
    return {split: {name: int(rows[overlap.table == split].sum()) for name, rows in shared.items()} for split in splits}
