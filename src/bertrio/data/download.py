"""The stage `download`: rows of the source in the common layout, and the rejected rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from bertrio.config import DataParams, Params, build_tasks
from bertrio.core.console import say
from bertrio.core.errors import UserError
from bertrio.core.files import whole_folder, write_csv, write_json
from bertrio.core.tasks import Task
from bertrio.data.reading import track
from bertrio.data.sources import SourceData, get_source, load_rows
from bertrio.data.table import EXTRA, SPLITS, Reject, is_labelled, write_table


def download(
    params: Params,
    raw: str | Path = "data/raw",
    rejects: str | Path = "data/rejects",
    corpora: str | Path = "data/corpora",
) -> None:
    """Write the rows of all tasks, see `load_rows`. Each of the three folders is replaced atomically.

    Args:
        params: all params; `data`, `tasks`, `mlm.enabled` and `mlm.rows` are read.
        raw: folder for <task>/<split>.parquet, and facts.json with the source, its facts, counts of rejects, files of
            extra rows, corpora and their skipped rows.
        rejects: folder for <task>.csv, which has only the header if no row is rejected.
        corpora: folder for <name>.parquet if `mlm.enabled`, and rows.json with the rows of each corpus. The file also
            keeps DVC from warning of an empty folder.

    Raises:
        UserError: if the source can't be read, or more than `data.max_reject_fraction` of a file's rows are
            rejected; data/rejects is written in that case too.
    """
    tasks = build_tasks(params)
    data = load_rows(params, tasks)
    rejected = {task: [reject for reject in data.rejects if reject.task == task] for task in tasks}
    with whole_folder(rejects) as new:
        for task, rows in rejected.items():
            write_rejects(new / f"{task}.csv", rows)
    for task, rows in rejected.items():
        say(_summary(task, data.tables[task], rows, Path(rejects)))
    _check_fractions(data, tasks, params.data.max_reject_fraction, Path(rejects))
    with whole_folder(raw) as new_raw, whole_folder(corpora) as new_corpora:
        for task in tasks:
            for split, table in data.tables[task].items():
                write_table(table, new_raw / task / f"{split}.parquet")
        facts: dict[str, Any] = {"source": params.data.source, "origin": data.facts}
        facts["rejects"] = {task: _reject_counts(rows) for task, rows in rejected.items()}
        if extra := {name: Path(block.train).name for name, block in params.data.extra_train.items() if block.train}:
            facts["extra_train"] = extra
        if params.mlm.enabled:
            facts["corpora"] = _write_corpora(params.data, params.mlm.rows, new_corpora)
        write_json(new_raw / "facts.json", facts)
        counts = {name: corpus["rows"] for name, corpus in facts.get("corpora", {}).items()}
        write_json(new_corpora / "rows.json", counts)


def write_rejects(path: Path, rejects: Sequence[Reject]) -> None:
    """Write rejected rows as CSV."""
    write_csv(pd.DataFrame(rejects, columns=Reject._fields), path, quoted=True)


def _reject_counts(rejects: Sequence[Reject]) -> dict[str, Any]:
    """Count rejected rows: `total`, and by split and reason (such as `missing_label`)."""
    splits = dict.fromkeys((*SPLITS, EXTRA, *(reject.split for reject in rejects)))
    reasons = {split: _reasons(reject for reject in rejects if reject.split == split) for split in splits}
    counts = {split: _keys(counted) for split, counted in reasons.items() if counted}
    return {"total": len(rejects), **counts}


def _reasons(rejects: Iterable[Reject]) -> Counter[str]:
    return Counter(reject.reason for reject in rejects)


def _keys(reasons: Counter[str]) -> dict[str, int]:
    """Return counts by reason, with underscores for spaces."""
    return {reason.replace(" ", "_"): count for reason, count in sorted(reasons.items())}


def _listed(reasons: Counter[str]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))


def _summary(task: str, tables: Mapping[str, pd.DataFrame], rejects: Sequence[Reject], folder: Path) -> str:
    splits = tables.items()
    read = ", ".join(f"{len(table)} {split}{'' if is_labelled(table) else ' (no labels)'}" for split, table in splits)
    if not rejects:
        return f"{task}: read {read} rows; none rejected"
    return f"{task}: read {read} rows; rejected {len(rejects)} ({_listed(_reasons(rejects))}), see {folder / task}.csv"


def _check_fractions(data: SourceData, tasks: dict[str, Task], max_fraction: float, folder: Path) -> None:
    problems, advice = [], ""
    for task, tables in data.tables.items():
        for split, table in tables.items():
            rejects = [reject for reject in data.rejects if (reject.task, reject.split) == (task, split)]
            total = len(rejects) + len(table)
            if len(rejects) > max_fraction * total:
                reasons = _reasons(rejects)
                problems.append(
                    f"{task}: {rejects[0].file}: {len(rejects)} of {total} rows can't be used ({_listed(reasons)}); "
                    f"they stand in {folder / task}.csv"
                )
                if tasks[task].target.discrete and reasons.keys() & {"unknown label", "label is not a number"}:
                    classes = ", ".join(tasks[task].target.labels) or "none"
                    advice = f"tasks.{task}.classes names the classes, in the order of their numbers: {classes}. "
    if problems:
        limit = f"At most {max_fraction:.2%} may be rejected: fix the files, or raise data.max_reject_fraction"
        raise UserError("\n".join([*problems, advice + limit]))


def _write_corpora(params: DataParams, rows: Mapping[str, int], folder: Path) -> dict[str, dict[str, Any]]:
    facts: dict[str, dict[str, Any]] = {}
    for name, wanted in rows.items():
        if not wanted:
            continue
        source = get_source(params.corpus_source(name))
        skipped = Counter[str]()
        texts = list(track(source.load_corpus(params, name, wanted, skipped), f"reading {name}", wanted))
        write_table(pd.DataFrame({"text": texts}), folder / f"{name}.parquet")
        fewer = f", all there are; mlm.rows.{name} asks for {wanted}" if len(texts) < wanted else ""
        unused = f"; skipped {skipped.total()} rows ({_listed(skipped)})" if skipped else ""
        say(f"{name}: read {len(texts)} texts{fewer}{unused}")
        origin = source.corpus_facts(params, name) if hasattr(source, "corpus_facts") else {}
        facts[name] = {"rows": len(texts), **({"skipped": _keys(skipped)} if skipped else {}), **origin}
    return facts
