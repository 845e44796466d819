"""The stages of the pipeline as one call, without DVC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertrio.analysis.analyze import analyze
from bertrio.config import Params, build_tasks, member_params, read_yaml
from bertrio.config.loading import check_params
from bertrio.config.reading import yaml_text
from bertrio.core.errors import UserError
from bertrio.core.files import read_json, write_json, write_text
from bertrio.core.options import choose
from bertrio.core.runtime import set_up
from bertrio.data.download import download
from bertrio.data.inputs import check_inputs
from bertrio.data.prepare import split_data
from bertrio.evaluation.evaluate import evaluate
from bertrio.experiments.recipes.params import set_param
from bertrio.inference.predictor import Predictor
from bertrio.model.config import encoder_width
from bertrio.training.ensemble import build_ensemble
from bertrio.training.finetune import Inputs, finetune
from bertrio.training.mlm import pretrain_mlm
from bertrio.training.monitoring import need_all_trackers
from bertrio.training.prefinetune import prefinetune

DEFAULTS = Path(__file__).parents[2] / "params.yaml"  # of the clone that this code lies in
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
        out: folder to write, best a new one: of an earlier run there, files that this one does not write stay.

    Raises:
        UserError: for invalid params, and data that can't be read.
        ValueError: if `data` names a task that the params do not have.
    """
    settings, out = _settings(params, data), Path(out)
    if check_params(settings, "params").runtime.processes > 1:
        raise UserError("runtime.processes: expected 1, since train runs in this process; dvc repro starts several")
    write_text(out / "params.yaml", yaml_text(settings))
    checked = check_inputs(out / "params.yaml", out / "data/inputs")
    need_all_trackers(checked)
    _run_stages(checked, out)
    return TrainedRun(out, read_json(out / "metrics/evaluation.json"))


def _settings(params: str | Path | Mapping[str, Any] | None, data: Data | None) -> dict[str, Any]:
    """Return the content of a params.yaml."""
    if isinstance(params, (str, Path)):
        settings = read_yaml(params)
    else:
        settings = read_yaml(DEFAULTS if DEFAULTS.exists() else "params.yaml")
        for name, value in (params or {}).items():
            set_param(settings, name, value)
    if isinstance(data, Mapping):
        settings["tasks"] = {name: choose(settings["tasks"], name, "data") for name in data}
        settings["data"] |= {"source": "files", "path": None, "files": {}}
        for task, files in data.items():
            names = {key: str(file) if isinstance(file, Path) else file for key, file in files.items()}
            settings["data"]["files"][task] = names
    elif data is not None:
        source = settings["data"]["source"]
        settings["data"] |= {"path": str(data), "source": "cs224n" if source == "sample" else source}
    return settings


def _run_stages(params: Params, out: Path) -> None:
    """Run the stages as the scripts in stages/ do, with `out` in place of the repository."""
    folders = ("data", "models", "predictions", "metrics", "plots")
    data, models, predictions, metrics, plots = (f"{out}/{name}" for name in folders)
    splits, tokenizer = f"{data}/splits", f"{models}/tokenizer"
    encoder, start = f"{models}/encoder", f"{models}/prefinetuned"
    download(params, f"{data}/raw", f"{data}/rejects", f"{data}/corpora")
    split_data(params, f"{data}/raw", splits, tokenizer, f"{metrics}/data.json")
    runtime = set_up(**params.runtime.model_dump())
    write_json(f"{metrics}/mlm.json", pretrain_mlm(params, runtime, f"{data}/corpora", tokenizer, encoder)[0])
    write_json(f"{metrics}/prefinetune.json", prefinetune(params, encoder, splits, tokenizer, start)[0])
    members = {name: member_params(params, name) for name in params.ensemble.members}
    member_models, member_predictions = f"{models}/members", f"{predictions}/members"
    for name, member in members.items():
        runtime = set_up(**member.runtime.model_dump(), width=encoder_width(f"{start}/encoder"))
        curves = [f"{plots}/{kind}/{name}.csv" for kind in ("history", "conflicts", "steps")]
        paths = f"{member_models}/{name}", f"{member_predictions}/{name}"
        finetune(member, runtime, Inputs(splits, tokenizer, start), *paths, *curves)
    combined = f"{predictions}/ensemble.parquet", f"{models}/ensemble"
    build_ensemble(params, members, splits, tokenizer, member_models, member_predictions, *combined)
    evaluate(list(members), build_tasks(params), predictions, metrics, plots, params.evaluate.submission)
    analyze(params, splits, models, predictions, metrics, plots, f"{models}/README.md")
