"""The stage `split`: tables for train, dev and test, the tokenizer, and their description in metrics/data.json."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from bertrio.config import Params, build_tasks
from bertrio.core.console import print_table, say
from bertrio.core.errors import UserError, need
from bertrio.core.files import read_json, whole_folder, write_csv, write_json
from bertrio.core.gender import gender_swapped
from bertrio.core.tasks import Task
from bertrio.data.facts import describe
from bertrio.data.splits import Tables, keep_share, make_splits, new_rows
from bertrio.data.table import EXTRA, SPLITS, SWAPPED, UNLABELLED, is_labelled, read_table, write_table
from bertrio.model.names import hub_origin

LEFT_OUT = "left_out.csv"  # rows of data.extra_train that are already in the splits


def split_data(
    params: Params,
    raw: str | Path = "data/raw",
    splits_dir: str | Path = "data/splits",
    tokenizer_dir: str | Path = "models/tokenizer",
    metrics_path: str | Path = "metrics/data.json",
) -> dict[str, Any]:
    """Split the rows that `download` wrote, build the tokenizer and describe the data.

    Args:
        params: all params; `data`, `tasks` and `encoder` are read.
        raw: the folder that `download` wrote.
        splits_dir: folder for <task>/<split>.parquet, all three for each task; replaced atomically. Rows of
            `data.extra_train` join train, except those that are already in a split: these go to left_out.csv. Rows of
            `data.unlabelled` go to unlabelled.parquet, with the same exceptions.
        tokenizer_dir: folder for the encoder's tokenizer, which is trained on the training texts for `tiny`; replaced
            atomically.
        metrics_path: file for the facts.

    Returns:
        The facts as written: `source`, `origin` and `corpora` (origin of the data), `rejects`, `tasks` (by split: rows,
        labels, token lengths, rows shared with train) and `simple_baselines`; for `data.extra_train`, the left-out
        rows by task and reason (`extra_left_out`); for `data.unlabelled`, rows by task and source (`unlabelled`); for
        an encoder from the hub, `encoder` (id, commit, and SHA-256 of its files).

    Raises:
        UserError: if raw files are missing or the rows can't be split as asked.
    """
    from bertrio.data.baselines import simple_baselines
    from bertrio.model.tokenizer import build_tokenizer, pinned

    tasks, raw_facts = build_tasks(params), _read_facts(Path(raw))
    splits, left_out = {}, {}
    for name, task in tasks.items():
        splits[name], left_out[name] = _split(params, task, Path(raw) / name)
    with whole_folder(tokenizer_dir) as new_tokenizer, whole_folder(splits_dir) as new_splits:
        texts = pd.concat(
            [splits[name]["train"][column] for name, task in tasks.items() for column in task.text_columns]
        )
        tokenizer = build_tokenizer(params.encoder, texts, new_tokenizer)
        origin = hub_origin(params.encoder.name, pinned(params.encoder, new_tokenizer).revision)
        facts = {name: describe(splits[name], task, tokenizer) for name, task in tasks.items()}
        metrics = {**raw_facts, "tasks": facts, "simple_baselines": simple_baselines(splits, tasks)}
        reasons = {name: _reasons(rows) for name, rows in left_out.items() if rows is not None}
        unlabelled = {name: tables[UNLABELLED]["source"] for name, tables in splits.items() if UNLABELLED in tables}
        counts = {name: sources.value_counts().to_dict() for name, sources in unlabelled.items()}
        more = {"extra_left_out": reasons, "unlabelled": counts, "encoder": origin}
        metrics |= {name: value for name, value in more.items() if value}
        for name, tables in splits.items():
            for split, table in tables.items():
                write_table(table, new_splits / name / f"{split}.parquet")
            if left_out[name] is not None:
                write_csv(left_out[name], new_splits / name / LEFT_OUT, quoted=True)
        write_json(metrics_path, metrics)
    _show(facts)
    return metrics


def _read_facts(raw: Path) -> dict[str, Any]:
    path = need(raw / "facts.json")
    try:
        return dict(read_json(path))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path}: can't be read ({error}); run the stage download again") from error


def _split(params: Params, task: Task, folder: Path) -> tuple[Tables, pd.DataFrame | None]:
    """Return a task's splits, with `unlabelled` if it has such rows, and the left-out rows of `data.extra_train` (None
    if it has no extra rows).
    """
    rule, seed, keep = params.split_of(task.name), params.data.split.seed, params.data.split.keep
    files = {split: folder / f"{split}.parquet" for split in (*SPLITS, EXTRA)}
    tables = {split: read_table(file) for split, file in files.items() if file.is_file()}
    extra, left_out = tables.pop(EXTRA, None), None
    draws = params.same_rows.get(task.name, task.name)  # tasks of the same rows have the same splits
    alike = [name for name in params.tasks if params.same_rows.get(name, name) == draws]
    labelled = {
        split
        for split, name in product(tables, alike)
        if is_labelled(read_table(folder.parent / name / f"{split}.parquet", ["label"]))
    }
    splits = make_splits(tables, rule.strategy, rule.fractions, seed, draws, labelled)

    def select(rows: pd.DataFrame, origin: str) -> tuple[pd.DataFrame, pd.DataFrame]:
        new, left = new_rows(splits, rows, task.text_columns, rule.strategy == "grouped")
        reasons = "".join(f", {count} {reason}" for reason, count in _reasons(left).items())
        say(f"{task.name}: {len(new)} of {len(rows)} {origin} are used{reasons}")
        return new, left

    def add(rows: pd.DataFrame, origin: str) -> pd.DataFrame:
        """Add the new ones of extra rows to train; return the left-out ones."""
        new, left = select(rows, origin)
        splits["train"] = pd.concat([splits["train"], new.assign(source=EXTRA)], ignore_index=True)
        return left

    if extra is not None:
        left_out = add(extra, f"rows of data.{EXTRA}")
    if task.name in params.data.extra_train and params.data.extra_train[task.name].gender_swapped:
        copies = add(_gender_swapped(splits["train"], task), "swapped copies")
        left_out = pd.concat([left_out, copies], ignore_index=True)
    if paths := sorted(folder.glob(f"{UNLABELLED}-*.parquet")):
        rows = pd.concat([read_table(path).assign(source=path.stem) for path in paths], ignore_index=True)
        if rows["id"].duplicated().any():
            rows["id"] = rows["source"] + "-" + rows["id"]
        unlabelled, _ = select(rows, f"rows of data.{UNLABELLED}")
    kept = {name: keep_share(rows, getattr(keep, name), seed, f"{draws}-{name}") for name, rows in splits.items()}
    if paths and len(unlabelled):
        kept[UNLABELLED] = keep_share(unlabelled, keep.train, seed, f"{task.name}-{UNLABELLED}")
    return kept, left_out


def _gender_swapped(rows: pd.DataFrame, task: Task) -> pd.DataFrame:
    """Return copies of the rows that `gender_swapped` changes."""
    texts = list(task.text_columns)
    rows = rows.drop(columns="source", errors="ignore").dropna(subset="label")
    swapped = rows.assign(id=SWAPPED + rows["id"], **{name: rows[name].map(gender_swapped) for name in texts})
    return swapped[(swapped[texts] != rows[texts]).any(axis=1)]


def _reasons(left_out: pd.DataFrame) -> dict[str, int]:
    return left_out["reason"].value_counts().sort_index().to_dict()


def _show(facts: dict[str, dict[str, dict[str, Any]]]) -> None:
    """Print the number of rows, token lengths and shared rows of each split."""
    rows = [
        {
            "split": f"{task} {split}",
            "rows": values["rows"],
            "median tokens": values.get("tokens", {}).get("p50"),
            "most tokens": values.get("tokens", {}).get("max"),
            "pairs also in train": values.get("pairs_shared_with_train"),
            "share a sentence": values.get("rows_sharing_a_sentence_with_train"),
        }
        for task, by_split in facts.items()
        for split, values in by_split.items()
    ]
    print_table(pd.DataFrame(rows, dtype=object), "rows by split")
