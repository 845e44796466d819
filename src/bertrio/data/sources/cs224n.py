"""The folder of data files that the course CS 224N hands out.

Files are tab-separated, with standard quoting and one or two index columns without a name, which are ignored. Test
files have no labels. Only the train file of each task is required here; `data.split` may require more.
"""

from __future__ import annotations

from pathlib import Path

from bertrio.config import DataParams
from bertrio.core.errors import UserError
from bertrio.core.tasks import Task
from bertrio.data.formats import read_delimited
from bertrio.data.reading import build_table
from bertrio.data.sources import SourceData, check_kind
from bertrio.data.sources.corpora import load_corpus as load_corpus

SINGLE = {"id": "id", "text": "sentence", "label": "sentiment"}
PAIR = {"id": "id", "text_a": "sentence1", "text_b": "sentence2"}
LAYOUTS = {  # prefix of the file names, and columns
    "sst": ("ids-sst", SINGLE),
    "qqp": ("quora", {**PAIR, "label": "is_duplicate"}),
    "sts": ("sts", {**PAIR, "label": "similarity"}),
    "cfimdb": ("ids-cfimdb", SINGLE),
}
KINDS = {name: "single" if columns is SINGLE else "pair" for name, (_, columns) in LAYOUTS.items()}
ENDINGS = {"train": "train", "dev": "dev", "test": "test-student"}


def load_tasks(params: DataParams, tasks: dict[str, Task]) -> SourceData:
    """Read the course's files of each task from the folder `data.path`.

    Raises:
        UserError: if a train file or a column is missing, or the course has no such task.
    """
    folder, data = Path(params.path or "").expanduser(), SourceData()
    for task in tasks.values():
        check_kind(task, KINDS, "cs224n")
        prefix, columns = LAYOUTS[task.name]
        for split, ending in ENDINGS.items():
            path = folder / f"{prefix}-{ending}.csv"
            if path.is_file():
                rows = read_delimited(path, "\t")
                data.add(task.name, split, *build_table(rows, columns, task, split, path.name, str(path)))
            elif split == "train":
                raise UserError(f"data.path: there is no file {path}, expected it for task {task.name}")
    return data
