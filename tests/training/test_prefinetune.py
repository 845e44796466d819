import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file

from bertrio.core.errors import UserError
from bertrio.core.files import write_json
from bertrio.core.runtime import set_up
from bertrio.model.config import encoder_width
from bertrio.model.encoder import load_transformer
from bertrio.model.multitask import build_model, load_heads
from bertrio.training import checkpoints
from bertrio.training.optimizer import Optimization
from bertrio.training.prefinetune import prefinetune

FOLDERS = ("models/encoder", "data/splits", "models/tokenizer")


def test_switched_off_the_encoder_passes_through_byte_for_byte(workspace):
    metrics, timing = prefinetune(workspace.params(), *FOLDERS, "out")
    assert (metrics, timing) == ({"epochs": 0}, {})
    for file in Path("models/encoder").iterdir():
        assert (Path("out/encoder") / file.name).read_bytes() == file.read_bytes()


def test_it_learns_at_its_own_rate(workspace, monkeypatch):
    tiny = {"tiny": {"lr_factor": 20.0}}
    params = workspace.params(encoder=tiny, prefinetune={"epochs": 1, "lr": 1e-4}, finetune={"lr": 3e-3})
    made = Mock(wraps=Optimization)
    monkeypatch.setattr("bertrio.training.optimizer.Optimization", made)
    prefinetune(params, *FOLDERS, "out")
    assert made.call_args.args[2] == pytest.approx(20 * 1e-4)


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


@pytest.mark.parametrize(("config", "width"), [({"hidden_size": 128}, 128), ({"dim": 64}, 64), ({"n": 1}, None)])
def test_the_width_of_a_saved_encoder_is_read_whatever_it_is_called(tmp_path, config, width):
    write_json(tmp_path / "config.json", config)
    assert encoder_width(tmp_path) == width


@pytest.mark.parametrize("narrow", [True, False])
def test_a_pretrained_encoder_that_is_narrow_trains_in_float32_as_it_predicts(workspace, monkeypatch, tmp_path, narrow):
    monkeypatch.setattr("bertrio.core.runtime._fast_bf16", lambda device: True)
    monkeypatch.setattr("bertrio.core.runtime.NARROW", 256 if narrow else 1)
    opened = Mock(wraps=checkpoints.open_checkpoints)
    monkeypatch.setattr(checkpoints, "open_checkpoints", opened)
    shutil.copytree("models/encoder", tmp_path / "pretrained")
    own = {"encoder": {"name": str(tmp_path / "pretrained")}, "runtime": {"precision": "auto"}}
    prefinetune(workspace.params(prefinetune={"epochs": 1, "max_steps": 1}, **own), *FOLDERS, "out")
    assert opened.call_args.args[-1].compute == (torch.float32 if narrow else torch.bfloat16)


def carried_on(params):
    """Prefinetunes, and gives the model that fine-tuning starts from and the heads that were saved."""
    prefinetune(params, *FOLDERS, "out")
    model = build_model(params, "out/encoder", set_up(**params.runtime.model_dump()))
    load_heads(model, "out")
    return model, load_file("out/heads.safetensors")


@pytest.mark.parametrize("layer", ["projection", "fusion", "both"])
@pytest.mark.parametrize("task", ["qqp", "sts"])
def test_layers_that_the_task_will_share_are_trained_and_carried_on_to_all_that_share_them(workspace, layer, task):
    bi = {"encoding": "bi", "head": "siamese", "dropout": 0.1}
    model, heads = carried_on(
        workspace.params(
            prefinetune={"task": task, "epochs": 1},
            tasks={"qqp": bi, "sts": bi},
            sharing={"layer": layer, "tasks": ["qqp", "sts"]},
        )
    )
    own = {name.partition(".")[2]: value for name, value in heads.items()}
    assert any(name.startswith("projection.") for name in own) == (layer != "fusion")
    assert any(name.startswith("hidden.0.") for name in own) == (layer != "projection")
    for name, value in model.heads[task].state_dict().items():
        assert torch.equal(value, own[name]), name
    other = model.heads["sts" if task == "qqp" else "qqp"].state_dict()
    shared = [
        name for name in own if name.startswith({"projection": "proj", "fusion": "hid"}.get(layer, ("proj", "hid")))
    ]
    assert shared and all(torch.equal(other[name], own[name]) for name in shared)


def test_a_task_may_be_trained_first_that_does_not_train_afterwards(workspace):
    model, heads = carried_on(workspace.params(prefinetune={"task": "sts", "epochs": 1}, schedule={"tasks": ["sst"]}))
    assert torch.equal(model.heads["sts"].output.weight, heads["sts.output.weight"])


def test_a_head_without_weights_has_nothing_to_carry_on(workspace):
    cosine = {"sts": {"encoding": "bi", "head": "cosine"}}
    _, heads = carried_on(workspace.params(prefinetune={"task": "sts", "epochs": 1}, tasks=cosine))
    assert heads == {}
    start, end = (load_transformer(folder).state_dict() for folder in ("models/encoder", "out/encoder"))
    assert any(not torch.equal(value, end[name]) for name, value in start.items())


def test_adapters_are_merged_into_the_encoder_that_goes_on(workspace):
    carried_on(workspace.params(prefinetune={"task": "qqp", "epochs": 1, "lr": 0.01}, encoder={"lora": {"rank": 2}}))
    start, end = (load_file(f"{folder}/model.safetensors") for folder in ("models/encoder", "out/encoder"))
    assert start.keys() == end.keys()
    changed = {name for name, value in start.items() if not torch.equal(value, end[name])}
    assert any("query.weight" in name for name in changed) and not any("embeddings" in name for name in changed)


def test_techniques_of_fine_tuning_have_no_say(workspace):
    on = {"smart": {"lambda": 5}, "bregman": {"mu": 1}, "surgery": {"method": "pcgrad"}, "finetune": {"ema": 0.9}}
    written = []
    for overrides in ({}, on):
        carried_on(workspace.params(prefinetune={"task": "qqp", "epochs": 1}, **overrides))
        written.append(
            [Path(f"out/{file}").read_bytes() for file in ("heads.safetensors", "encoder/model.safetensors")]
        )
    assert written[0] == written[1]


def test_a_head_of_another_shape_than_the_one_that_goes_on_is_an_error(workspace):
    prefinetune(workspace.params(prefinetune={"task": "qqp", "epochs": 1}), *FOLDERS, "out")
    params = workspace.params(tasks={"qqp": {"head": "mlp"}})
    model = build_model(params, "out/encoder", set_up(**params.runtime.model_dump()))
    with pytest.raises(
        UserError, match=r"out/heads\.safetensors: the head of task qqp there is not the one that params"
    ):
        load_heads(model, "out")
