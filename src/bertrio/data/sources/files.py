"""The user's own files: CSV, TSV, JSON Lines or Parquet per task and split, told apart by their endings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from bertrio.config import DataParams
from bertrio.config.data import ExtraRows, FilesTask, TaskData
from bertrio.core.errors import UserError
from bertrio.core.tasks import Task
from bertrio.data.formats import READERS, read_delimited
from bertrio.data.reading import build_table
from bertrio.data.sources import SourceData
from bertrio.data.sources.corpora import load_corpus as load_corpus
from bertrio.data.table import EXTRA, SPLITS, Reject


def load_tasks(params: DataParams, tasks: dict[str, Task]) -> SourceData:
    """Read the files of `data.files`; paths are relative to `data.path`, or to the repository where that is null.

    Columns are called as in the layout (data/table.py) unless `columns` says otherwise. Without an `id` column rows
    are named by split and row number.

    Raises:
        UserError: if a file or column is missing, or a file is of no known kind.
    """
    data = SourceData()
    for task in tasks.values():
        read_task(task, params.files[task.name], params.base, f"data.files.{task.name}", data)
    return data


def read_task(task: Task, block: FilesTask | TaskData, base: Path, place: str, data: SourceData) -> None:
    """Add the rows of one task to `data`, and those that can't be used.

    Args:
        task: what the rows belong to.
        block: names the files, and the columns where they are called otherwise.
        base: where relative paths start.
        place: the block's place in params.yaml, for messages.
        data: what to add to.

    Raises:
        UserError: as `load_tasks`.
    """
    for split in SPLITS:
        name = getattr(block, split)
        if name is not None:
            path = base / Path(name).expanduser()
            data.add(task.name, split, *read_file(path, task, split, block.columns, place, split))


def read_extra(task: Task, block: ExtraRows, base: Path, data: SourceData) -> None:
    """Add the rows of `data.extra_train` for one task to `data`, as a table `extra_train`, and the rejected ones.

    Raises:
        UserError: as `load_tasks`.
    """
    path = base / Path(block.train).expanduser()
    place = f"data.extra_train.{task.name}"
    data.add(task.name, EXTRA, *read_file(path, task, EXTRA, block.columns, place, "train"))


def read_file(
    path: Path, task: Task, split: str, columns: Mapping[Any, str], param: str, key: str, delimiter: str | None = None
) -> tuple[pd.DataFrame, list[Reject]]:
    """Read the table and the rejects of one file of a task's rows.

    Args:
        path: of a file with one of the endings of `READERS`, or any delimited text if `delimiter` is given.
        task: what the rows belong to.
        split: what they are for, and what ids are made of where there is no column; only `test` may have no labels.
        columns: as in `build_table`.
        param: the block of params.yaml that describes the file, for messages; it has a key `columns`.
        key: in that block, which names the file.
        delimiter: between fields of a text file; None: as the ending says.

    Raises:
        UserError: if the file or a column is missing, or the file is of no known kind.
    """
    place, kind = f"{param}.{key}: {path}", path.suffix.lower()
    if delimiter is None and kind not in READERS:
        raise UserError(f"{place}: found a name that ends in {path.suffix!r}, expected one of {', '.join(READERS)}")
    if not path.is_file():
        raise UserError(
            f"{place}: there is no such file; relative paths start at the repository, those in data.files and "
            "data.extra_train at data.path"
        )
    rows = READERS[kind](path) if delimiter is None else read_delimited(path, delimiter)
    hint = f"; say which column is which in {param}.columns"
    return build_table(rows, columns, task, split, path.name, place, hint)
