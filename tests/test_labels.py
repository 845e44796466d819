"""The whole pipeline on two label columns of one file, one of them multilabel, added by params alone."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from fastapi.testclient import TestClient
from sklearn.metrics import accuracy_score, f1_score

from bertrio import train
from bertrio.config import load_params, merged, read_yaml
from bertrio.core.runtime import set_up
from bertrio.core.tasks import indicators
from bertrio.data.download import download
from bertrio.data.prepare import split_data
from bertrio.experiments.report import write_report
from bertrio.inference.batch_predict import predict_file
from bertrio.inference.export.export import export_model
from bertrio.inference.serve.app import build_app
from bertrio.inference.serve.limits import Limits
from bertrio.model.multitask import build_model
from bertrio.training.build import build_trainer, load_split
from tests.small_run import SMALL

CUES = {"joy": "lovely", "anger": "furious", "fear": "scary"}
COMMON = {"kind": "single", "head": "linear", "loss": "bce", "batch_size": 8, "dropout": 0.0}
TRAINING = {
    "sharing": {"layer": "none", "tasks": []},
    "schedule": {"until": "longest"},
    "finetune": {"epochs": 12, "lr": 1e-3},
    "prefinetune": {"task": "emotions"},
    "encoder": {"dropout": 0.0, "attention_dropout": 0.0},
}


@pytest.fixture(scope="module")
def run(root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("labels")
    rng, rows = np.random.default_rng(0), []
    for row in range(240):
        names = [name for name in CUES if rng.random() < 0.4]
        text = " ".join([*(CUES[name] for name in names), *rng.choice(["film", "plot", "scene"], rng.integers(1, 4))])
        emotions = "" if row % 9 in (4, 7) else json.dumps(names) if row % 2 or not names else "|".join(names)
        rows.append((f"{text} {row}", emotions, "" if row % 9 in (0, 7) else int(len(text) > 20)))
    pd.DataFrame(rows, columns=["text", "emotions", "long"]).to_csv(folder / "labels.tsv", sep="\t", index=False)

    def task(column, **target):
        split = {"strategy": "random", "fractions": [0.6, 0.2, 0.2]}
        data = {"train": str(folder / "labels.tsv"), "split": split, "columns": {"label": column}}
        return {column: COMMON | target | {"data": data}}

    tasks = task("emotions", target="multilabel", classes=list(CUES)) | task("long", target="binary")
    params = merged(merged(read_yaml(root / "params.yaml"), SMALL), TRAINING) | {"tasks": tasks}
    (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    return train(folder / "params.yaml", out=folder / "out")


@pytest.mark.parametrize(
    "technique", [*({"finetune": {"one_pass": one}} for one in (False, True)), {"surgery": {"log_conflicts": True}}]
)
def test_tasks_on_the_same_rows_share_one_pass_with_equal_gradients(run, tmp_path, technique):
    path, folder = tmp_path / "params.yaml", run.folder
    path.write_text(yaml.safe_dump(merged(read_yaml(folder / "params.yaml"), technique)))
    params, runtime = load_params(path), set_up(1, "cpu", "float32")
    rows = load_split(params, "train", folder / "data/splits", folder / "models/tokenizer")
    model = build_model(params, folder / "models/encoder", runtime)
    trainer, _ = build_trainer(params, model, rows)
    passes, batches = [], []
    model.encoder.transformer.register_forward_hook(lambda *_: passes.append(1))
    backward = trainer._backward
    trainer._backward = lambda step, logged: (batches.extend(step), backward(step, logged))
    trainer.optimization.max_grad_norm, trainer.optimization.step = None, lambda: None
    trainer.step(("emotions", "long"), 1)
    assert len(passes) == 1 and [batch.task for batch in batches] == ["emotions", "long"]
    assert (batches[0].rows == batches[1].rows).all()
    gradients = {name: p.grad.to_dense().clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    for batch in batches:
        trainer.objective(batch)[0].total.backward()
    assert len(passes) == 3
    expected = {name: p.grad.to_dense() for name, p in model.named_parameters() if p.grad is not None}
    torch.testing.assert_close(gradients, expected, atol=1e-6, rtol=1e-4)


def test_tasks_share_splits_and_rows_with_one_label(run):
    tables = [pd.read_parquet(run.folder / f"data/splits/{task}/train.parquet") for task in ("emotions", "long")]
    missing = np.array([table["label"].isna() for table in tables])
    assert tables[0]["id"].equals(tables[1]["id"]) and missing.any(axis=1).all() and not missing.all(axis=0).any()
    facts = json.loads((run.folder / "metrics/data.json").read_text())["tasks"]
    assert set(facts["emotions"]["train"]["labels"]) == set(CUES)


def test_splits_agree_when_one_task_has_extra_rows(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = pd.read_csv(run.folder.parent / "labels.tsv", sep="\t", dtype=str)
    table.assign(long=None).tail(60).to_csv("test.tsv", sep="\t", index=False)  # one task has hidden labels
    settings = read_yaml(run.folder / "params.yaml")
    for task in settings["tasks"].values():
        task["data"] |= {"test": str(tmp_path / "test.tsv")}
    settings["data"]["unlabelled"] = {"more": {"task": "long", "path": str(tmp_path / "test.tsv")}}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(settings))
    params = load_params("params.yaml")
    download(params, "raw", "rejects", "corpora")
    split_data(params, "raw", "splits", "tokenizer", "data.json")
    for split in ("train", "dev", "test"):
        ids = [pd.read_parquet(f"splits/{task}/{split}.parquet")["id"].tolist() for task in ("emotions", "long")]
        assert ids[0] == ids[1][: len(ids[0])] and len(ids[0])


def test_metrics_equal_scikit_learns_and_thresholds_are_optimal(run):
    frame = pd.read_parquet(run.folder / "predictions/ensemble.parquet")
    frame = frame.query("task == 'emotions' and split == 'dev' and label.notna()")
    gold, predicted = (indicators(frame[name].to_numpy(), 3) for name in ("label", "prediction"))
    expected = {f"{kind}_f1": f1_score(gold, predicted, average=kind) for kind in ("micro", "macro")}
    expected["accuracy"] = accuracy_score(gold, predicted)
    assert run.metrics["dev"]["emotions"] == pytest.approx(expected, abs=1e-6) and expected["micro_f1"] > 0.8
    assert run.metrics["selected_on"]["thresholds"] == "dev"
    model = json.loads((run.folder / "models/members/base/bertrio.json").read_text())
    thresholds = model["tasks"]["emotions"]["thresholds"]
    assert np.array_equal(predicted, np.stack(frame["probabilities"]) > thresholds)
    assert "thresholds" not in model["tasks"]["long"]
    for cls in range(3):  # no other threshold has a higher F1
        probabilities = np.stack(frame["probabilities"])[:, cls]
        scores = [f1_score(gold[:, cls], probabilities > cut, zero_division=0) for cut in [0, *probabilities]]
        assert f1_score(gold[:, cls], probabilities > thresholds[cls]) == max(scores)


def test_report_predictions_exports_and_server_have_both_tasks(run, tmp_path, monkeypatch):
    monkeypatch.chdir(run.folder)
    write_report(out=tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "emotions micro_f1" in page and "Confusion matrix: emotions" in page and "Calibration: emotions" in page
    assert run.metrics["overall_tasks"] == ["emotions", "long"] and "of emotions, long" in page
    card = (run.folder / "models/README.md").read_text().replace("\\_", "_")
    assert "any of 3 classes: joy, anger, fear" in card and "| emotions, long | overall" in card
    predictor = run.predictor(device="cpu")
    [answer] = predictor.predict("emotions", ["lovely scary film 7"])
    thresholds = predictor.tasks["emotions"].target.thresholds
    assert answer.label == tuple(np.flatnonzero(np.array(answer.probabilities) > thresholds))
    assert answer.name == tuple(list(CUES)[number] for number in answer.label) and answer.name
    (tmp_path / "texts.tsv").write_text("text\nlovely scary film 7\nfilm\n")
    with open(tmp_path / "texts.tsv", "rb") as source, open(tmp_path / "out.tsv", "wb") as target:
        predict_file(predictor, "emotions", "tsv", source, target)
    added = (tmp_path / "out.tsv").read_text().splitlines()[1].split("\t")[1:3]
    assert added == ["|".join(map(str, answer.label)), "|".join(answer.name)]
    for name in ("onnx", "classifier"):
        assert export_model("models/members/base", tmp_path / name, name, "emotions") < 1e-4
        export, config = (json.loads((tmp_path / name / f"{file}.json").read_text()) for file in ("export", "config"))
        assert config["problem_type"] == "multi_label_classification"
        assert export["thresholds"] == pytest.approx(thresholds, abs=1e-5)
    with TestClient(build_app(predictor, Limits())) as client:
        [served] = client.post("/predict/emotions", json={"rows": ["lovely scary film 7"]}).json()["predictions"]
        assert served["name"] == list(answer.name) and served["probabilities"] == pytest.approx(answer.probabilities)
