"""Several processes make the updates of one, and stop, resume and end as one does."""

import json
import os
import signal
import subprocess
import time
from contextlib import chdir

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.elastic.utils.distributed import get_free_port

from bertrio.config import merged
from bertrio.core.distributed import ALONE, SAVE_WITHIN, Processes
from bertrio.core.errors import UserError
from bertrio.core.runtime import set_up
from bertrio.data.batches import Batch
from bertrio.training.build import build_trainer
from tests.distributed_run import train
from tests.stopping import ROOT, STATEFUL, StoppedProject
from tests.training.conftest import BI, DISTILLED, STILL, Workspace, write_teacher
from tests.waiting import wait_until

STEPS = {"finetune": {"epochs": 10, "max_steps": 12}}
SMART = {"lambda": 1, "radius": 0.1, "eta": 0.1, "sigma": 0.05}
UNCERTAINTY, MOVING = {"weighting": {"method": "uncertainty"}}, {"bregman": {"mu": 1, "momentum": 0.9}}
SETTINGS = {  # each technique, alone or in company
    "pcgrad, smart, sparse": {"surgery": {"method": "pcgrad", "log_conflicts": True}, "smart": SMART},
    "uncertainty, accumulate, ema, bregman": UNCERTAINTY | MOVING | {"finetune": {"accumulate": 3, "ema": 0.9}},
    "losses of whole batches, uncertainty, a teacher, rows without labels": {
        **DISTILLED,
        **UNCERTAINTY,
        "tasks": {"qqp": {**BI, "head": "cosine", "loss": "multiple_negatives_ranking"}, "sts": {"loss": "pearson"}},
    },
    "fewer rows than processes": {
        "tasks": {"sts": {"batch_size": 1, "loss": "mse"}, "qqp": {"batch_size": 1, **BI}},
        "smart": SMART,
        "penalties": {"l2": 1.0e-4},
    },
}
# No loss depends on these: the keys' bias cancels in attention weights, and a shift in Pearson's correlation.
# Their gradients are rounding errors, which Adam scales to steps as large as all others.
FREE = ("attention.self.key.bias",)
FREE_UNDER_PEARSON = ("heads.task_sts.output.bias",)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, warm):
    """The folder where one process and two have trained each of the settings."""
    folder = tmp_path_factory.mktemp("trained")
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    with chdir(folder):
        workspace = Workspace(folder, ROOT / "params.yaml")
        write_teacher({"qqp": 2})
        for name in ("settings", "weights"):
            (folder / name).mkdir()
        for name, setting in SETTINGS.items():
            workspace.params(**merged(merged(STILL, STEPS), setting))
            (folder / "params.yaml").rename(folder / "settings" / f"{name}.yaml")
        command = [warm.python, ROOT / "tests/distributed_run.py", "2", folder]
        two = subprocess.Popen(command, env=os.environ | environment)
        for settings in sorted((folder / "settings").glob("*.yaml")):
            train(settings, ALONE)
    assert two.wait(timeout=240) == 0
    return folder


@pytest.mark.heavy
@pytest.mark.parametrize("name", SETTINGS)
def test_two_processes_have_the_weights_and_logs_of_one(trained, name):
    one, two = (load_file(trained / f"weights/{name}-{count}.safetensors") for count in (1, 2))
    free = FREE + (FREE_UNDER_PEARSON if "whole batches" in name else ())
    errors = {weight: (two[weight] - values).abs().max().item() for weight, values in one.items()}
    assert {weight: error for weight, error in errors.items() if error > 2e-5 and not weight.endswith(free)} == {}
    one, two = (json.loads((trained / f"weights/{name}-{count}.json").read_text()) for count in (1, 2))
    assert one["rows"] == two["rows"]
    assert two["same_outputs"], "the same weights predict the same bits"
    assert two["norms"] == pytest.approx(one["norms"], rel=1e-4)
    pd.testing.assert_frame_equal(pd.DataFrame(two["losses"]), pd.DataFrame(one["losses"]), atol=1e-5)
    pd.testing.assert_frame_equal(pd.DataFrame(two["conflicts"]), pd.DataFrame(one["conflicts"]), atol=1e-4)


@pytest.mark.heavy
@pytest.mark.parametrize("rank", [0, 1])
def test_processes_listen_locally_and_notice_different_weights(trained, rank):
    messages = json.loads((trained / f"messages-{rank}.json").read_text())
    assert "hold different weights" in messages["unequal"]
    assert set(messages["listens"]) == {"127.0.0.1"}


@pytest.mark.parametrize(("rows", "count"), [(8, 2), (7, 3), (3, 3), (1, 4), (5, 1)])
def test_shards_of_a_batch_are_its_rows_with_weights_that_sum_to_1(rows, count):
    tokens = {name: torch.arange(2 * rows).view(rows, 2) for name in ("input_ids", "attention_mask")}
    batch = Batch("sst", np.arange(rows) + 10, (tokens,), torch.arange(rows))
    parts = [batch.part(rank, count) for rank in range(count)]
    counted = [part for part in parts if part.weight]
    assert np.array_equal(np.concatenate([part.rows for part in counted]), batch.rows)
    assert torch.equal(torch.cat([part.inputs[0]["input_ids"] for part in counted]), tokens["input_ids"])
    assert sum(part.weight for part in parts) == pytest.approx(1)
    assert all(len(part.rows) for part in parts), "all processes take the same steps"
    assert max(len(part.rows) for part in parts) == -(-rows // count)


def test_dropout_masks_depend_on_process_and_step():
    def draw(rank, step):
        set_up(1, "cpu", process_group=Processes(rank, 2, torch.device("cpu"))).begin_step(step)
        return torch.rand(4).tolist()

    draws = [draw(0, 1), draw(1, 1), draw(0, 2), draw(1, 2)]
    assert len(set(map(tuple, draws))) == 4
    assert draw(1, 2) == draws[3]


def test_rescaled_noise_in_several_processes_is_an_error(workspace):
    params, model, rows = workspace.built(smart={"lambda": 1, "projection": "rescale"})
    model.runtime = set_up(1, "cpu", process_group=Processes(0, 2, torch.device("cpu")))
    with pytest.raises(UserError, match="rescale in several processes; .* Use projection ball"):
        build_trainer(params, model, rows)


STOPPED = STATEFUL | {"runtime": {"processes": 2}, "schedule": {"max_batches": 5}}  # 10 steps in two epochs


@pytest.fixture(scope="module")
def project(tmp_path_factory, warm):
    """A project with the outputs of an uninterrupted finetune run in two processes."""
    project = StoppedProject(tmp_path_factory.mktemp("stage"), warm)
    project.write_params(STOPPED)
    project.uninterrupted = project.run()
    assert project.uninterrupted.code == 0, project.uninterrupted.output
    project.expected = project.outputs()
    return project


@pytest.mark.heavy
def test_stage_starts_its_processes_and_one_prints_and_writes(project):
    output = project.uninterrupted.output
    assert output.count("10 steps on cpu, float32, 1 thread in each of 2 processes") == 1
    assert output.count("epoch 2 (") == 1 and "Traceback" not in output
    timing = json.loads((project.folder / "metrics/timing/finetune-base.json").read_text())
    assert timing["processes"] == 2 and timing["steps"] == 10
    assert "models/members/base/heads.safetensors" in project.expected
    assert not list((project.folder / "checkpoints").rglob("*step*"))


@pytest.mark.heavy
def test_a_killed_process_ends_all_and_resuming_gives_the_same_bytes(project):
    project.start_over()
    killed = project.run("kill", "update", 5, rank=1)
    assert killed.code == 128 + signal.SIGKILL, killed.output
    assert not project.processes()
    assert "process 1 was ended by SIGKILL" in killed.output and "Traceback" not in killed.output
    stopped = project.run("term", "update", 3)
    assert stopped.code == 128 + signal.SIGTERM, stopped.output
    assert "resumed after step 3" in stopped.output
    assert stopped.output.count("checkpoint saved; the same command goes on") == 1 and "Traceback" not in stopped.output
    assert "process 1" not in stopped.output
    done = project.run()
    assert done.code == 0, done.output
    assert "resumed after step" in done.output
    assert project.outputs() == project.expected


@pytest.mark.heavy
def test_a_second_signal_stops_at_once_despite_a_frozen_process(project):
    project.start_over()
    began = time.monotonic()
    frozen = project.run("freeze", "update", 5, rank=1)
    assert time.monotonic() - began < SAVE_WITHIN / 2
    assert frozen.code == 128 + signal.SIGTERM, frozen.output
    assert not project.processes() and "Traceback" not in frozen.output


@pytest.mark.heavy
def test_an_error_in_one_process_ends_all_and_is_printed_once(project):
    project.start_over()
    failed = project.run("fail", "update", 2, rank=1)
    assert failed.code == 2, failed.output
    assert failed.output.count("process 1 has had enough") == 1 and "Traceback" not in failed.output
    assert not project.processes()


@pytest.mark.heavy
def test_processes_end_with_their_launcher_and_fewer_can_resume(project):
    project.start_over()
    ended = project.run("end", "update", 4, fresh=True)  # in a real launcher
    assert ended.code == -signal.SIGKILL
    wait_until(lambda: not project.processes())
    project.write_params(STOPPED | {"runtime": {"processes": 1}})
    done = project.run()
    assert done.code == 0, done.output
    assert "resumed after step" in done.output
    assert project.outputs().keys() == project.expected.keys()


@pytest.mark.heavy
def test_accelerate_launches_the_stage(project):
    project.start_over()
    project.write_params(STOPPED | {"runtime": {"processes": 1}})  # overridden by the launcher
    launcher = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2")
    done = project.run(launcher=(*launcher, "--main_process_port", str(get_free_port())))
    assert done.code == 0, done.output
    assert done.output.count("in each of 2 processes") == 1
    assert project.outputs() == project.expected
