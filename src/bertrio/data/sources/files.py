"""The user's own files: CSV, TSV, JSON Lines or Parquet (by file extension) for each task and split."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from bertrio.config import DataParams
from bertrio.config.data import SplitFiles
from bertrio.core.errors import UserError
from bertrio.core.tasks import Task
from bertrio.data.formats import READERS
from bertrio.data.reading import build_table
from bertrio.data.sources import SourceData
from bertrio.data.sources.corpora import load_corpus as load_corpus
from bertrio.data.table import EXTRA, UNLABELLED, Reject


def load_tasks(params: DataParams, tasks: dict[str, Task]) -> SourceData:
    """Read the files of `data.files`; paths are relative to `data.path`, or to the repository if that is null.

    Columns have the names of the layout (data/table.py) unless `columns` maps them. Without an `id` column, ids are
    made of the split and the row number.

    Raises:
        UserError: if a file or column is missing, or a file has an unknown format.
    """
    data = SourceData()
    for task in tasks.values():
        read_task(task, params.files[task.name], params.base, f"data.files.{task.name}", data)
    return data


def read_task(task: Task, block: SplitFiles, base: Path, place: str, data: SourceData) -> None:
    """Add the rows of one task and the rejected rows to `data`.

    Args:
        task: task of the rows.
        block: paths of the files, and names of their columns.
        base: base of relative paths.
        place: name of the block in params.yaml, for messages.
        data: the collection that is extended.

    Raises:
        UserError: as in `load_tasks`.
    """
    for split, name in block.files.items():
        path = base / Path(name).expanduser()
        data.add(task.name, split, *read_file(path, task, split, block.columns, place, split))


def read_extra(params: DataParams, tasks: Mapping[str, Task], data: SourceData) -> None:
    """Add the rows of `data.extra_train` and `data.unlabelled`, and the rejected rows, to `data`.

    They are tables `extra_train` and `unlabelled-<name>` of their tasks.

    Raises:
        UserError: as in `load_tasks`.
    """

    def add(task: str, split: str, param: str, key: str, path: str, columns: Mapping[Any, str]) -> None:
        file = params.base / Path(path).expanduser()
        data.add(task, split, *read_file(file, tasks[task], split, columns, f"data.{param}", key))

    for task, block in params.extra_train.items():
        if block.train:
            add(task, EXTRA, f"extra_train.{task}", "train", block.train, block.columns)
    for name, rows in params.unlabelled.items():
        add(rows.task, f"{UNLABELLED}-{name}", f"unlabelled.{name}", "path", rows.path, rows.columns)


def read_file(
    path: Path, task: Task, split: str, columns: Mapping[Any, str], param: str, key: str
) -> tuple[pd.DataFrame, list[Reject]]:
    """Read a file of a task's rows and return its table and rejects.

    Args:
        path: a file with an extension in `READERS`.
        task: task of the rows.
        split: split of the rows, also used to make ids; as in `build_table`.
        columns: as in `build_table`.
        param: block of params.yaml that describes the file, for messages; it has a key `columns`.
        key: key of the file's path in that block.

    Raises:
        UserError: if the file or a column is missing, or the file has an unknown format.
    """
    place, kind = f"{param}.{key}: {path}", path.suffix.lower()
    if kind not in READERS:
        raise UserError(f"{place}: found a name that ends in {path.suffix!r}, expected one of {', '.join(READERS)}")
    hint = f"; say which column is which in {param}.columns"
    return build_table(READERS[kind](path), columns, task, split, path.name, place, hint)
