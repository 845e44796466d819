"""Where rows come from. Each source is a module with two functions:

    load_tasks(params: DataParams, tasks: dict[str, Task]) -> SourceData
    load_corpus(params: DataParams, name: str, rows: int | None) -> Iterator[str]

`load_corpus` gives the first `rows` texts (None: all) of the unlabelled corpus `imdb`, `multinli` or `sick`, one at a
time; a pair of sentences becomes one text. A source may also have `corpus_facts(params, name) -> dict`, which says
where the corpus was found.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pandas as pd

from bertrio.data.table import Reject

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
