from unittest.mock import Mock, call

import pandas as pd
import pytest
import torch

from bertrio.training.monitoring import Curves, build_curves
from tests.training.conftest import run


def test_points_are_means_over_the_steps_with_a_value(tmp_path):
    tool = Mock()
    curves = Curves(tmp_path / "deep" / "t.csv", 3, tools=[tool])
    for step, values in enumerate([{"a": 1.0}, {"b": 10.0}, {"a": torch.tensor(3.0)}, {"b": 1 / 3}], start=1):
        curves.log(step, {**values, "rows_per_second": 7.0})
    curves.close()
    means = {"a": 2.0, "b": 10.0, "rows_per_second": 7.0}, {"b": 1 / 3, "rows_per_second": 7.0}
    assert tool.mock_calls == [call.log(means[0], step=3), call.log(means[1], step=4), call.finish()]
    assert (tmp_path / "deep/t.csv").read_text() == "step,a,b\n3,2,10\n4,,0.333333\n"


def trained(workspace, name, **overrides):
    run(workspace.params(**overrides), name)
    return pd.read_csv(f"{name}/steps.csv")


def test_fine_tuning_writes_its_curves(workspace):
    table = trained(workspace, "a", tracking={"every": 1}, smart={"lambda": 1, "radius": 0.01})
    assert table["step"].tolist() == list(range(1, 17))
    assert list(table)[:4] == ["step", "lr", "loss", "grad_norm"]
    assert {"loss_sst", "loss_qqp", "loss_sts", "loss_smart_sst"} <= set(table) and table.notna().all().all()
    history = pd.read_csv("a/h.csv")
    for task in ("sst", "smart_sts"):
        epochs = table[f"loss_{task}"].to_numpy().reshape(2, 8).mean(axis=1)
        assert epochs == pytest.approx(history[f"train_loss_{task}"].to_numpy(), rel=1e-4)
    assert table["lr"].iloc[-1] == pytest.approx(history["lr"].iloc[-1], rel=1e-5)
    assert table["loss"].to_numpy() == pytest.approx(table[["loss_sst", "loss_qqp", "loss_sts"]].sum(axis=1), rel=1e-4)


def test_gradient_norm_is_measured_before_clipping(workspace):
    clipped = trained(workspace, "a", optimizer={"max_grad_norm": 1.0e-3}, tracking={"every": 1})
    free = trained(workspace, "b", optimizer={"max_grad_norm": 1.0e6}, tracking={"every": 1})
    assert clipped["grad_norm"][0] == pytest.approx(free["grad_norm"][0], rel=1e-5) and clipped["grad_norm"][0] > 0.01
    without = trained(workspace, "c", optimizer={"max_grad_norm": None}, tracking={"every": 1})
    assert without["grad_norm"].tolist() == free["grad_norm"].tolist()


def test_tracking_does_not_change_results(workspace):
    pytest.importorskip("tensorboard")
    results = ("model/heads.safetensors", "model/encoder/model.safetensors", "out/predictions.parquet", "h.csv")
    trained(workspace, "a", tracking={"to": []})
    trained(workspace, "b", tracking={"to": ["table", "tensorboard"], "every": 1})
    assert (workspace.root / "a/steps.csv").read_text() == "step\n"
    assert len(pd.read_csv("b/steps.csv")) == 16
    for file in results:
        assert (workspace.root / "a" / file).read_bytes() == (workspace.root / "b" / file).read_bytes(), file


@pytest.mark.parametrize(
    ("tool", "files"),
    [
        ("tensorboard", "tensorboard/base-*/events.*"),
        ("dvclive", "dvclive/base/plots/metrics/loss_sst.tsv"),
        ("wandb", "wandb/offline-run-*/*.wandb"),
        ("mlflow", "mlflow.db"),
    ],
)
def test_tools_get_the_curves_and_write_to_logs_only(workspace, monkeypatch, tool, files):
    pytest.importorskip(tool)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")  # to be restored
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    before = set(workspace.root.iterdir())
    curves = build_curves(workspace.params(tracking={"to": [tool], "every": 2}), "base.csv")
    for step in range(1, 6):
        curves.log(step, {"loss_sst": float(step), "rows_per_second": 100.0})
    curves.close()
    (file,) = (workspace.root / "logs").glob(files)
    assert file.stat().st_size
    if tool == "mlflow":
        client = pytest.importorskip("mlflow").MlflowClient()
        (logged,) = client.search_runs([client.get_experiment_by_name("bertrio").experiment_id])
        assert logged.info.run_name == "base" and logged.data.params["finetune.epochs"] == "2"
        points = client.get_metric_history(logged.info.run_id, "loss_sst")
        assert [(point.step, point.value) for point in points] == [(2, 1.5), (4, 3.5), (5, 5.0)]
    assert {path.name for path in set(workspace.root.iterdir()) - before} <= {"logs", "base.csv", "params.yaml"}
