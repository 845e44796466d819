"""Runs of finetune that are killed, stopped or out of disk, and run again: the same bytes as if nothing had been.

Each run is a process of its own, as users have it. `make soak` does the same at many more places (benchmarks/soak.py).
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
def project(tmp_path_factory):
    """A project, and what finetune makes there when nothing stops it."""
    made = StoppedProject(tmp_path_factory.mktemp("stopped"))
    made.write_params(STATEFUL)
    made.undisturbed = made.run(fresh=True)
    assert made.undisturbed.code == 0, made.undisturbed.said
    made.expected = made.outputs()
    yield made
    made.close()


@pytest.mark.heavy
def test_a_run_that_is_stopped_again_and_again_goes_on_and_ends_with_the_same_bytes(project):
    project.start_over()
    per_step = project.undisturbed.counts["pass"] // project.undisturbed.counts["update"]
    assert project.run("kill", "pass", per_step * EVERY + 2).code == KILL  # in the middle of a step
    stopped = project.run("term", "update", 2)
    assert stopped.code == 143, stopped.said
    assert f"finetune-base: stopped at step {EVERY + 2}, checkpoint saved; the same command goes on" in stopped.said
    assert "Traceback" not in stopped.said
    saving = project.run("kill", "sync", 1)
    assert saving.code == KILL and saving.counts["update"] == 1, "it went on at the very step, and saved after the next"
    assert project.run("kill", "rename", 1).code == KILL  # between fsync and rename
    assert project.run("kill", "scored", 1).code == KILL  # at the end of an epoch
    done = project.run()
    assert done.code == 0, done.said
    assert differing(project.outputs(), project.expected) == []
    assert not project.whole_checkpoints(), "nobody needs them any more"


@pytest.mark.heavy
def test_what_is_not_writable_leaves_checkpoints_and_the_outputs_before_whole(project):
    project.write_params(STATEFUL | {"runtime": {"seed": 5}})
    # fresh, as what is said goes through a pipe then; into a file it would end where the disk does
    full = project.run("full", "update", project.undisturbed.counts["update"], fresh=True)
    assert full.code == 2, full.said
    assert "error in finetune-base" in full.said and "File too large" in full.said and "Traceback" not in full.said
    assert differing(project.outputs(), project.expected) == []
    assert project.whole_checkpoints()
    folder = project.folder / "plots/history"
    folder.rename(project.folder / "aside")
    folder.write_text("a file, where a folder should be")
    blocked = project.run()
    assert blocked.code == 2, blocked.said
    assert "plots/history" in blocked.said and "Traceback" not in blocked.said
    assert blocked.counts["update"] <= EVERY, "it went on"
    assert project.whole_checkpoints()
    folder.unlink()
    (project.folder / "aside").rename(folder)


@pytest.mark.heavy
def test_training_that_has_no_more_memory_ends_with_a_message_and_goes_on_to_the_same_bytes(project):
    project.write_params(STATEFUL)
    project.start_over()
    starved = project.run("memory", "update", EVERY + 1)
    assert starved.code == 2 and "Traceback" not in starved.said, starved.said
    assert "error in finetune-base: out of memory" in starved.said and "finetune.accumulate: 2" in starved.said
    assert "goes on after step 3" in project.run().said
    assert differing(project.outputs(), project.expected) == []


def dvc(project: StoppedProject, *command: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
    """Starts a command of DVC there, in a process group of its own, as a shell does."""
    beside = Path(sys.executable).parent
    environment = {"BERTRIO_CHECKPOINTS": str(project.checkpoints), "PATH": f"{beside}:{os.environ['PATH']}"}
    pipes = {"stdout": stdout, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
    return subprocess.Popen([beside / "dvc", *command], cwd=project.folder, env=os.environ | environment, **pipes)


def done(process: subprocess.Popen[str]) -> str:
    """What a command said that has to end well."""
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return output


@pytest.mark.heavy
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_killing_dvc_ends_its_training_and_the_next_repro_gives_the_same_bytes(project, tmp_path):
    project.start_over()
    project.write_params({"finetune": {"epochs": 20}})
    for name in ("dvc.yaml", ".dvcignore"):
        shutil.copy(ROOT / name, project.folder)
    done(dvc(project, "init", "--no-scm"))
    done(dvc(project, "config", "core.analytics", "false"))
    done(dvc(project, "repro", "--single-item", "check"))
    assert project.run(stage="teach").code == 0
    repro = ("repro", "--single-item", "finetune@base")  # what other stages make is there
    with open(tmp_path / "output", "w") as file:
        first = dvc(project, *repro, stdout=file.fileno())
    try:
        wait_until(lambda: project.whole_checkpoints() or first.poll() is not None, 900)
        assert first.poll() is None, (tmp_path / "output").read_text()
        first.kill()
        wait_until(lambda: not project.processes(), 15)  # five on a machine that does nothing else
    finally:
        os.killpg(first.pid, signal.SIGKILL) if project.processes() else None
        first.wait()
    assert "DVC, which started this stage, is gone" in (tmp_path / "output").read_text()
    assert "goes on after step" in done(dvc(project, *repro))
    assert not project.whole_checkpoints()
    resumed = project.outputs()
    project.start_over()
    assert project.run().code == 0  # in one go
    assert differing(project.outputs(), resumed) == []
