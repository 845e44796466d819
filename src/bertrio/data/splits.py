"""The split of a task's rows into train, dev and test, and the rows that these have in common."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from bertrio.core.console import say
from bertrio.core.errors import UserError
from bertrio.data.table import SPLITS, is_labelled

Tables = dict[str, pd.DataFrame]
SMALL = 0.005  # share of all rows: groups up to this size are drawn at random, larger ones are fitted in first


def make_splits(
    tables: Mapping[str, pd.DataFrame], strategy: str, fractions: Sequence[float], seed: int, task: str
) -> Tables:
    """Split a task's rows.

    - `official`: as the source gives them; a missing test split becomes an empty one.
    - `random`: all labelled rows together, in fractions of a seeded permutation.
    - `grouped`: the same, but rows that share a sentence, directly or through others, stay together, so that no
      sentence, whatever its case and white space, is in two of the splits. The fractions are met within 1 point
      unless single groups are too large.

    An unlabelled test split stays as it is under all of them. `random` and `grouped` then share the labelled rows
    between train and dev alone, in the proportion of their fractions, and do not look at the test sentences.

    Args:
        tables: what the source gives, by split.
        strategy: `official`, `random` or `grouped`.
        fractions: of train, dev and test; they sum to 1.
        seed: of the permutation; each task has a stream of its own.
        task: its name, for messages and the seed.

    Returns:
        Tables for train, dev and test with rows in the order they came in. Where pooled splits use the same ids, ids
        become `<split>-<id>`.

    Raises:
        UserError: if train or dev has no rows, or test has none though its fraction is above 0.
    """
    return STRATEGIES[strategy](dict(tables), list(fractions), seed, task)


def _official(tables: Tables, fractions: list[float], seed: int, task: str) -> Tables:
    for split in ("train", "dev"):
        if split not in tables or tables[split].empty:
            raise UserError(
                f"data.split: task {task}: found no {split} rows in the source, but strategy is official; to "
                f"cut the rows at hand set data.split.tasks.{task} to {{strategy: random, fractions: [0.8, 0.1, 0.1]}}"
            )
    return {split: tables.get(split, tables["train"].iloc[:0]) for split in SPLITS}


def _random(tables: Tables, fractions: list[float], seed: int, task: str) -> Tables:
    def assign(rows: pd.DataFrame, shares: NDArray) -> NDArray:
        order = _random_state(seed, task).permutation(len(rows))
        ends = np.rint(np.cumsum(shares) * len(rows)).astype(int)
        assigned = np.empty(len(rows), dtype=int)
        assigned[order] = np.searchsorted(ends, np.arange(len(rows)), side="right")
        return assigned

    return _share_out(tables, fractions, task, assign)


def _grouped(tables: Tables, fractions: list[float], seed: int, task: str) -> Tables:
    def assign(rows: pd.DataFrame, shares: NDArray) -> NDArray:
        groups = sentence_groups(rows)
        sizes = np.bincount(groups)
        assigned = _assign_groups(sizes, shares, _random_state(seed, task))[groups]
        reached = np.bincount(assigned, minlength=len(shares)) / len(rows)
        if np.abs(reached - shares).max() > 0.01:
            found = ", ".join(f"{100 * share:.1f} %" for share in reached)
            say(f"{task}: grouped split has shares {found}; {sizes.max()} rows hang together through shared sentences")
        return assigned

    return _share_out(tables, fractions, task, assign)


STRATEGIES: dict[str, Callable[[Tables, list[float], int, str], Tables]] = {
    "official": _official,
    "random": _random,
    "grouped": _grouped,
}


def _share_out(
    tables: Tables, fractions: list[float], task: str, assign: Callable[[pd.DataFrame, NDArray], NDArray]
) -> Tables:
    """Pools the labelled rows and cuts them by what `assign` says: for each row the number of its split."""
    pooled = [split for split in SPLITS if split in tables and is_labelled(tables[split])]
    fixed = {split: table for split, table in tables.items() if split not in pooled and len(table)}
    if not pooled:
        raise UserError(f"data.split: task {task}: found no labelled rows in the source")
    rows = pd.concat([tables[split] for split in pooled], ignore_index=True)
    if rows["id"].duplicated().any():
        origin = np.repeat(pooled, [len(tables[split]) for split in pooled])
        rows["id"] = pd.Series(origin, dtype=rows["id"].dtype) + "-" + rows["id"]
    shares = np.array(fractions[:2] if fixed else fractions)
    assigned = assign(rows, shares / shares.sum())
    result = {split: rows[assigned == index].reset_index(drop=True) for index, split in enumerate(SPLITS)} | fixed
    for split, fraction in zip(SPLITS, fractions, strict=True):
        if result[split].empty and (split == "dev" or fraction > 0):
            raise UserError(
                f"data.split: task {task}: {len(rows)} labelled rows leave none for {split}, fractions {fractions}; "
                "give it a larger fraction, or all of them strategy random"
            )
    return result


def keep_share(tables: Mapping[str, pd.DataFrame], shares: Mapping[str, float], seed: int, task: str) -> Tables:
    """Keep a share of the rows of each split, for quick runs.

    A larger share has all rows of a smaller one, and all splits keep the order of their rows.

    Args:
        tables: by split.
        shares: by split, 0 to 1; the number of rows is rounded up, so that only 0 keeps none.
        seed: of the draw; each task and split has a stream of its own.
        task: its name.
    """
    return {split: _drawn(table, shares[split], seed, f"{task}-{split}") for split, table in tables.items()}


def _drawn(table: pd.DataFrame, share: float, seed: int, stream: str) -> pd.DataFrame:
    count = math.ceil(share * len(table) - 1e-9)  # 0.1 of 30 rows is 3, and not what 0.1 * 30 gives in binary
    places = _random_state(seed, stream).permutation(len(table))[:count]
    return table.iloc[np.sort(places)].reset_index(drop=True)


def sentence_groups(rows: pd.DataFrame) -> NDArray:
    """Return a group number, 0 to G - 1, for each row [N]; rows linked by shared sentences form one group."""
    columns = [name for name in rows.columns if name not in ("id", "label")]
    sentences = overlap_of({"rows": rows}, columns).sentences
    first, last, size = sentences[:, 0], sentences[:, -1], sentences.max() + 1  # the same column if there is but one
    edges = coo_array((np.ones(len(rows), dtype=np.int8), (first, last)), shape=(size, size))
    return connected_components(edges.tocsr(), directed=False)[1][first]


def _assign_groups(sizes: NDArray, shares: NDArray, random: np.random.RandomState) -> NDArray:
    """The number of its split for each group.

    Groups above `SMALL` go, largest first, where most rows are wanting. The others follow in random order, each to
    the split that lacks the largest part of its share, so that every split gets small and middling groups alike. No
    split is then overfilled by more than one small group.
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
        to = int(np.argmax(lacking if large[group] else np.where(wanted > 0, lacking / scale, -np.inf)))
        assigned[group] = to
        lacking[to] -= sizes[group]
    return assigned


def _random_state(seed: int, task: str) -> np.random.RandomState:
    """Its streams never change between versions of NumPy, which `default_rng` does not promise."""
    return np.random.RandomState([seed, zlib.crc32(task.encode())])


class Overlap(NamedTuple):
    """Numbers for the texts of N rows; equal texts, and equal pairs, have equal numbers."""

    sentences: NDArray  # [N, 1 or 2]
    rows: NDArray  # [N], of all texts of a row, in either order
    table: NDArray  # [N], names of the tables that the rows are from


def comparable(texts: pd.Series) -> pd.Series:
    """Normalise texts for comparison: neither case nor white space counts, as to most tokenizers.

    `grouped` splits, the facts on shared sentences and `join_train` all compare this form: else a split that keeps
    sentences apart by one of them would share some by another.
    """
    return texts.str.split().str.join(" ").str.casefold()


def overlap_of(tables: Mapping[str, pd.DataFrame], columns: Sequence[str]) -> Overlap:
    """Number the texts of all rows of some tables, compared by `comparable`.

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
    splits: Mapping[str, pd.DataFrame], extra: pd.DataFrame, columns: Sequence[str], grouped: bool
) -> tuple[dict[str, pd.DataFrame], pd.DataFrame]:
    """Append more rows to train, except those that stand in a split already: dev and test stay unseen.

    Args:
        splits: tables of train, dev and test.
        extra: rows in the same layout. Where they use an id of the splits, all of their ids become `extra-<id>`, until
            they do not.
        columns: those of the texts.
        grouped: whether a single sentence that stands in dev or test is enough to leave a row out.

    Returns:
        The splits with the longer train, and the rows left out, with a column `reason`: `also in dev`, `also in test`,
        `also in train`, `shares a sentence with dev`, `given twice` and the like; the gravest counts.
    """
    tables = {**{split: splits[split] for split in SPLITS}, "extra": extra}
    overlap = overlap_of(tables, columns)
    in_extra = overlap.table == "extra"
    reason = np.full(len(extra), "", dtype=object)
    reason[pd.Series(overlap.rows[in_extra]).duplicated().to_numpy()] = "given twice"
    for split in SPLITS:  # train first: what stands in dev or test as well is told as that
        there = overlap.table == split
        if grouped and split != "train":
            shared = np.isin(overlap.sentences[in_extra], overlap.sentences[there]).any(axis=1)
            reason[shared] = f"shares a sentence with {split}"
        reason[np.isin(overlap.rows[in_extra], overlap.rows[there])] = f"also in {split}"
    taken = pd.concat([table["id"] for table in splits.values()])
    while extra["id"].isin(taken).any():
        extra = extra.assign(id="extra-" + extra["id"])
    kept = extra[reason == ""]
    train = pd.concat([splits["train"], kept], ignore_index=True)
    return {**splits, "train": train}, extra.assign(reason=reason)[reason != ""].reset_index(drop=True)
