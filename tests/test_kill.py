"""Runs of finetune that are killed, stopped or out of disk resume to the same bytes as an uninterrupted run.

Each run is a separate process, as for users. `make soak` (benchmarks/soak.py) kills at many more events.
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stopping import EVERY, ROOT, STATEFUL, StoppedProject, differing
from tests.waiting import wait_until

KILL = -signal.SIGKILL


@pytest.fixture(scope="module")
def project(tmp_path_factory, warm):
    """A project with the outputs of an uninterrupted run of finetune."""
    project = StoppedProject(tmp_path_factory.mktemp("stopped"), warm)
    project.write_params(STATEFUL)
    project.undisturbed = project.run(fresh=True)
    assert project.undisturbed.code == 0, project.undisturbed.output
    project.expected = project.outputs()
    return project


@pytest.mark.heavy
def test_run_stopped_repeatedly_ends_with_the_same_bytes(project):
    project.start_over()
    per_step = project.undisturbed.counts["pass"] // project.undisturbed.counts["update"]
    assert project.run("kill", "pass", per_step * EVERY + 2).code == KILL  # in the middle of a step
    stopped = project.run("term", "update", 2)
    assert stopped.code == 143, stopped.output
    assert f"finetune-base: stopped at step {EVERY + 2}, checkpoint saved; the same command goes on" in stopped.output
    assert "Traceback" not in stopped.output
    saving = project.run("kill", "sync", 1)
    assert saving.code == KILL and saving.counts["update"] == 1, "it did not resume at the step where it stopped"
    assert project.run("kill", "rename", 1).code == KILL  # between fsync and rename
    assert project.run("kill", "scored", 1).code == KILL  # at the end of an epoch
    resumed = project.run()
    assert resumed.code == 0, resumed.output
    assert differing(project.outputs(), project.expected) == []
    assert not project.whole_checkpoints(), "checkpoints of a finished run"


@pytest.mark.heavy
def test_full_disk_keeps_checkpoints_and_old_outputs(project):
    project.write_params(STATEFUL | {"runtime": {"seed": 5}})
    # fresh, for output through a pipe; a file could not grow either
    full = project.run("full", "update", project.undisturbed.counts["update"], fresh=True)
    assert full.code == 2, full.output
    assert "error in finetune-base" in full.output and "File too large" in full.output
    assert "Traceback" not in full.output
    assert differing(project.outputs(), project.expected) == []
    assert project.whole_checkpoints()
    folder = project.folder / "plots/history"
    folder.rename(project.folder / "moved")
    folder.write_text("a file in place of a folder")
    blocked = project.run()
    assert blocked.code == 2, blocked.output
    assert "plots/history" in blocked.output and "Traceback" not in blocked.output
    assert blocked.counts["update"] <= EVERY, "it continued to train"
    assert project.whole_checkpoints()
    folder.unlink()
    (project.folder / "moved").rename(folder)


@pytest.mark.heavy
def test_run_out_of_memory_resumes_to_the_same_bytes(project):
    project.write_params(STATEFUL)
    project.start_over()
    starved = project.run("memory", "update", EVERY + 1)
    assert starved.code == 2 and "Traceback" not in starved.output, starved.output
    assert "error in finetune-base: out of memory" in starved.output and "finetune.accumulate: 2" in starved.output
    assert "resumed after step 3" in project.run().output
    assert differing(project.outputs(), project.expected) == []


def dvc(project: StoppedProject, path: str, *command: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
    """Start a DVC command in the project, with `path` as PATH, in its own process group, as a shell does."""
    environment = os.environ | {"BERTRIO_CHECKPOINTS": str(project.checkpoints), "PATH": path}
    pipes = {"stdout": stdout, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
    return subprocess.Popen(["dvc", *command], cwd=project.folder, env=environment, **pipes)


@pytest.mark.heavy
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_killing_dvc_stops_training_and_repro_resumes_it(project, warm, tmp_path):
    def run_dvc(*command: str) -> str:
        process = dvc(project, warm.environment()["PATH"], *command)
        output, _ = process.communicate()
        assert process.returncode == 0, output
        return output

    project.start_over()
    project.write_params({"finetune": {"epochs": 20}})
    for name in ("dvc.yaml", ".dvcignore"):
        shutil.copy(ROOT / name, project.folder)
    run_dvc("init", "--no-scm")
    run_dvc("config", "core.analytics", "false")
    run_dvc("repro", "--single-item", "check")
    assert project.run(stage="teach").code == 0
    repro = ("repro", "--single-item", "finetune@base")  # outputs of other stages exist
    scripts = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # DVC itself, to see its processes end
    with open(tmp_path / "output", "w") as file:
        first = dvc(project, scripts, *repro, stdout=file.fileno())
    try:
        wait_until(lambda: project.whole_checkpoints() or first.poll() is not None, 900)
        assert first.poll() is None, (tmp_path / "output").read_text()
        first.kill()
        wait_until(lambda: not project.processes(), 15)  # 5 s on an idle machine
    finally:
        os.killpg(first.pid, signal.SIGKILL) if project.processes() else None
        first.wait()
    assert "DVC, which started this stage, is gone" in (tmp_path / "output").read_text()
    assert "resumed after step" in run_dvc(*repro)
    assert not project.whole_checkpoints()
    resumed = project.outputs()
    project.start_over()
    assert project.run().code == 0  # without interruption
    assert differing(project.outputs(), resumed) == []
