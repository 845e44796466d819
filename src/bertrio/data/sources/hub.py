"""Data sets on the Hugging Face hub, through `datasets`: plain data files only, for loading scripts are no longer run.

A revision is resolved to its commit first, and the data are loaded at exactly that commit, whose files are hashed. No
archive is unpacked: a data set that is one is refused.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd

from bertrio.config import DataParams, HubCorpus, HubTask
from bertrio.core.console import console
from bertrio.core.errors import UserError
from bertrio.core.tasks import Task
from bertrio.data.formats import RawRow, RawTable
from bertrio.data.reading import build_table, check_columns
from bertrio.data.sources import SourceData
from bertrio.data.sources.corpora import joined
from bertrio.data.table import SPLITS, Reject
from bertrio.model.names import sha256

Entry = HubTask | HubCorpus
TASKS = {  # presets, for tasks without a block in data.hub.tasks
    "sst": HubTask(
        id="SetFit/sst5",
        splits={"train": "train", "dev": "validation", "test": "test"},
        columns={"text": "text", "label": "label"},
    ),
    "qqp": HubTask(  # its test labels are hidden
        id="nyu-mll/glue",
        config="qqp",
        splits={"train": "train", "dev": "validation"},
        columns={"id": "idx", "text_a": "question1", "text_b": "question2", "label": "label"},
    ),
    "sts": HubTask(
        id="mteb/stsbenchmark-sts",
        splits={"train": "train", "dev": "validation", "test": "test"},
        columns={"text_a": "sentence1", "text_b": "sentence2", "label": "score"},
    ),
}
CORPORA = {  # presets, for corpora without a block in data.hub.corpora
    "imdb": HubCorpus(id="stanfordnlp/imdb", split="unsupervised", columns=["text"]),
    "multinli": HubCorpus(id="nyu-mll/multi_nli", split="train", columns=["premise", "hypothesis"]),
    "sick": HubCorpus(
        id="RobZamp/sick", revision="refs/convert/parquet", split="train", columns=["sentence_A", "sentence_B"]
    ),
}
PLAIN = (".parquet", ".arrow", ".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".txt")  # files that hold rows
PACKED = (".gz", ".bz2", ".xz", ".zst")  # of one file, which is read as it comes


def load_tasks(params: DataParams, tasks: dict[str, Task]) -> SourceData:
    """Loads the data sets of `data.hub.tasks`; facts hold the ids, revisions and resolved commits.

    Raises:
        UserError: if there is no network, or no such data set, revision, config, split or column, or it is an archive.
    """
    data = SourceData({})
    entries = {**TASKS, **params.hub.tasks}
    for name, task in tasks.items():
        if name not in entries:
            raise UserError(f"data.hub.tasks: found no block for task {name}; known data sets: {', '.join(TASKS)}")
        read_task(task, entries[name], f"data.hub.tasks.{name}", data)
    return data


def read_task(task: Task, entry: HubTask, place: str, data: SourceData) -> None:
    """Adds the rows of one task to `data`, those that can't be used, the facts and the digests of what was fetched.

    Args:
        task: what the rows belong to.
        entry: the data set.
        place: of the entry in params.yaml, for messages.
        data: what to add to.

    Raises:
        UserError: as `load_tasks`.
    """
    data.facts[task.name] = _facts(entry, place)
    data.tables[task.name] = {}
    builder = _builder(entry, place)
    for split in SPLITS:
        if split in entry.splits:
            data.tables[task.name][split], rejects = _load(builder, entry, task, split, place)
            data.rejects += rejects
    data.downloads[task.name] = _digests(builder, entry, place)


def load_corpus(params: DataParams, name: str, rows: int | None, skipped: Counter[str]) -> Iterator[str]:
    """The first `rows` texts of a corpus, streamed: rows behind them are not downloaded."""
    place = f"data.hub.corpora.{name}"
    entry = _corpus(params, name)
    data = _dataset(_builder(entry, place), entry, entry.split, place, streaming=True)
    return islice(_texts(data, entry, place, skipped), rows)


def _texts(rows: Iterable[dict[str, Any]], entry: HubCorpus, place: str, skipped: Counter[str]) -> Iterator[str]:
    for index, row in enumerate(_streamed(rows, entry, place)):
        if index == 0:
            check_columns(f"{place}: {entry.id}", row, entry.columns)
        yield from joined([row[column] for column in entry.columns], skipped)


def _streamed(rows: Iterable[dict[str, Any]], entry: Entry, place: str) -> Iterator[dict[str, Any]]:
    try:
        yield from rows
    except Exception as error:  # the network can break off at any row
        raise _failed(entry, place, error) from error


def corpus_facts(params: DataParams, name: str) -> dict[str, str]:
    """Which data set, revision and commit a corpus comes from."""
    return _facts(_corpus(params, name), f"data.hub.corpora.{name}")


def _corpus(params: DataParams, name: str) -> HubCorpus:
    """The data set of a corpus: its block in params, or else the preset."""
    own: Mapping[Any, HubCorpus] = params.hub.corpora
    return own[name] if name in own else CORPORA[name]


def _load(builder: Any, entry: HubTask, task: Task, split: str, place: str) -> tuple[pd.DataFrame, list[Reject]]:
    splits: Mapping[Any, str] = entry.splits
    name = splits[split]
    data = _dataset(builder, entry, name, f"{place}.splits.{split}")
    label, scale = entry.columns.get("label", "label"), entry.label_scale
    rows = (RawRow(number, _scaled(row, label, scale, task), row) for number, row in enumerate(data, start=1))
    found = RawTable(data.column_names, rows, len(data))
    return build_table(
        found, entry.columns, task, split, f"{entry.id}:{name}", f"{place}.columns: {entry.id}, split {name}"
    )


def _scaled(row: dict[str, Any], label: str, scale: float, task: Task) -> dict[str, Any]:
    """The row with its label, a number or a number as text, times `scale`.

    A -1 that stands for a hidden label stays as it is, and so does what is missing or no number.
    """
    if scale == 1:
        return row
    try:
        number = float(row[label])
    except (KeyError, TypeError, ValueError, OverflowError):
        return row
    hidden = number == -1 and task.target.label_problem(-1.0) is not None
    if hidden or not math.isfinite(number):
        return row
    return {**row, label: round(number * scale, 6)}  # 0.07 * 100 is 7, not 7.000000000000001


def _facts(entry: Entry, place: str) -> dict[str, str]:
    facts = {"id": entry.id, "config": entry.config, "revision": entry.revision, "commit": _commit(entry, place)}
    return {key: value for key, value in facts.items() if value is not None}


def _commit(entry: Entry, place: str) -> str:
    try:
        return _resolve(entry.id, entry.revision)
    except Exception as error:  # each version of the client has its own kinds of errors for the same few causes
        raise _failed(entry, place, error) from error


@lru_cache
def _resolve(name: str, revision: str | None) -> str:
    from huggingface_hub import HfApi

    return HfApi().dataset_info(name, revision=revision).sha  # type: ignore[return-value]  # None if left out by `expand`


def _builder(entry: Entry, place: str) -> Any:
    """What loads a data set at its resolved commit, from plain files of its repository alone."""
    commit = _commit(entry, place)
    import datasets

    if not console.is_terminal:
        datasets.disable_progress_bars()
    try:
        builder = datasets.load_dataset_builder(entry.id, entry.config, revision=commit)
        names = _names(builder, entry, commit)
    except Exception as error:  # unknown config, files that are no data, a network that breaks off
        raise _failed(entry, place, error) from error
    for name in names:
        endings = [ending.lower() for ending in Path(name).suffixes]
        plain = endings[:-1] if endings[-1:] and endings[-1] in PACKED else endings
        if not plain or plain[-1] not in PLAIN:
            raise UserError(
                f"{place}: {entry.id} has its rows in {name}, expected files that end in {', '.join(PLAIN)}; archives "
                "are never unpacked. Try its revision refs/convert/parquet, or give the rows as data.source=files"
            )
    return builder


def _names(builder: Any, entry: Entry, commit: str) -> list[str]:
    """Names of the data files in the repository.

    Raises:
        ValueError: if one lies elsewhere: in a local folder that is called like the data set, or at another commit,
            which `datasets` falls back to when a network breaks off.
    """
    start = f"hf://datasets/{entry.id}@{commit}/"
    files = [str(file) for of_split in (builder.config.data_files or {}).values() for file in of_split]
    other = next((file for file in files if not file.startswith(start)), None)
    if other or not files:
        raise ValueError(f"its files are {other or 'not known'}, expected them at {start}")
    return sorted({file.removeprefix(start) for file in files})


def _digests(builder: Any, entry: Entry, place: str) -> dict[str, str]:
    """The SHA-256 of each file that was fetched, by its name in the repository."""
    from huggingface_hub import hf_hub_download

    commit = _commit(entry, place)
    try:
        return {
            name: sha256(Path(hf_hub_download(entry.id, name, repo_type="dataset", revision=commit)))
            for name in _names(builder, entry, commit)
        }
    except Exception as error:  # the files were fetched before, but their cache can have been emptied
        raise _failed(entry, place, error) from error


def _dataset(builder: Any, entry: Entry, split: str, place: str, streaming: bool = False) -> Any:
    """A split of a data set: a `Dataset`, or an `IterableDataset` if `streaming`."""
    try:
        if streaming:
            return builder.as_streaming_dataset(split=split)
        builder.download_and_prepare()
        return builder.as_dataset(split=split)
    except Exception as error:  # unknown split, files that are no data, a network that breaks off
        raise _failed(entry, place, error) from error


def _failed(entry: Entry, place: str, error: Exception) -> UserError:
    config = f", config {entry.config}" if entry.config else ""
    cause = " ".join(str(error).split())[:500]
    return UserError(
        f"{place}: can't load {entry.id}{config}, revision {entry.revision or 'newest'}, from the hub "
        f"({type(error).__name__}: {cause}). Check the id, the revision and the network; without one, download the "
        "data elsewhere and use data.source=files, or data.source=cs224n with the course's folder"
    )
