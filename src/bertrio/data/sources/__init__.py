"""Where rows come from. Each source is a module with two functions:

    load_tasks(params: DataParams, tasks: dict[str, Task]) -> SourceData
    load_corpus(params: DataParams, name: str, rows: int | None, skipped: Counter[str]) -> Iterator[str]

`load_corpus` gives the first `rows` texts (None: all) of the unlabelled corpus `imdb`, `multinli` or `sick`, one at a
time; a pair of sentences becomes one text. Rows on the way that give no text are counted in `skipped`, by reason. A
source may also have `corpus_facts(params, name) -> dict`, which says where the corpus was found. `load_rows` puts
them together with the tasks that say themselves where their rows are.
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

SOURCES = {
    "sample": "bertrio.data.sources.sample",
    "cs224n": "bertrio.data.sources.cs224n",
    "files": "bertrio.data.sources.files",
    "hub": "bertrio.data.sources.hub",
}


@dataclass
class SourceData:
    """What a source found: `tables` by task and split, the `rejects`, JSON-able `facts` by task, and what it fetched
    from a network: by task the SHA-256 of each file.
    """

    tables: dict[str, dict[str, pd.DataFrame]]
    rejects: list[Reject] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    downloads: dict[str, dict[str, str]] = field(default_factory=dict)


def get_source(name: str) -> ModuleType:
    """The module of source `name`; what it needs is imported only now."""
    return importlib.import_module(SOURCES[name])


def load_rows(params: Params, tasks: dict[str, Task]) -> SourceData:
    """The rows of all tasks: of those with a block `data` of their own from there, of all others from `data.source`.

    Those of `data.extra_train` stand beside them, as a table called `extra_train`.

    Raises:
        UserError: if a source can't be read.
    """
    of_source = {name: tasks[name] for name in params.of_source}
    data = get_source(params.data.source).load_tasks(params.data, of_source) if of_source else SourceData({})
    for name, task in tasks.items():
        own, place = params.tasks[name].data, f"tasks.{name}.data"
        if own is None:
            continue
        if own.hub is None:
            get_source("files").read_task(task, own, Path("."), place, data)
            data.facts[name] = {"files": {split: Path(path).name for split, path in own.files.items()}}
        else:
            get_source("hub").read_task(task, own.hub, f"{place}.hub", data)
    for name, block in params.data.extra_train.items():
        get_source("files").read_extra(tasks[name], block, params.data.base, data)
    return data
