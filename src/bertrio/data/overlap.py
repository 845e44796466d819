"""Which rows of a task say the same, and more rows to train on that say nothing that stands elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bertrio.data.table import SPLITS


class Overlap(NamedTuple):
    """Numbers for the texts of N rows; equal texts, and equal pairs, have equal numbers."""

    sentences: NDArray  # [N, 1 or 2]
    rows: NDArray  # [N], of all texts of a row, in either order
    table: NDArray  # [N], names of the tables that the rows are from


def comparable(texts: pd.Series) -> pd.Series:
    """Texts in the form in which they are compared: neither case nor white space counts, as to most tokenizers.

    `grouped` splits, the facts on shared sentences and `join_train` all compare this form: else a split that keeps
    sentences apart by one of them would share some by another.
    """
    return texts.str.split().str.join(" ").str.casefold()


def overlap_of(tables: Mapping[str, pd.DataFrame], columns: Sequence[str]) -> Overlap:
    """Numbers the texts of all rows of some tables, as `comparable` has them.

    Args:
        tables: by name, in the order of the numbers.
        columns: those of the texts, one or two.
    """
    texts = pd.concat([table[column] for column in columns for table in tables.values()], ignore_index=True)
    codes, sentences = pd.factorize(comparable(texts))
    codes = codes.reshape(len(columns), -1).T
    rows = codes.min(axis=1) * np.int64(len(sentences)) + codes.max(axis=1)
    return Overlap(codes, rows, np.repeat(list(tables), [len(table) for table in tables.values()]))


def join_train(
    splits: Mapping[str, pd.DataFrame], more: pd.DataFrame, columns: Sequence[str], grouped: bool
) -> tuple[dict[str, pd.DataFrame], pd.DataFrame]:
    """Puts more rows behind those of train, but none that stands in a split already: dev and test stay unseen.

    Args:
        splits: tables of train, dev and test.
        more: rows in the same layout. Where they use an id of the splits, all of their ids become `more-<id>`, until
            they do not.
        columns: those of the texts.
        grouped: whether a single sentence that stands in dev or test is enough to leave a row out.

    Returns:
        The splits with the longer train, and the rows left out, with a column `reason`: `also in dev`, `also in test`,
        `also in train`, `shares a sentence with dev`, `given twice` and the like; the gravest counts.
    """
    tables = {**{split: splits[split] for split in SPLITS}, "more": more}
    found = overlap_of(tables, columns)
    own = found.table == "more"
    reason = np.full(len(more), "", dtype=object)
    reason[pd.Series(found.rows[own]).duplicated().to_numpy()] = "given twice"
    for split in SPLITS:  # train first: what stands in dev or test as well is told as that
        there = found.table == split
        if grouped and split != "train":
            shared = np.isin(found.sentences[own], found.sentences[there]).any(axis=1)
            reason[shared] = f"shares a sentence with {split}"
        reason[np.isin(found.rows[own], found.rows[there])] = f"also in {split}"
    taken = pd.concat([table["id"] for table in splits.values()])
    while more["id"].isin(taken).any():
        more = more.assign(id="more-" + more["id"])
    kept = more[reason == ""]
    train = pd.concat([splits["train"], kept], ignore_index=True)
    return {**splits, "train": train}, more.assign(reason=reason)[reason != ""].reset_index(drop=True)
