"""Digests of the inputs outside the repository, as small files that DVC can track.

DVC can't depend on a path that is only optionally named in a param, and does not notice a param that no stage lists.
So the first stage runs every time: it checks all of params.yaml and writes digests of the external files. Each later
stage depends on the digests that concern it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from bertrio.config import Params, TaskParams, load_params, member_params
from bertrio.config.data import TaskData
from bertrio.core.errors import UserError, missing_path
from bertrio.core.files import write_json
from bertrio.model.names import FILES, local_folder, sha256


def check_inputs(params_path: str | Path = "params.yaml", folder: str | Path = "data/inputs") -> Params:
    """Check params.yaml, members included, and write the digests.

    - source.json, corpora.json: the files of `data.path` and `data.corpora_path`, for sources that read them.
      source.json also has the blocks and files of tasks with their own `data`, and the files of `data.extra_train` and
      `data.unlabelled`.
    - encoder.json: the files of a local encoder folder.
    - challenges.json: the files of `evaluate.challenges`, by challenge.
    - tasks.json: the options of each task that data stages need, so that a new loss does not run them again.
    - order.json: the order of the tasks and of `schedule.first`, in which heads are drawn and trained. DVC ignores the
      order of keys in params.
    - members.json: the order of the ensemble's members.
    - prefinetune.json: the digest of the params of the task that `prefinetune` trains; empty while that is off.
    - sampling.json: how many rows of `data.extra_train` and `data.unlabelled` training draws.
    - teacher.json: the files of `distill.teacher`, and whether its vectors are needed; empty if no member distills.

    Raises:
        UserError: for errors in params.yaml, and for missing files and folders.
    """
    params = load_params(params_path)
    encoder = local_folder(params.encoder.name)
    written = {
        "source": _source_digest(params),
        "corpora": _corpora_digest(params),
        "encoder": _folder_digests("encoder.name", str(encoder), *FILES) if encoder else {},
        "challenges": {
            name: _file_digest(f"evaluate.challenges.{name}.path", challenge.path)
            for name, challenge in params.evaluate.challenges.items()
        },
        "tasks": {name: _data_options(task, params.same_rows.get(name)) for name, task in params.tasks.items()},
        "order": _order(params),
        "members": list(params.ensemble.members),
        "prefinetune": {task: _digest(params.tasks[task]) for task in params.pretrains},
        "sampling": _sampling(params),
        "teacher": _teacher_digest(params, Path(params_path).parent / "models"),
    }
    for name, value in written.items():
        write_json(Path(folder) / f"{name}.json", value, digits=None)
    return params


def _digest(task: TaskParams) -> str:
    """Return the SHA-256 of a task's params, which may hold paths and, unlike JSON, infinity."""
    return hashlib.sha256(repr(task.model_dump()).encode()).hexdigest()


def _data_options(task: TaskParams, rows: str | None) -> dict[str, Any]:
    split = task.data and task.data.split
    options = {key: getattr(task, key) for key in ("kind", "target", "classes", "range")}
    return options | ({"split": split.model_dump()} if split else {}) | ({"rows": rows} if rows else {})


def _order(params: Params) -> dict[str, Any]:
    """Return the order of tasks, and that of `schedule.first` wherever it names two or more.

    All members depend on this file: if the order of one member changes, all of them train again.
    """
    firsts = {prefix: list(view.schedule.first) for prefix, view in _views(params).items()}
    orders = {key: order for key, order in firsts.items() if len(order) > 1 and (not key or order != firsts[""])}
    return {"tasks": list(params.tasks), **({"schedule.first": orders} if orders else {})}


def _views(params: Params) -> dict[str, Params]:
    """Return the shared params and those of each member, by their prefix in params.yaml ("" for the shared ones)."""
    members = {f"ensemble.members.{name}.": member_params(params, name) for name in params.ensemble.members}
    return {"": params, **members}


def _source_digest(params: Params) -> dict[str, Any]:
    data = params.data
    digests: dict[str, Any] = {}
    if params.source_tasks and data.source == "cs224n":
        digests |= _folder_digests("data.path", data.path, "*.csv")
    elif params.source_tasks and data.source == "files":
        paths = [path for name in params.source_tasks for path in data.files[name].files.values()]
        digests |= {path: _file_digest("data.files", path, data.base) for path in paths}
    more = {
        "tasks": {name: _task_digest(name, task.data) for name, task in params.tasks.items() if task.data is not None},
        "extra_train": {
            name: _file_digest(f"data.extra_train.{name}.train", block.train, data.base)
            for name, block in data.extra_train.items()
            if block.train
        },
        "unlabelled": {
            name: _file_digest(f"data.unlabelled.{name}.path", block.path, data.base)
            for name, block in data.unlabelled.items()
        },
    }
    return digests | {name: part for name, part in more.items() if part}


def _task_digest(name: str, data: TaskData) -> dict[str, Any]:
    """Digest a task's own block `data`: its options, and names and SHA-256 of its files."""
    files = {
        split: {Path(path).name: _file_digest(f"tasks.{name}.data.{split}", path)} for split, path in data.files.items()
    }
    return {"columns": data.columns} | ({"files": files} if data.hub is None else {"hub": data.hub.model_dump()})


def _corpora_digest(params: Params) -> dict[str, str]:
    sources = {params.data.corpus_source(name) for name, rows in params.mlm.rows.items() if rows}
    if not params.mlm.enabled or not sources & {"cs224n", "files"}:
        return {}
    return _folder_digests("data.corpora_path", params.data.corpora_path, "*.tsv")


def _teacher_digest(params: Params, models: Path) -> dict[str, Any]:
    views = [view for prefix, view in _views(params).items() if prefix and view.distill.weight]
    if not views:
        return {}
    param, teacher, models = "distill.teacher", params.distill.teacher, models.resolve()
    folder = _folder(param, teacher)
    if models in (folder.resolve(), *folder.resolve().parents):
        raise UserError(f"{param}: found {teacher}, which every run writes anew; copy it out of the repository first")
    if (folder / "ensemble.json").exists() and not (folder / "bertrio.json").exists():
        raise UserError(
            f"{param}: found {teacher}, an ensemble whose members lie beside it; name the folder around it, with both"
        )
    run = (folder / "ensemble").is_dir() or (folder / "members").is_dir()
    patterns = ("ensemble/**/*", "members/**/*") if run else ("**/*",)
    vectors = any(view.distill.vectors.loss for view in views)
    return {"files": _folder_digests(param, teacher, *patterns), "vectors": vectors}


def _sampling(params: Params) -> dict[str, Any]:
    """Return the share and `per_epoch` of each source of training rows beside a task's own, by task."""
    return {
        task: {name: [rows.share, rows.per_epoch] for name, rows in drawn.items()}
        for task in params.tasks
        if (drawn := params.data.drawn(task))
    }


def _folder(param: str, value: str | None) -> Path:
    folder = Path(value or "").expanduser()
    if folder.is_file():
        raise UserError(f"{param}: {value} is a file, expected a folder")
    if value is None:
        raise UserError(f"{param}: found null, expected a folder")
    if not folder.is_dir():
        raise missing_path(param, value)
    return folder


def _folder_digests(param: str, value: str | None, *patterns: str) -> dict[str, str]:
    """Return the SHA-256 of the files that match a pattern, by their path in the folder."""
    folder = _folder(param, value)
    files = sorted(file for pattern in patterns for file in folder.glob(pattern) if file.is_file())
    return {str(file.relative_to(folder)): sha256(file) for file in files}


def _file_digest(param: str, value: str, base: Path = Path(".")) -> str:
    path = base / Path(value).expanduser()
    if not path.is_file():
        raise missing_path(param, str(path), "the repository" if base == Path(".") else "data.path")
    return sha256(path)
