"""`bertrio.train` runs the pipeline's stages without DVC, and writes the same bytes."""

import json
import shutil

import pytest
import yaml

from bertrio import pipeline, train
from bertrio.config import load_params, merged, read_yaml
from bertrio.core.errors import UserError
from tests.small_run import SMALL, run_stages

ROWS = {"train_rows": 80, "dev_rows": 40, "test_rows": 8}
TINY = merged(SMALL, {"data": {"sample": ROWS}, "finetune": {"epochs": 1}})
STAGES = ("check", "download", "split", "pretrain_mlm", "prefinetune", "teach", "finetune", "ensemble", "evaluate")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(TINY, out=tmp_path_factory.mktemp("run") / "out")


def test_train_produces_the_same_bytes_as_the_stages(run, root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    params = merged(read_yaml(root / "params.yaml"), TINY)
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    run_stages(STAGES)
    for path in ("predictions/ensemble.parquet", "metrics/evaluation.json", "models/members/base/heads.safetensors"):
        assert (tmp_path / path).read_bytes() == (run.folder / path).read_bytes(), path


def test_run_has_metrics_predictor_and_model_card(run):
    assert run.metrics == json.loads((run.folder / "metrics/evaluation.json").read_text())
    [answer] = run.predictor(device="cpu").predict("sst", ["a good film"])
    assert answer.name in run.predictor().tasks["sst"].target.class_names
    assert (run.folder / "models/README.md").is_file()


def test_data_is_files_by_task_or_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "_outs", lambda out: (out / "metrics").mkdir(parents=True) or {})
    monkeypatch.setattr(pipeline, "read_json", str)
    monkeypatch.chdir(tmp_path)
    task = {"kind": "single", "target": "binary", "head": "linear", "loss": "bce", "batch_size": 8, "dropout": 0.1}
    task["data"] = {"train": "others.csv", "dev": "others.csv"}
    changes = {"tasks.polar": task, "finetune.lr": 1e-3}
    polar = {"train": tmp_path / "rows.csv", "dev": "rows.csv", "columns": {"text": "said"}}
    params = load_params(train(changes, {"polar": polar}, tmp_path / "out").folder / "params.yaml")
    assert (list(params.tasks), params.finetune.lr, params.data.source) == (["polar"], 1e-3, "files")
    files = params.data.files["polar"]
    assert params.source_tasks == ["polar"] and files.train == str(tmp_path / "rows.csv")
    assert files.columns == {"text": "said"}
    again = load_params(train(tmp_path / "out/params.yaml", tmp_path, tmp_path / "again").folder / "params.yaml")
    assert again.data.path == str(tmp_path) and again.tasks == params.tasks


def test_train_removes_only_files_of_an_earlier_run(run, tmp_path):
    out = shutil.copytree(run.folder, tmp_path / "out")
    mine = out / "data/mine.csv"
    mine.write_text("text\n")
    with pytest.raises(UserError, match="files that no run writes, such as .*data/mine.csv; name a new"):
        train(TINY, out=out)
    assert (out / "metrics/evaluation.json").exists()
    mine.rename(out / "data/.splits.0123456789abcdef.partial")
    (out / "plots/history/dropped.csv").write_text("step\n")
    teacher = {"distill.weight": 1, "distill.teacher": str(out / "models"), "schedule.max_batches": 1}
    with pytest.raises(UserError, match="which every run writes anew"):
        train({**TINY, **teacher}, out=out)
    assert (out / "models/ensemble").exists()
    train({**TINY, "schedule.max_batches": 1}, out=out)
    assert not (out / "plots/history/dropped.csv").exists() and (out / "plots/history/base.csv").exists()


def test_invalid_arguments_are_errors_before_any_output(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for params, data, message in (
        ({"finetune.lrr": 1}, None, "params: finetune.lrr: unknown param; did you mean finetune.lr"),
        ({"runtime.processes": 2}, None, "runtime.processes: expected 1"),
        ([("finetune.lr", 1)], None, "params: found a list, expected a path or a dict"),
        (None, {"sst": [("a film", 1)]}, "sst: found a list"),
        ({"tasks.sst": None}, {"sst": {"train": "a.csv"}}, "tasks.sst"),
    ):
        with pytest.raises(UserError, match=message):
            train(params, data)
    with pytest.raises(ValueError, match="data: expected one of sst, qqp, sts, found 'qpp'; did you mean qqp"):
        train(data={"qpp": {"train": "a.csv"}})
    monkeypatch.setattr(pipeline, "CLONE", tmp_path)
    with pytest.raises(UserError, match="params.yaml: can.t be read"):
        train({})
    assert not list(tmp_path.iterdir())
