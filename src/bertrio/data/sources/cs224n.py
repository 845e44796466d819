"""The folder of data files that the course CS 224N hands out.

Files are tab-separated, with standard quoting and one or two index columns without a name, which are ignored. Test
files have no labels. Only the train file of each task is required here; `data.split` may require more.
"""

from __future__ import annotations

from pathlib import Path

from bertrio.config import DataParams
from bertrio.core.errors import UserError, missing_path
from bertrio.core.tasks import Task
from bertrio.data.formats import read_delimited
from bertrio.data.reading import build_table
from bertrio.data.sources import SourceData
from bertrio.data.sources.corpora import load_corpus as load_corpus

SINGLE = {"id": "id", "text": "sentence", "label": "sentiment"}
PAIR = {"id": "id", "text_a": "sentence1", "text_b": "sentence2"}
LAYOUTS = {  # prefix of the file names, and columns
    "sst": ("ids-sst", SINGLE),
    "qqp": ("quora", {**PAIR, "label": "is_duplicate"}),
    "sts": ("sts", {**PAIR, "label": "similarity"}),
    "cfimdb": ("ids-cfimdb", SINGLE),
}
ENDINGS = {"train": "train", "dev": "dev", "test": "test-student"}


def load_tasks(params: DataParams, tasks: dict[str, Task]) -> SourceData:
    """Read the course's files of each task from the folder `data.path`.

    Raises:
        UserError: if the folder, a train file or a column is missing, or the course has no such task.
    """
    folder = Path(params.path or "").expanduser()
    if not folder.is_dir():
        raise missing_path("data.path", params.path)
    data = SourceData()
    for task in tasks.values():
        prefix, columns = _layout(task)
        for split, ending in ENDINGS.items():
            path = folder / f"{prefix}-{ending}.csv"
            if path.is_file():
                rows = read_delimited(path, "\t")
                data.add(task.name, split, *build_table(rows, columns, task, split, path.name, str(path)))
            elif split == "train":
                raise UserError(f"data.path: there is no file {path}, expected it for task {task.name}")
    return data


def _layout(task: Task) -> tuple[str, dict[str, str]]:
    prefix, columns = LAYOUTS.get(task.name, ("", {}))
    if not set(task.text_columns) <= set(columns):
        known = ", ".join(f"{name} ({'single' if 'text' in names else 'pair'})" for name, (_, names) in LAYOUTS.items())
        raise UserError(
            f"tasks.{task.name}: found a task of kind {task.kind}, but data.source cs224n has {known}; "
            f"rename it, or say where its rows are in tasks.{task.name}.data"
        )
    return prefix, columns
