"""Sources of rows. Each source is a module with two functions:

    load_tasks(params: DataParams, tasks: dict[str, Task]) -> SourceData
    load_corpus(params: DataParams, name: str, rows: int | None, skipped: Counter[str]) -> Iterator[str]

`load_corpus` draws `rows` texts (None: all) of the unlabelled corpus `imdb`, `multinli` or `sick`; `files` and `hub`
read others too, see `DataParams.corpus_source`. A pair of sentences becomes one text. It counts rows without usable
text in `skipped`, by reason. A source may also have `corpus_facts(params, name) -> dict`, which describes the origin of
the corpus. `load_rows` combines the source's tasks with those that have their own `data` block.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pandas as pd

from bertrio.core.tasks import Task
from bertrio.data.table import Reject

if TYPE_CHECKING:
    from bertrio.config import Params


@dataclass
class SourceData:
    """Rows of a source: `tables` by task and split, the `rejects`, and JSON-able `facts` by task."""

    tables: dict[str, dict[str, pd.DataFrame]] = field(default_factory=dict)
    rejects: list[Reject] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def add(self, task: str, split: str, table: pd.DataFrame, rejects: list[Reject]) -> None:
        """Add the rows of one task and split."""
        self.tables.setdefault(task, {})[split] = table
        self.rejects += rejects


def get_source(name: str) -> ModuleType:
    """Import the module of source `name`, and with it the packages that only this source needs."""
    return importlib.import_module(f"{__name__}.{name}")


def load_rows(params: Params, tasks: dict[str, Task]) -> SourceData:
    """Load the rows of all tasks, from their own block `data` or else from `data.source`.

    Rows of `data.extra_train` and `data.unlabelled` are added as tables `extra_train` and `unlabelled-<name>`.

    Raises:
        UserError: if a source can't be read.
    """
    source_tasks = {name: tasks[name] for name in params.source_tasks}
    data = get_source(params.data.source).load_tasks(params.data, source_tasks) if source_tasks else SourceData()
    for name, task in tasks.items():
        block, place = params.tasks[name].data, f"tasks.{name}.data"
        if block is None:
            continue
        if block.hub is None:
            get_source("files").read_task(task, block, Path("."), place, data)
            data.facts[name] = {"files": {split: Path(path).name for split, path in block.files.items()}}
        else:
            get_source("hub").read_task(task, block.hub, f"{place}.hub", data)
    if params.data.extra_train or params.data.unlabelled:
        get_source("files").read_extra(params.data, tasks, data)
    return data
