"""The stages of the pipeline as one call, without DVC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from bertrio.analysis.analyze import analyze
from bertrio.config import Params, build_tasks, load_params, member_params, read_yaml
from bertrio.config.loading import check_params
from bertrio.core.errors import UserError
from bertrio.core.files import read_json, write_json, write_text
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

DEFAULTS = Path(__file__).parents[2] / "params.yaml"  # of the repository that this code lies in
Data = str | Path | Mapping[str, Mapping[str, Any]]  # the folder of `data.path`, or by task its parts


@dataclass(frozen=True)
class TrainedRun:
    """A finished run in `folder`, which holds models/, predictions/, metrics/ and plots/ as a repository does.

    `metrics` are those of metrics/evaluation.json, `{"dev": {"sst": {"accuracy": 0.81, ...}, ...}, ...}`.
    """

    folder: Path
    metrics: dict[str, Any]

    def predictor(self, **options: Any) -> Predictor:
        """Load the run's ensemble; `options` are those of `Predictor.load`, such as `device`."""
        return Predictor.load(self.folder / "models", **options)


def train(
    params: str | Path | Mapping[str, Any] | Params | None = None, data: Data | None = None, out: str | Path = "run"
) -> TrainedRun:
    """Run all stages of the pipeline in this process, without DVC; results have the bytes of `dvc repro`.

    >>> run = train({"finetune.epochs": 1}, {"sst": {"train": frame, "dev": "dev.csv"}}, out="first")
    >>> run.metrics["dev"]["sst"]["accuracy"], run.predictor().predict("sst", ["A fine film."])

    Args:
        params: a file; or changes to the repository's params.yaml, nested or with dotted names; or all `Params`.
        data: the folder of `data.path`, where the course's files lie unless `data.source` says otherwise; or by task
            its `train`, `dev` and perhaps `test`, each a file or a DataFrame with columns `text` (of pairs `text_a`
            and `text_b`) and `label`, and `columns` that are named otherwise. Other tasks are left out. None leaves
            it to the params.
        out: folder to write; an earlier run there is overwritten.

    Raises:
        UserError: for invalid params, and data that can't be read.
    """
    settings, out = _settings(params), Path(out)
    _set_data(settings, data, out)
    checked = check_params(settings, "params")
    if checked.runtime.processes > 1:
        raise UserError("runtime.processes: expected 1, since train runs in this process; dvc repro starts several")
    write_text(out / "params.yaml", yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))
    need_all_trackers(check_inputs(out / "params.yaml", out / "data/inputs"))
    _run_stages(load_params(out / "params.yaml"), out)
    return TrainedRun(out, read_json(out / "metrics/evaluation.json"))


def _settings(params: str | Path | Mapping[str, Any] | Params | None) -> dict[str, Any]:
    """Return the content of a params.yaml."""
    if isinstance(params, (str, Path)):
        return read_yaml(params)
    if isinstance(params, Params):
        return params.model_dump(mode="json", by_alias=True)
    defaults = DEFAULTS if DEFAULTS.exists() else Path("params.yaml")
    if not defaults.exists():
        raise UserError(
            f"params: they are changes to a params.yaml, and there is none in {Path.cwd()}: a package has no defaults. "
            "Run it in a clone of the repository, or pass the path of its params.yaml"
        )
    settings = read_yaml(defaults)
    for name, value in (params or {}).items():
        set_param(settings, name, value)
    return settings


def _set_data(settings: dict[str, Any], data: Data | None, out: Path) -> None:
    """Set the source of rows; data frames are written to `out`/data/given."""
    if isinstance(data, (str, Path)):
        source = settings["data"]["source"]
        settings["data"] |= {"path": str(data), "source": "cs224n" if source == "sample" else source}
    elif data is not None:
        given = out / "data/given"
        files = {
            task: {name: _file(part, given / task / f"{name}.parquet") for name, part in parts.items()}
            for task, parts in data.items()
        }
        settings["data"] |= {"source": "files", "files": files}
        settings["tasks"] = {name: task for name, task in settings["tasks"].items() if name in files}


def _file(part: Any, path: Path) -> Any:
    """Return the path of a file or, written to `path`, of a data frame; other parts, such as columns, as they are."""
    if isinstance(part, pd.DataFrame):
        path.parent.mkdir(parents=True, exist_ok=True)
        part.to_parquet(path, index=False)
        part = path
    return str(Path(part).resolve()) if isinstance(part, (str, Path)) else part


def _run_stages(params: Params, out: Path) -> None:
    """Run the stages as the scripts in stages/ do, with `out` in place of the repository."""

    def at(path: str) -> str:
        return str(out / path)

    splits, tokenizer = at("data/splits"), at("models/tokenizer")
    encoder, start = at("models/encoder"), at("models/prefinetuned")
    predictions, metrics, plots = at("predictions"), at("metrics"), at("plots")
    download(params, at("data/raw"), at("data/rejects"), at("data/corpora"))
    split_data(params, at("data/raw"), splits, tokenizer, f"{metrics}/data.json")
    runtime = set_up(**params.runtime.model_dump())
    write_json(f"{metrics}/mlm.json", pretrain_mlm(params, runtime, at("data/corpora"), tokenizer, encoder)[0])
    write_json(f"{metrics}/prefinetune.json", prefinetune(params, encoder, splits, tokenizer, start)[0])
    members = {name: member_params(params, name) for name in params.ensemble.members}
    for name, member in members.items():
        runtime = set_up(**member.runtime.model_dump(), width=encoder_width(f"{start}/encoder"))
        model, table = at(f"models/members/{name}"), f"{predictions}/members/{name}"
        curves = [f"{plots}/{kind}/{name}.csv" for kind in ("history", "conflicts", "steps")]
        finetune(member, runtime, Inputs(splits, tokenizer, start), model, table, *curves)
    folders = at("models/members"), f"{predictions}/members", f"{predictions}/ensemble.parquet", at("models/ensemble")
    build_ensemble(params, members, splits, tokenizer, *folders)
    evaluate(list(members), build_tasks(params), predictions, metrics, plots, params.evaluate.submission)
    analyze(params, splits, at("models"), predictions, metrics, plots, at("models/README.md"))
