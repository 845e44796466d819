"""What the pipeline depends on outside its own folder, as small files that DVC can track.

DVC can't depend on a path that a param may or may not name, nor notice a param that no stage lists. So the first
stage runs every time: it checks all of params.yaml and writes what it finds outside as digests, of which each later
stage depends on its own.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from bertrio.config import Params, TaskParams, load_params, member_params
from bertrio.config.data import DataParams, TaskData
from bertrio.core.errors import UserError, missing_path
from bertrio.core.files import write_json
from bertrio.model.names import FILES, local_folder, sha256


def check_inputs(params_path: str | Path = "params.yaml", folder: str | Path = "data/inputs") -> Params:
    """Checks params.yaml, members included, and writes the digests.

    - source.json, corpora.json: the files of `data.path` and `data.corpora_path`, for the sources that read them. Of
      tasks that say themselves where their rows are, source.json has what they say, and their files; and those of
      `data.extra_train`.
    - encoder.json: the files of a local encoder folder.
    - challenges.json: the files of `evaluate.challenges`, by challenge.
    - tasks.json: what the data need of each task, so that a new loss does not read them again.
    - order.json: the order of the tasks, and of those in `schedule.first`, by which heads are drawn and trained; DVC
      takes params that differ in the order of their keys for the same.
    - members.json: the order of the ensemble's members.
    - prefinetune.json: the task that `prefinetune` trains; nothing while that is off, as the task may not be there.
    - teacher.json: the files of `distill.teacher`, by member where members have their own.

    Raises:
        UserError: for anything wrong in params.yaml, and for files and folders that are not there.
    """
    params = load_params(params_path)
    written = {
        "source": _source_digest(params),
        "corpora": _corpora_digest(params),
        "encoder": _encoder_digest(params),
        "challenges": _challenges_digest(params),
        "tasks": {name: _of_data(task) for name, task in params.tasks.items()},
        "order": _order(params),
        "members": list(params.ensemble.members),
        "prefinetune": _prefinetuned(params),
        "teacher": _teachers_digest(params),
    }
    for name, value in written.items():
        write_json(Path(folder) / f"{name}.json", value, digits=None)
    return params


def _of_data(task: TaskParams) -> dict[str, Any]:
    split = task.data and task.data.split
    asked = {"labels": task.labels, "split": split and split.model_dump()}
    return {
        **{key: getattr(task, key) for key in ("kind", "target", "classes", "range")},
        **{key: value for key, value in asked.items() if value is not None},
    }


def _prefinetuned(params: Params) -> dict[str, Any]:
    options = params.prefinetune
    if not options.epochs:
        return {}
    exact = repr(params.tasks[options.task].model_dump())  # JSON has no infinity
    return {options.task: hashlib.sha256(exact.encode()).hexdigest()}


def _order(params: Params) -> dict[str, Any]:
    """With the order of `schedule.first` wherever it names two tasks or more; if one member's own changes, all of them
    train anew."""
    firsts = {at: list(view.schedule.first) for at, view in _views(params).items()}
    own = {at: order for at, order in firsts.items() if len(order) > 1 and (not at or order != firsts[""])}
    return {"tasks": list(params.tasks), **({"schedule.first": own} if own else {})}


def _views(params: Params) -> dict[str, Params]:
    """The params as all see them, and as each member does, by where that stands in params.yaml."""
    members = {f"ensemble.members.{name}.": member_params(params, name) for name in params.ensemble.members}
    return {"": params, **members}


def _source_digest(params: Params) -> dict[str, Any]:
    own = {name: _own_digest(name, task.data) for name, task in params.tasks.items() if task.data is not None}
    extra = {name: _extra_digest(name, params.data) for name in params.data.extra_train}
    digests: dict[str, Any] = _digest_of_source(params) if params.of_source else {}
    return digests | ({"tasks": own} if own else {}) | ({"extra_train": extra} if extra else {})


def _extra_digest(name: str, data: DataParams) -> str:
    """SHA-256 of the file with more rows of a task."""
    path = data.base / Path(data.extra_train[name].train).expanduser()
    if not path.is_file():
        raise missing_path(f"data.extra_train.{name}.train", str(path))
    return sha256(path)


def _own_digest(name: str, data: TaskData) -> dict[str, Any]:
    """Of a task that says itself where its rows are: what it says of them, and names and SHA-256 of its files."""
    for split, path in data.files.items():
        if not Path(path).expanduser().is_file():
            raise missing_path(f"tasks.{name}.data.{split}", path)
    files = {split: {Path(path).name: sha256(Path(path).expanduser())} for split, path in data.files.items()}
    return {"columns": data.columns} | ({"files": files} if data.hub is None else {"hub": data.hub.model_dump()})


def _digest_of_source(params: Params) -> dict[str, str]:
    data = params.data
    if data.source == "cs224n":
        folder = _folder("data.path", data.path)
        return _digests(folder, sorted(folder.glob("*.csv")))
    if data.source == "files":
        named = [
            path
            for name in params.of_source
            for path in data.files[name].model_dump(include={"train", "dev", "test"}).values()
            if path
        ]
        for name in named:
            if not (data.base / Path(name).expanduser()).is_file():
                raise missing_path("data.files", data.base / name)
        return {name: sha256(data.base / Path(name).expanduser()) for name in sorted(set(named))}
    return {}


def _corpora_digest(params: Params) -> dict[str, str]:
    if not params.mlm.enabled or params.data.source not in ("cs224n", "files"):
        return {}
    if params.data.corpora_path is None:
        raise UserError(
            f"data.corpora_path: found null; with mlm.enabled and data.source {params.data.source}, expected a folder "
            "with imdb.tsv, multinli.tsv, sick.tsv"
        )
    folder = _folder("data.corpora_path", params.data.corpora_path)
    return _digests(folder, sorted(folder.glob("*.tsv")))


def _encoder_digest(params: Params) -> dict[str, str]:
    folder = local_folder(params.encoder.name)
    if folder is None:
        return {}
    return _digests(folder, sorted(file for pattern in FILES for file in folder.glob(pattern)))


def _challenges_digest(params: Params) -> dict[str, str]:
    digests = {}
    for name, challenge in params.evaluate.challenges.items():
        path = Path(challenge.path).expanduser()
        if not path.is_file():
            raise missing_path(f"evaluate.challenges.{name}.path", challenge.path)
        digests[name] = sha256(path)
    return digests


def _teachers_digest(params: Params) -> dict[str, dict[str, str]]:
    views = _views(params)
    return {at: _teacher_digest(at, view) for at, view in views.items() if not at or view.distill != params.distill}


def _teacher_digest(at: str, params: Params) -> dict[str, str]:
    if not params.distill.weight:
        return {}
    param = f"{at}distill.teacher"
    folder, own = _folder(param, params.distill.teacher), Path("models").resolve()
    if own in (folder.resolve(), *folder.resolve().parents):
        raise UserError(
            f"{param}: found {params.distill.teacher}, which every run writes anew; copy it out of the repository first"
        )
    if (folder / "ensemble.json").exists() and not (folder / "bertrio.json").exists():
        raise UserError(
            f"{param}: found {params.distill.teacher}, an ensemble whose members lie beside it; name the folder around "
            "it, which has both"
        )
    parts = [folder / part for part in ("ensemble", "members") if (folder / part).is_dir()] or [folder]
    return _digests(folder, sorted(file for part in parts for file in part.rglob("*") if file.is_file()))


def _folder(param: str, value: str | None) -> Path:
    folder = Path(value or "").expanduser()
    if folder.is_file():
        raise UserError(f"{param}: {value} is a file, expected a folder")
    if not folder.is_dir():
        raise missing_path(param, value)
    return folder


def _digests(folder: Path, files: list[Path]) -> dict[str, str]:
    return {str(file.relative_to(folder)): sha256(file) for file in files}
