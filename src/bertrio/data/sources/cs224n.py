"""The folder of data files that the course CS 224N hands out.

Tab-separated files with standard quoting and one or two nameless index columns, which are ignored; test files have no
labels. Needs no more than the train file of each task; what else must be there depends on `data.split`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from bertrio.config import DataParams
from bertrio.core.errors import UserError, missing_path
from bertrio.core.tasks import Task
from bertrio.data.formats import read_delimited
from bertrio.data.reading import build_table
from bertrio.data.sources import SourceData
from bertrio.data.sources.corpora import read_local_corpus
from bertrio.data.table import Reject


class _Layout(NamedTuple):
    prefix: str
    texts: tuple[str, ...]
    label: str


LAYOUTS = {
    "sst": _Layout("ids-sst", ("sentence",), "sentiment"),
    "qqp": _Layout("quora", ("sentence1", "sentence2"), "is_duplicate"),
    "sts": _Layout("sts", ("sentence1", "sentence2"), "similarity"),
    "cfimdb": _Layout("ids-cfimdb", ("sentence",), "sentiment"),
}
ENDINGS = {"train": "train", "dev": "dev", "test": "test-student"}


def load_tasks(params: DataParams, tasks: dict[str, Task]) -> SourceData:
    """Reads the course's files of each task from the folder `data.path`.

    Raises:
        UserError: if the folder, a train file or a column is missing, or the course has no such task.
    """
    folder = Path(params.path or "").expanduser()
    if not folder.is_dir():
        raise missing_path("data.path", params.path)
    data = SourceData({})
    for task in tasks.values():
        layout = _layout(task)
        data.tables[task.name] = {}
        for split, ending in ENDINGS.items():
            path = folder / f"{layout.prefix}-{ending}.csv"
            if path.is_file():
                data.tables[task.name][split], rejects = _read(path, layout, task, split)
                data.rejects += rejects
            elif split == "train":
                raise UserError(f"data.path: there is no file {path}, expected it for task {task.name}")
    return data


def load_corpus(params: DataParams, name: str, rows: int | None, skipped: Counter[str]) -> Iterator[str]:
    """The texts of an unlabelled corpus in the folder `data.corpora_path`."""
    return read_local_corpus(params.corpora_path, name, rows, skipped)


def _layout(task: Task) -> _Layout:
    layout = LAYOUTS.get(task.name)
    if layout is None or len(layout.texts) != len(task.text_columns):
        known = ", ".join(
            f"{name} ({'pair' if len(known.texts) == 2 else 'single'})" for name, known in LAYOUTS.items()
        )
        raise UserError(
            f"tasks.{task.name}: found a task of kind {task.kind}, but data.source cs224n has {known}; "
            f"rename it, or say where its rows are in tasks.{task.name}.data"
        )
    return layout


def _read(path: Path, layout: _Layout, task: Task, split: str) -> tuple[pd.DataFrame, list[Reject]]:
    columns = {"id": "id", **dict(zip(task.text_columns, layout.texts, strict=True)), "label": layout.label}
    return build_table(read_delimited(path, "\t"), columns, task, split, path.name, str(path))
