"""The stages of the pipeline as one call, without DVC."""

from __future__ import annotations

import runpy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertrio.config import read_yaml
from bertrio.config.loading import check_params
from bertrio.config.reading import yaml_text
from bertrio.core.errors import UserError
from bertrio.core.files import read_json, remove, write_text
from bertrio.core.options import choose
from bertrio.experiments.recipes.params import set_param
from bertrio.inference.predictor import Predictor

HOME = Path(__file__).parents[2]
CLONE = HOME if (HOME / "stages").exists() else Path()  # the repository, with params.yaml, dvc.yaml and stages/
Data = str | Path | Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class TrainedRun:
    """A finished run in `folder`, which holds models/, predictions/, metrics/ (but no timings) and plots/.

    `metrics` are those of metrics/evaluation.json, `{"dev": {"sst": {"accuracy": 0.81, ...}, ...}, ...}`.
    """

    folder: Path
    metrics: dict[str, Any]

    def predictor(self, **options: Any) -> Predictor:
        """Load the run's ensemble; `options` are those of `Predictor.load`, such as `device`."""
        return Predictor.load(self.folder / "models", **options)


def train(
    params: str | Path | Mapping[str, Any] | None = None, data: Data | None = None, out: str | Path = "run"
) -> TrainedRun:
    """Run all stages of the pipeline in this process, without DVC; results have the bytes of `dvc repro`.

    >>> run = train({"finetune.epochs": 1}, {"sst": {"train": "train.csv", "dev": "dev.csv"}}, out="first")
    >>> run.metrics["dev"]["sst"]["accuracy"], run.predictor().predict("sst", ["A fine film."])

    Args:
        params: a file, or changes to the repository's params.yaml, nested or with dotted names.
        data: the folder of `data.path`, where the course's files lie unless `data.source` says otherwise; or by task
            the files of its splits `train`, `dev` and perhaps `test`, with columns `text` (of pairs `text_a` and
            `text_b`) and `label`, and `columns` that are named otherwise, as in `data.files`. Other tasks are left
            out. None leaves it to the params.
        out: folder to write; an earlier run there is removed.

    Raises:
        UserError: for invalid params, data that can't be read, and files in `out` that no run writes.
        ValueError: if `data` names a task that the params do not have.
    """
    settings, out = _settings(params, data), Path(out)
    checked = check_params(settings, "params")
    if checked.runtime.processes > 1:
        raise UserError("runtime.processes: expected 1, since train runs in this process; dvc repro starts several")
    earlier = _outs(out)
    write_text(out / "params.yaml", yaml_text(settings))
    for stage, paths in earlier.items():
        main = runpy.run_path(f"{CLONE}/stages/{stage}.py")["main"]
        for path in paths:
            remove(path)
        members = [{"member": name} for name in checked.ensemble.members]
        for options in members if stage == "finetune" else [{}]:
            main(root=f"{out}/", **options)
    return TrainedRun(out, read_json(out / "metrics/evaluation.json"))


def _settings(params: str | Path | Mapping[str, Any] | None, data: Data | None) -> dict[str, Any]:
    """Return the content of a params.yaml.

    Raises:
        UserError: if `params` or `data` is of another type than `train` takes.
    """
    for name, value in {"params": params, "data": data, **(data if isinstance(data, Mapping) else {})}.items():
        if not isinstance(value, Mapping if name not in ("params", "data") else (str, Path, Mapping, type(None))):
            raise UserError(f"{name}: found a {type(value).__name__}, expected a path or a dict, as train describes")
    if isinstance(params, (str, Path)):
        settings = read_yaml(params)
    else:
        settings = read_yaml(CLONE / "params.yaml")
        for name, value in (params or {}).items():
            set_param(settings, name, value)
    if isinstance(data, Mapping):
        settings["tasks"] = {name: {**(choose(settings["tasks"], name, "data") or {}), "data": None} for name in data}
        settings["data"] |= {"source": "files", "path": None, "files": {}}
        for member in filter(None, settings["ensemble"]["members"].values()):
            if isinstance(member.get("tasks"), dict):
                member["tasks"] = {name: member["tasks"][name] for name in data if name in member["tasks"]}
        for task, files in data.items():
            names = {key: str(file) if isinstance(file, Path) else file for key, file in files.items()}
            settings["data"]["files"][task] = names
    elif data is not None:
        source = settings["data"]["source"]
        settings["data"] |= {"path": str(data), "source": "cs224n" if source == "sample" else source}
    return settings


def _outs(out: Path) -> dict[str, list[Path]]:
    """Return what each stage of dvc.yaml, in their order, wrote to `out` in an earlier run.

    Raises:
        UserError: if there are other files.
    """
    outs: dict[str, list[Path]] = {}
    for name, stage in read_yaml(CLONE / "dvc.yaml")["stages"].items():
        each = stage.get("do", stage)
        listed = [path for kind in ("outs", "plots", "metrics") for path in each.get(kind, ())]
        paths = [path if isinstance(path, str) else next(iter(path)) for path in listed]
        outs[name] = [found for path in paths for found in out.glob(path.replace("${key}", "*"))]
    known = {out / "params.yaml", out / "data/tokens", *out.rglob(".*.partial")}  # .partial: of a killed run
    known.update(path for paths in outs.values() for path in paths)
    others = [file for file in out.rglob("*") if not file.is_dir() and not {file, *file.parents} & known]
    if others:
        raise UserError(f"out: {out} has files that no run writes, such as {min(others)}; name a new or empty folder")
    return outs
