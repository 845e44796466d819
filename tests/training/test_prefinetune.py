from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bertrio.model.multitask import build_model, load_heads
from bertrio.runtime import set_up
from bertrio.training.prefinetune import prefinetune

FOLDERS = ("models/encoder", "data/splits", "models/tokenizer")


def test_switched_off_the_encoder_passes_through_byte_for_byte(workspace):
    metrics, timing = prefinetune(workspace.params(), *FOLDERS, "out")
    assert (metrics, timing) == ({"epochs": 0}, {})
    for file in Path("models/encoder").iterdir():
        assert (Path("out/encoder") / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize("task", ["qqp", "sts"])
def test_one_task_is_trained_alone_and_its_head_is_carried_on(workspace, task):
    params = workspace.params(prefinetune={"task": task, "epochs": 2, "lr": 1e-3})
    metrics, timing = prefinetune(params, *FOLDERS, "out")
    assert list(metrics["dev"]) == [task]
    assert timing["steps"] == 16
    heads = load_file("out/heads.safetensors")
    assert {name.split(".")[0] for name in heads} == {task}
    model = build_model(params, "out/encoder", set_up(**params.runtime.model_dump()))
    load_heads(model, "out")
    assert torch.equal(model.heads[task].output.weight, heads[f"{task}.output.weight"])
