"""Data sets on the Hugging Face hub, through `datasets`, which runs no loading scripts.

A revision is first resolved to its commit, and the data are loaded at that commit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from itertools import count, islice
from pathlib import Path
from typing import Any

from bertrio.config import read_yaml
from bertrio.config.data import DataParams, HubCorpus, HubParams, HubSource, HubTask
from bertrio.core.console import console
from bertrio.core.errors import UserError
from bertrio.core.tasks import Task
from bertrio.data.formats import RawRow, RawTable
from bertrio.data.reading import build_table, check_columns
from bertrio.data.sources import SourceData
from bertrio.data.sources.corpora import SEED, join_texts
from bertrio.data.table import SPLITS
from bertrio.model.names import loading

BUFFER = 10_000  # rows
PRESETS = HubParams.model_validate(read_yaml(Path(__file__).with_suffix(".yaml")))


def load_tasks(params: DataParams, tasks: dict[str, Task]) -> SourceData:
    """Load the data sets of `data.hub.tasks`; facts hold the ids, revisions and resolved commits.

    Raises:
        UserError: if there is no network, or no such data set, revision, config, split or column.
    """
    data = SourceData()
    entries = {**PRESETS.tasks, **params.hub.tasks}
    for name, task in tasks.items():
        if name not in entries:
            raise UserError(
                f"data.hub.tasks: found no block for task {name}; known data sets: {', '.join(PRESETS.tasks)}"
            )
        read_task(task, entries[name], f"data.hub.tasks.{name}", data)
    return data


def read_task(task: Task, entry: HubTask, place: str, data: SourceData) -> None:
    """Add the rows of one task, the rejected rows and the facts to `data`.

    Args:
        task: task of the rows.
        entry: the data set.
        place: name of the entry in params.yaml, for messages.
        data: the collection that is extended.

    Raises:
        UserError: as in `load_tasks`.
    """
    data.facts[task.name] = _facts(entry, place)
    for split, name in sorted(entry.splits.items(), key=lambda part: SPLITS.index(part[0])):
        dataset = _dataset(entry, name, f"{place}.splits.{split}")
        table = RawTable(dataset.column_names, partial(_rows, dataset))
        columns = f"{place}.columns: {entry.id}, split {name}"
        data.add(task.name, split, *build_table(table, entry.columns, task, split, f"{entry.id}:{name}", columns))


def _rows(dataset: Any) -> Iterator[RawRow]:
    yield from map(RawRow, count(1), dataset)


def load_corpus(params: DataParams, name: str, rows: int, skipped: Counter[str]) -> Iterator[str]:
    """Yield at most `rows` texts of a corpus, drawn from a buffer of `BUFFER` while it is streamed."""
    return islice(_texts(_corpus(params, name), f"data.hub.corpora.{name}", skipped), rows)


def _texts(entry: HubCorpus, place: str, skipped: Counter[str]) -> Iterator[str]:
    dataset = _dataset(entry, entry.split, place, streaming=True).shuffle(SEED, buffer_size=BUFFER)
    with _loading(entry, place):  # the connection can fail at any row
        for index, row in enumerate(dataset):
            if index == 0:
                check_columns(f"{place}: {entry.id}", row, entry.columns)
            yield from join_texts([row[column] for column in entry.columns], skipped)


def corpus_facts(params: DataParams, name: str) -> dict[str, str]:
    """Return the data set, revision and commit of a corpus."""
    return _facts(_corpus(params, name), f"data.hub.corpora.{name}")


def _corpus(params: DataParams, name: str) -> HubCorpus:
    """Return the data set of a corpus, from params or else the preset."""
    return {**PRESETS.corpora, **params.hub.corpora}[name]


def _facts(entry: HubSource, place: str) -> dict[str, str]:
    with _loading(entry, place):
        commit = _commit(entry.id, entry.revision)
    facts = {"id": entry.id, "config": entry.config, "revision": entry.revision, "commit": commit}
    return {key: value for key, value in facts.items() if value is not None}


@lru_cache
def _commit(name: str, revision: str | None) -> str:
    from huggingface_hub import HfApi

    return HfApi().dataset_info(name, revision=revision).sha  # type: ignore[return-value]  # None if left out by `expand`


def _dataset(entry: HubSource, split: str, place: str, streaming: bool = False) -> Any:
    """Load a split at the resolved commit: a `Dataset`, or an `IterableDataset` if `streaming`."""
    with _loading(entry, place):
        import datasets

        if not console.is_terminal:
            datasets.disable_progress_bars()
        if Path(entry.id).exists():  # `datasets` would read the folder instead
            raise FileExistsError(f"there is a local folder {entry.id}, rename it")
        commit = _commit(entry.id, entry.revision)
        builder = datasets.load_dataset_builder(entry.id, entry.config, revision=commit)
        if builder.hash != commit:  # after any error `datasets` takes the newest of its cache
            raise ConnectionError(f"commit {commit} can't be loaded, and the cache has {builder.hash}")
        if streaming:
            return builder.as_streaming_dataset(split)
        builder.download_and_prepare()
        return builder.as_dataset(split)


def _loading(entry: HubSource, place: str) -> AbstractContextManager[None]:
    """Turn failures of the hub, its client and the network into messages that name the data set."""
    config = f", config {entry.config}" if entry.config else ""
    hint = (
        "check the id, the revision and the network; without one, download the data elsewhere and use "
        "data.source=files, or data.source=cs224n with the course's folder"
    )
    return loading(f"{place}: {entry.id}{config}, revision {entry.revision or 'newest'}, on the hub", hint)
