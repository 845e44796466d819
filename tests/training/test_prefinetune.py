from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bertrio.core.errors import UserError
from bertrio.data.table import read_table, write_table
from bertrio.training.optimizer import Optimization
from bertrio.training.prefinetune import prefinetune
from tests.training.conftest import BI, saved_model

FOLDERS = ("models/encoder", "data/splits", "models/tokenizer")


def test_switched_off_it_copies_the_encoder_byte_for_byte(workspace, capsys):
    metrics, timing = prefinetune(workspace.params(), *FOLDERS, "out")
    assert (metrics, timing) == ({"epochs": 0}, {})
    assert "prefinetune: off" in capsys.readouterr().err
    for file in Path("models/encoder").iterdir():
        assert (Path("out/encoder") / file.name).read_bytes() == file.read_bytes()


def test_one_task_is_trained_at_its_own_lr_and_its_head_is_kept(workspace, monkeypatch):
    tiny = {"tiny": {"lr_factor": 20.0}}
    params = workspace.params(encoder=tiny, prefinetune={"task": "sts", "epochs": 2, "lr": 1e-4}, finetune={"lr": 3e-3})
    optimization = Mock(wraps=Optimization)
    monkeypatch.setattr("bertrio.training.loop.Optimization", optimization)
    metrics, timing = prefinetune(params, *FOLDERS, "out")
    assert optimization.call_args.args[2] == pytest.approx(20 * 1e-4)
    assert list(metrics["dev"]) == ["sts"] and timing["steps"] == 16
    heads = load_file("out/heads.safetensors")
    assert {name.split(".")[0] for name in heads} == {"sts"}
    assert torch.equal(saved_model(params, "out").heads["sts"].output.weight, heads["sts.output.weight"])


def test_dev_rows_without_labels_have_no_score(workspace):
    dev = Path("data/splits/sts/dev.parquet")
    write_table(read_table(dev).assign(label=np.nan), dev)
    metrics, _ = prefinetune(workspace.params(prefinetune={"task": "sts", "epochs": 1}), *FOLDERS, "out")
    assert metrics["dev"] == {"sts": {}}


@pytest.mark.parametrize("task", ["qqp", "sts"])
def test_shared_layers_are_loaded_by_all_tasks_that_share_them(workspace, task):
    sharing = {"tasks": {"qqp": BI, "sts": BI}, "sharing": {"layer": "both", "tasks": ["qqp", "sts"]}}
    params = workspace.params(prefinetune={"task": task, "epochs": 1}, **sharing)
    prefinetune(params, *FOLDERS, "out")
    heads, model = load_file("out/heads.safetensors"), saved_model(params, "out")
    states = {name: model.heads[name].state_dict() for name in ("qqp", "sts")}
    for name, value in heads.items():
        layer = name.partition(".")[2]
        sharers = [task] if layer.startswith("output") else states
        assert all(torch.equal(states[sharer][layer], value) for sharer in sharers), name


def test_a_head_of_another_shape_is_an_error(workspace):
    prefinetune(workspace.params(prefinetune={"task": "qqp", "epochs": 1}), *FOLDERS, "out")
    params = workspace.params(tasks={"qqp": {"head": "mlp"}})
    with pytest.raises(UserError, match=r"out/heads\.safetensors: the head of task qqp there is not the one that par"):
        saved_model(params, "out")
