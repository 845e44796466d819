"""Processes that split the weights (FSDP) make the updates that one process makes, and keep but a piece of it all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from bertrio.config import merged
from bertrio.core.errors import UserError
from bertrio.training.build import layers_to_split
from bertrio.training.distributed.launching import free_port
from bertrio.training.distributed.processes import ALONE, share_out
from bertrio.training.distributed.sharding import Sharding, asked_for, split, weights_of
from tests.distributed_run import train
from tests.sharded_run import CARRIED, carry_on, write_half
from tests.training.test_distributed import FREE, ROOT, SETTINGS, Project, environment, write_settings

FSDP = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
CHOSEN = ("plain", "pcgrad, smart, sparse", CARRIED, "round robin, smart on the upper layer")
SHORT = {"finetune": {"max_steps": 12}}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder where one process, and two that split the weights, have trained each of the settings."""
    folder, before = tmp_path_factory.mktemp("trained"), Path.cwd()
    os.chdir(folder)
    write_settings(folder, {name: merged(SETTINGS[name], SHORT) for name in CHOSEN})
    write_half(ALONE)
    two = subprocess.Popen([sys.executable, ROOT / "tests/sharded_run.py", folder], env=environment(**FSDP))
    for settings in sorted((folder / "settings").glob("*.yaml")):
        train(settings, ALONE)
    assert two.wait(timeout=240) == 0
    carry_on(ALONE, 2, "carried-2-by-1")
    os.chdir(before)
    return folder


def apart(folder: Path, one: str, two: str) -> dict[str, float]:
    """How far apart weights are that are further than rounding explains, by name."""
    first, second = (load_file(folder / f"weights/{name}.safetensors") for name in (one, two))
    far = {name: (second[name] - values).abs().max().item() for name, values in first.items()}
    return {name: by for name, by in far.items() if by > 2e-5 and not name.endswith(FREE)}


@pytest.mark.parametrize("name", CHOSEN)
def test_two_processes_that_split_the_weights_have_those_of_one_within_rounding(trained, name):
    assert apart(trained, f"{name}-1", f"{name}-2") == {}


@pytest.mark.parametrize("name", CHOSEN)
def test_they_tell_of_training_what_one_tells_and_predict_the_bits_that_they_predict_alone(trained, name):
    one, two = (json.loads((trained / f"weights/{name}-{count}.json").read_text()) for count in (1, 2))
    assert one["rows"] == two["rows"] and two["same_outputs"]
    assert two["norms"] == pytest.approx(one["norms"], rel=1e-4), "Adam would not tell a sum from a mean"
    pd.testing.assert_frame_equal(pd.DataFrame(two["losses"]), pd.DataFrame(one["losses"]), atol=1e-5)
    pd.testing.assert_frame_equal(pd.DataFrame(two["conflicts"]), pd.DataFrame(one["conflicts"]), atol=1e-4)


def test_each_keeps_its_rows_of_every_weight_and_of_what_the_optimizer_gathers(trained):
    pieces = [json.loads((trained / f"pieces-{rank}.json").read_text()) for rank in (0, 1)]
    for name, (first, whole, moments, _) in pieces[0].items():
        second, _, others, _ = pieces[1][name]
        assert first + second == whole, name
        assert moments in (0, first) and others in (0, second), name
    for of in pieces:
        kept, whole, _, room = map(sum, zip(*of.values()))
        assert kept <= room < 0.55 * whole


def test_a_state_is_carried_on_to_the_same_bits_and_between_split_and_whole_weights(trained):
    straight, carried = (load_file(trained / f"weights/{name}.safetensors") for name in (f"{CARRIED}-2", "carried-2"))
    assert all(torch.equal(carried[name], values) for name, values in straight.items())
    assert apart(trained, f"{CARRIED}-1", "carried-1") == {}
    assert apart(trained, f"{CARRIED}-1", "carried-2-by-1") == {}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project where finetune splits the weights among its two processes."""
    folder, before = tmp_path_factory.mktemp("stage"), Path.cwd()
    os.chdir(folder)
    made = Project(folder)
    os.chdir(before)
    return made


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_to_the_same_bytes_and_one_process_writes(project, monkeypatch):
    for variable, value in FSDP.items():
        monkeypatch.setenv(variable, value)
    undisturbed = project.run()
    assert undisturbed.code == 0, undisturbed.said
    assert undisturbed.said.count("in each of 2 processes, which split the weights") == 1
    expected = project.outputs()
    project.forget()
    killed = project.run("kill", rank=1, number=5)
    assert killed.code == 128 + signal.SIGKILL, killed.said
    done = project.run()
    assert done.code == 0 and "goes on after step 3" in done.said, done.said
    assert project.outputs() == expected
    saved = load_file(project.folder / "models/members/base/encoder/model.safetensors")
    assert saved["embeddings.word_embeddings.weight"].shape[1] == 16


@pytest.mark.slow
def test_accelerate_launches_it_and_plain_processes_go_on_with_it(project):
    project.forget()
    launch = ["-m", "accelerate.commands.launch", "--use_fsdp", "--fsdp_version", "2", "--num_processes", "2"]
    more = ["--fsdp_activation_checkpointing", "true", "--fsdp_reshard_after_forward", "false"]
    command = [sys.executable, *launch, *more, "--main_process_port", str(free_port())]
    stopped = project.run("stop", rank=0, number=4, command=command)
    assert "which split the weights" in stopped.said and "checkpoint saved" in stopped.said, stopped.said
    done = project.run()
    assert done.code == 0, done.said
    assert "it is of a run in 2 processes that split the weights; in 2 processes, numbers" in done.said


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"FSDP_VERSION": "1"}, "asks for FSDP 1, .* accelerate launch --use_fsdp --fsdp_version 2"),
        ({"FSDP_AUTO_WRAP_POLICY": "SIZE_BASED_WRAP"}, "fsdp_auto_wrap_policy: found SIZE_BASED_WRAP"),
        ({"FSDP_IGNORED_MODULES": "heads.*"}, r"fsdp_ignored_modules: found heads\.\*, whose gradients"),
        (
            {"FSDP_ACTIVATION_CHECKPOINTING": "true", "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD": "true"},
            "fsdp_activation_checkpointing_offload: found true",
        ),
        ({"FSDP_RESHARD_AFTER_FORWARD": "FULL_SHARD"}, "config of FSDP can't be used: .*FULL_SHARD|full_shard"),
    ],
)
def test_what_cannot_be_had_of_fsdp_is_refused(monkeypatch, variables, message):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", **FSDP, **variables}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=message):
        share_out(1, "cpu")


def test_options_are_those_of_accelerates_config(monkeypatch):
    assert asked_for() is None
    variables = {
        "FSDP_RESHARD_AFTER_FORWARD": "false",
        "FSDP_OFFLOAD_PARAMS": "true",
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
        "FSDP_TRANSFORMER_CLS_TO_WRAP": "BertLayer,BertEmbeddings",
        "FSDP_ACTIVATION_CHECKPOINTING": "true",
        "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
    }
    for name, value in {**FSDP, **variables}.items():
        monkeypatch.setenv(name, value)
    assert asked_for() == Sharding(False, True, ("BertLayer", "BertEmbeddings"), True)
    assert os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] == "false", "transformers must load all of it"


class Scalar(nn.Module):
    """A model with a parameter that has no rows."""

    def __init__(self, sharding: Sharding | None) -> None:
        from bertrio.core.runtime import Runtime

        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        processes = type(ALONE)(sharding=sharding)
        self.runtime = Runtime(torch.device("cpu"), torch.float32, processes=processes)


def test_a_parameter_without_rows_and_a_class_that_is_not_there_are_named():
    with pytest.raises(UserError, match="scale is a single number"):
        split(Scalar(Sharding()), [])
    with pytest.raises(UserError, match="fsdp_transformer_layer_cls_to_wrap: found Nobody, which this model has no"):
        split(Scalar(Sharding(layers=("Nobody",))), [])


def test_without_fsdp_weights_stay_whole():
    model = Scalar(None)
    split(model, [])
    assert weights_of(model).own is model and weights_of(model).as_whole() is model


def test_an_architecture_without_a_list_of_layers_is_told_what_to_name():
    from transformers import AlbertConfig, AlbertModel

    sizes = {"vocab_size": 9, "embedding_size": 4, "hidden_size": 4, "num_attention_heads": 1, "intermediate_size": 4}
    with pytest.raises(UserError, match="albert models do not keep .* --fsdp_transformer_layer_cls_to_wrap"):
        layers_to_split(AlbertModel(AlbertConfig(**sizes)))
