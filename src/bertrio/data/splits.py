"""Splits of a task's rows into train, dev and test, and the overlap between splits."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.util import hash_array
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from bertrio.core.console import say
from bertrio.core.errors import UserError
from bertrio.data.table import SPLITS, in_batches

Tables = dict[str, pd.DataFrame]
SMALL = 0.005  # share of all rows: groups up to this size are assigned in random order, after the larger ones


def make_splits(
    tables: Mapping[str, pd.DataFrame],
    strategy: str,
    fractions: Sequence[float],
    seed: int,
    task: str,
    labelled: Collection[str],
) -> Tables:
    """Split a task's rows.

    - `official`: the splits of the source; a missing test split becomes an empty one.
    - `random`: fractions of a seeded permutation of all labelled rows.
    - `grouped`: like `random`, but rows that share a sentence, directly or through other rows, stay together, so that
      no sentence (ignoring case and white space) is in two splits. The fractions are met within 1 percentage point
      unless single groups are too large.

    All strategies keep an unlabelled test split unchanged. `random` and `grouped` then divide the labelled rows
    between train and dev, in the proportion of their fractions, and ignore the test sentences.

    Args:
        tables: tables of the source, by split.
        strategy: `official`, `random` or `grouped`.
        fractions: of train, dev and test; they sum to 1.
        seed: seed of the permutation; each task has its own random stream.
        task: name of the task, for messages and the seed.
        labelled: splits of `tables` whose rows have labels.

    Returns:
        Tables for train, dev and test, with rows in their original order. If pooled splits use the same ids, ids become
        `<split>-<id>`.

    Raises:
        UserError: if train or dev has no rows, or test has none though its fraction is above 0.
    """
    if strategy == "official":
        return _official(tables, task)
    pooled = [split for split in SPLITS if split in labelled]
    fixed = {split: table for split, table in tables.items() if split not in pooled and len(table)}
    if not pooled:
        raise UserError(f"data.split: task {task}: found no labelled rows in the source")
    rows = pd.concat([tables[split] for split in pooled], ignore_index=True)
    if rows["id"].duplicated().any():
        origin = np.repeat(pooled, [len(tables[split]) for split in pooled])
        rows["id"] = pd.Series(origin, dtype=rows["id"].dtype) + "-" + rows["id"]
    shares = np.array(fractions[:2] if fixed else fractions)
    assigned = ASSIGN[strategy](rows, shares / shares.sum(), _random_state(seed, task), task)
    result = {split: rows[assigned == index].reset_index(drop=True) for index, split in enumerate(SPLITS)} | fixed
    for split, fraction in zip(SPLITS, fractions, strict=True):
        if result[split].empty and (split == "dev" or fraction > 0):
            raise UserError(
                f"data.split: task {task}: {len(rows)} labelled rows leave none for {split}, fractions "
                f"{list(fractions)}; give it a larger fraction, or all of them strategy random"
            )
    return result


def _official(tables: Mapping[str, pd.DataFrame], task: str) -> Tables:
    for split in ("train", "dev"):
        if split not in tables or tables[split].empty:
            raise UserError(
                f"data.split: task {task}: found no {split} rows in the source, but strategy is official; to "
                f"cut the rows at hand set data.split.tasks.{task} to {{strategy: random, fractions: [0.8, 0.1, 0.1]}}"
            )
    return {split: tables.get(split, tables["train"].iloc[:0]) for split in SPLITS}


def _random(rows: pd.DataFrame, shares: NDArray, random: np.random.RandomState, task: str) -> NDArray:
    order = random.permutation(len(rows))
    ends = np.rint(np.cumsum(shares) * len(rows)).astype(int)
    assigned = np.empty(len(rows), dtype=int)
    assigned[order] = np.searchsorted(ends, np.arange(len(rows)), side="right")
    return assigned


def _grouped(rows: pd.DataFrame, shares: NDArray, random: np.random.RandomState, task: str) -> NDArray:
    groups = sentence_groups(rows)
    sizes = np.bincount(groups)
    assigned = _assign_groups(sizes, shares, random)[groups]
    reached = np.bincount(assigned, minlength=len(shares)) / len(rows)
    if np.abs(reached - shares).max() > 0.01:
        percentages = ", ".join(f"{100 * share:.1f} %" for share in reached)
        say(f"{task}: grouped split has shares {percentages}; shared sentences link {sizes.max()} rows")
    return assigned


# (rows [N], shares of the splits, random, task) -> the index of its split for each row [N]
ASSIGN: dict[str, Callable[..., NDArray]] = {"random": _random, "grouped": _grouped}


def keep_share(table: pd.DataFrame, share: float, seed: int, stream: str) -> pd.DataFrame:
    """Keep a share of the rows, in their order, for quick runs; a larger share contains all rows of a smaller one.

    Args:
        table: rows of one task and split.
        share: 0 to 1; the number of rows is rounded up, so that only 0 keeps none.
        seed: seed of the draw.
        stream: name of the random stream: tasks and splits draw independently.
    """
    if share == 1:
        return table
    count = math.ceil(share * len(table) - 1e-9)  # 0.1 of 30 rows are 3 rows; 0.1 * 30 in binary is a little more
    positions = _random_state(seed, stream).permutation(len(table))[:count]
    return table.iloc[np.sort(positions)].reset_index(drop=True)


def sentence_groups(rows: pd.DataFrame) -> NDArray:
    """Return a group number, 0 to G - 1, for each row [N]; rows linked by shared sentences form one group."""
    columns = [name for name in rows.columns if name not in ("id", "label")]
    sentences = number_texts({"rows": rows}, columns).sentences
    first, last, size = sentences[:, 0], sentences[:, -1], sentences.max() + 1  # equal columns if there is only one
    edges = coo_array((np.ones(len(rows), dtype=np.int8), (first, last)), shape=(size, size))
    return connected_components(edges.tocsr(), directed=False)[1][first]


def _assign_groups(sizes: NDArray, shares: NDArray, random: np.random.RandomState) -> NDArray:
    """Return the index of its split for each group.

    Groups above `SMALL` go, largest first, to the split that lacks the most rows. The others follow in random order,
    each to the split that lacks the largest part of its share, so that small and medium groups are spread over all
    splits. No split is overfilled by more than one small group.
    """
    wanted = shares * sizes.sum()
    lacking = wanted.copy()
    large = sizes > SMALL * sizes.sum()
    order = random.permutation(len(sizes))
    first = sorted(order[large[order]], key=lambda group: -sizes[group])
    order = np.concatenate([first, order[~large[order]]]).astype(int)
    scale = np.maximum(wanted, 1e-9)
    assigned = np.empty(len(sizes), dtype=int)
    for group in order:
        split = int(np.argmax(lacking if large[group] else np.where(wanted > 0, lacking / scale, -np.inf)))
        assigned[group] = split
        lacking[split] -= sizes[group]
    return assigned


def _random_state(seed: int, stream: str) -> np.random.RandomState:
    """Return a generator whose streams are the same in all versions of NumPy, unlike those of `default_rng`."""
    return np.random.RandomState([seed, zlib.crc32(stream.encode())])


class TextNumbers(NamedTuple):
    """Texts of N rows as numbers: equal texts, and equal pairs, have equal numbers; see `hash_texts`."""

    sentences: NDArray  # [N, 1 or 2], numbers of single texts
    rows: NDArray  # [N], numbers of a row's texts together, in either order
    table: NDArray  # [N], names of the rows' tables


def hash_texts(texts: pd.Series) -> NDArray[np.uint64]:
    """Return 64-bit hashes of texts [N], ignoring case and white space as most tokenizers do.

    `grouped` splits, the counts of shared sentences and `new_rows` all compare these, so that they agree on which
    sentences are equal. Two of 20 million different texts share a hash with probability 1e-5.
    """
    batches = ([" ".join(text.split()).casefold() for text in batch.tolist()] for batch in in_batches(texts))
    return np.concatenate([hash_array(np.array(batch, dtype=object), categorize=False) for batch in batches])


def number_texts(tables: Mapping[str, pd.DataFrame], columns: Sequence[str]) -> TextNumbers:
    """Number the texts of all rows of some tables, compared by `hash_texts`.

    Args:
        tables: tables by name.
        columns: the text columns, one or two.
    """
    hashes = np.concatenate([hash_texts(table[column]) for column in columns for table in tables.values()])
    codes, sentences = pd.factorize(hashes)
    codes = codes.reshape(len(columns), -1).T
    rows = codes.min(axis=1) * np.int64(len(sentences)) + codes.max(axis=1)
    return TextNumbers(codes, rows, np.repeat(list(tables), [len(table) for table in tables.values()]))


def new_rows(
    splits: Mapping[str, pd.DataFrame], extra: pd.DataFrame, columns: Sequence[str], grouped: bool
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Separate extra training rows from those that are already in a split, so that dev and test stay unseen.

    Args:
        splits: tables of train, dev and test.
        extra: rows in the same layout. While they share an id with the splits, all of their ids become `extra-<id>`.
        columns: the text columns.
        grouped: whether to leave out rows that share a single sentence with dev or test.

    Returns:
        The new rows, and the left-out rows with a column `reason`: `given twice`, `also in train`, or, with precedence
        over these, `also in <split>` and `shares a sentence with <split>` for dev and test.
    """
    overlap = number_texts({**splits, "extra": extra}, columns)
    in_extra = overlap.table == "extra"
    reason = np.full(len(extra), "", dtype=object)
    reason[pd.Series(overlap.rows[in_extra]).duplicated().to_numpy()] = "given twice"
    for split in SPLITS:  # train first, so that dev and test take precedence
        in_split = overlap.table == split
        if grouped and split != "train":
            shared = np.isin(overlap.sentences[in_extra], overlap.sentences[in_split]).any(axis=1)
            reason[shared] = f"shares a sentence with {split}"
        reason[np.isin(overlap.rows[in_extra], overlap.rows[in_split])] = f"also in {split}"
    taken = pd.concat([table["id"] for table in splits.values()])
    while extra["id"].isin(taken).any():
        extra = extra.assign(id="extra-" + extra["id"])
    return extra[reason == ""], extra.assign(reason=reason)[reason != ""]
