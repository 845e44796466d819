"""The stage `download`: rows from the source, in the one layout, and what could not be used of them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from bertrio.config import DataParams, MlmRows, Params, build_tasks
from bertrio.core.console import say
from bertrio.core.errors import UserError
from bertrio.core.files import whole_folder, write_csv, write_json
from bertrio.core.tasks import Task
from bertrio.data.sources import SourceData, get_source, load_rows
from bertrio.data.sources.corpora import write_corpus
from bertrio.data.table import EXTRA, SPLITS, Reject, is_labelled, write_table

REJECT_COLUMNS = ("task", "split", "file", "row", "reason", "raw")


def download(
    params: Params,
    raw: str | Path = "data/raw",
    rejects: str | Path = "data/rejects",
    corpora: str | Path = "data/corpora",
) -> None:
    """Writes the rows of all tasks, see `load_rows`; the three folders are made anew, each whole or not at all.

    Args:
        params: all params; `data`, `tasks`, `mlm.enabled` and `mlm.rows` are read.
        raw: gets <task>/<split>.parquet, and facts.json with the source, its facts, counts of rejects, files with more
            rows, corpora and what was skipped in them, and the SHA-256 of files that were fetched from a network.
        rejects: gets <task>.csv, with no more than the header if there are none.
        corpora: gets <name>.parquet if `mlm.enabled`, and rows.json with how many rows there are of each, so that
            the folder is never empty, of which DVC would warn.

    Raises:
        UserError: if the source can't be read, or more than `data.max_reject_fraction` of a file's rows are
            rejected; data/rejects is written by then.
    """
    tasks = build_tasks(params)
    data = load_rows(params, tasks)
    with whole_folder(rejects) as new:
        for task in tasks:
            write_rejects(new / f"{task}.csv", [reject for reject in data.rejects if reject.task == task])
    for task in tasks:
        say(_summary(task, data, Path(rejects)))
    _check_fractions(data, tasks, params.data.max_reject_fraction, Path(rejects))
    with whole_folder(raw) as new_raw, whole_folder(corpora) as new_corpora:
        for task in tasks:
            for split, table in data.tables[task].items():
                write_table(table, new_raw / task / f"{split}.parquet")
        facts: dict[str, Any] = {"source": params.data.source, "origin": data.facts}
        facts["rejects"] = count_rejects(data.rejects, list(tasks))
        if params.data.extra_train:
            facts["extra_train"] = {name: Path(block.train).name for name, block in params.data.extra_train.items()}
        if data.downloads:
            facts["downloads"] = data.downloads
        if params.mlm.enabled:
            facts["corpora"] = _write_corpora(params.data, params.mlm.rows, new_corpora)
        write_json(new_raw / "facts.json", facts)
        write_json(new_corpora / "rows.json", {name: own["rows"] for name, own in facts.get("corpora", {}).items()})


def write_rejects(path: Path, rejects: Sequence[Reject]) -> None:
    """Write rejected rows as CSV, one a row."""
    write_csv(pd.DataFrame(rejects, columns=REJECT_COLUMNS), path, quoted=True)


def count_rejects(rejects: Sequence[Reject], tasks: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Count rejected rows by task: `total`, and by split of the source and reason (`missing_label`)."""
    counted: dict[str, dict[str, Any]] = {}
    for task in tasks:
        of_task = [reject for reject in rejects if reject.task == task]
        counted[task] = {"total": len(of_task)}
        for split in (*SPLITS, EXTRA):
            if reasons := Counter(reject.reason for reject in of_task if reject.split == split):
                counted[task][split] = _counted(reasons)
    return counted


def _counted(reasons: Counter[str]) -> dict[str, int]:
    """Counts by reason, the names as keys of JSON."""
    return {reason.replace(" ", "_"): count for reason, count in sorted(reasons.items())}


def _summary(task: str, data: SourceData, folder: Path) -> str:
    splits = data.tables[task].items()
    read = ", ".join(f"{len(table)} {split}{'' if is_labelled(table) else ' (no labels)'}" for split, table in splits)
    reasons = Counter(reject.reason for reject in data.rejects if reject.task == task)
    if not reasons:
        return f"{task}: read {read} rows; none rejected"
    return f"{task}: read {read} rows; rejected {reasons.total()} ({_listed(reasons)}), see {folder / task}.csv"


def _listed(reasons: Counter[str]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))


def _check_fractions(data: SourceData, tasks: dict[str, Task], most: float, folder: Path) -> None:
    problems, advice = [], ""
    for task, tables in data.tables.items():
        for split, table in tables.items():
            rejects = [reject for reject in data.rejects if (reject.task, reject.split) == (task, split)]
            total = len(rejects) + len(table)
            if len(rejects) > most * total:
                problems.append(
                    f"{task}: {rejects[0].file}: {len(rejects)} of {total} rows can't be used "
                    f"({_listed(Counter(reject.reason for reject in rejects))}); they stand in {folder / task}.csv"
                )
                advice = advice or _of_labels(tasks[task], {reject.reason for reject in rejects})
    if problems:
        most_of_all = f"At most {most:.2%} may be rejected: mend the files, or raise data.max_reject_fraction"
        raise UserError("\n".join([*problems, advice + most_of_all]))


def _of_labels(task: Task, reasons: set[str]) -> str:
    """What may be wrong where it is labels that can't be used."""
    place = f"tasks.{task.name}.labels"
    if "unknown label" in reasons:
        return f"{place} names the classes {', '.join(task.target.labels)}. "
    if "label is not a number" in reasons and task.target.discrete:
        return f"Where labels are words, {place} says which they are, in the order of their numbers. "
    return ""


def _write_corpora(params: DataParams, rows: MlmRows, folder: Path) -> dict[str, dict[str, Any]]:
    source = get_source(params.source)
    where = getattr(source, "corpus_facts", None)
    facts: dict[str, dict[str, Any]] = {}
    for name, wanted in rows:
        if wanted == 0:
            continue
        origin, digest, skipped = where(params, name) if where else {}, hashlib.sha256(), Counter[str]()
        texts = _hashed(source.load_corpus(params, name, wanted, skipped), digest)
        found = write_corpus(texts, folder / f"{name}.parquet", f"reading {name}", wanted)
        fewer = f", all there are; mlm.rows.{name} asks for {wanted}" if found < wanted else ""
        told = f"; skipped {skipped.total()} rows ({_listed(skipped)})" if skipped else ""
        say(f"{name}: read {found} texts{fewer}{told}")
        # of a stream no file is ever here whole, so its texts stand for it
        stands_for = {"sha256_of_texts": digest.hexdigest()} if where else {}
        unused = {"skipped": _counted(skipped)} if skipped else {}
        facts[name] = {"rows": found, **unused, **origin, **stands_for}
    return facts


def _hashed(texts: Iterable[str], digest: hashlib._Hash) -> Iterator[str]:
    """The same texts, while `digest` takes each as UTF-8 with a line end."""
    for text in texts:
        digest.update(f"{text}\n".encode())
        yield text
