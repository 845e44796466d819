"""Sources of rows. Each source is a module with two functions:

    load_tasks(params: DataParams, tasks: dict[str, Task]) -> SourceData
    load_corpus(params: DataParams, name: str, rows: int, skipped: Counter[str]) -> Iterator[str]

`load_corpus` draws at most `rows` texts of the unlabelled corpus `imdb`, `multinli` or `sick`; `files` and `hub` read
others too, see `DataParams.corpus_source`. A pair of sentences becomes one text. It counts rows without usable text in
`skipped`, by reason. A source may also have `corpus_facts(params, name) -> dict`, which describes the origin of the
corpus. `load_rows` combines the source's tasks with those that have their own `data` block.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pandas as pd

from bertrio.core.errors import UserError
from bertrio.core.tasks import Task
from bertrio.data.table import EXTRA, SPLITS, Reject

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


def check_kind(task: Task, kinds: Mapping[str, str], source: str) -> None:
    """Check that `source` has a task of this name and kind; `kinds` are those of its tasks.

    Raises:
        UserError: if it has not.
    """
    if kinds.get(task.name) != task.kind:
        known = ", ".join(f"{name} ({kind})" for name, kind in kinds.items())
        raise UserError(
            f"tasks.{task.name}: found a task of kind {task.kind}, but data.source {source} has {known}; "
            f"rename it, or say where its rows are in tasks.{task.name}.data"
        )


def load_rows(params: Params, tasks: dict[str, Task]) -> SourceData:
    """Load the rows of all tasks, from their own block `data` or else from `data.source`.

    Rows of `data.extra_train` and `data.unlabelled` are added as tables `extra_train` and `unlabelled-<name>`. Tasks of
    the same files (`Params.same_rows`) get the same rows, those with a label for one of them.

    Raises:
        UserError: if a source can't be read.
    """
    same = params.same_rows
    tasks = {name: replace(task, partial=name in same) for name, task in tasks.items()}
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
    for name in same.keys() & params.data.extra_train.keys():  # labels of the other rows may be missing
        if EXTRA in data.tables[name]:
            data.tables[name][EXTRA] = data.tables[name][EXTRA].dropna(subset="label", ignore_index=True)
    for first in dict.fromkeys(same.values()):
        _align(data, [name for name in same if same[name] == first])
    return data


def _align(data: SourceData, tasks: Sequence[str]) -> None:
    """Give all tasks the rows that any of them has a label for; where no row of a split has one, all rows."""
    for split in [split for split in SPLITS if split in data.tables[tasks[0]]]:
        tables = [data.tables[task][split] for task in tasks]
        rows = pd.concat(tables, ignore_index=True)
        labelled = rows.loc[rows["label"].notna(), "id"]
        rows = rows[rows["id"].isin(labelled) | labelled.empty].drop_duplicates("id", ignore_index=True)
        for task, table in zip(tasks, tables):
            labels = rows["id"].map(table.set_index("id")["label"])
            data.tables[task][split] = rows.assign(label=labels.astype("float64"))
