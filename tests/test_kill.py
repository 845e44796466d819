"""Runs of finetune that are killed, stopped or out of disk, and run again: the same bytes as if nothing had been.

Each run is a process of its own, as users have it. `make soak` does the same at many more places.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.stopping import EVERY, StoppedProject, differing
from tests.test_pipeline import Project

EVERYTHING = {
    "schedule": {"name": "joint"},
    "surgery": {"method": "pcgrad", "log_conflicts": True},
    "weighting": {"method": "uncertainty"},
    "smart": {"lambda": 1.0},
    "bregman": {"mu": 1.0, "late_momentum": 0.999},
    "finetune": {"accumulate": 2, "ema": 0.9},
}
KILL = -signal.SIGKILL


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project, and what finetune makes there when nothing stops it."""
    made = StoppedProject(tmp_path_factory.mktemp("stopped"))
    made.write_params(EVERYTHING)
    made.undisturbed = made.run()
    assert made.undisturbed.code == 0, made.undisturbed.said
    made.expected = made.outputs()
    return made


def test_a_run_that_is_stopped_again_and_again_goes_on_and_ends_with_the_same_bytes(project):
    project.start_over()
    per_step = project.undisturbed.counts["pass"] // project.undisturbed.counts["update"]
    assert project.run("kill", "pass", per_step * EVERY + 2).code == KILL  # in the middle of a step
    stopped = project.run("term", "update", 2)
    assert stopped.code == 143, stopped.said
    assert f"finetune-base: stopped at step {EVERY + 2}, checkpoint saved; the same command goes on" in stopped.said
    assert "Traceback" not in stopped.said
    saving = project.run("kill", "sync", 2)
    assert saving.code == KILL and saving.counts["update"] == 1, "it went on at the very step, and saved after the next"
    assert project.run("kill", "rename", 1).code == KILL  # between fsync and rename
    assert project.run("kill", "scored", 1).code == KILL  # at the end of an epoch
    done = project.run()
    assert done.code == 0, done.said
    assert differing(project.outputs(), project.expected) == []
    assert not project.whole_checkpoints(), "nobody needs them any more"


def test_what_is_not_writable_leaves_checkpoints_and_the_outputs_before_whole(project):
    project.write_params(EVERYTHING | {"runtime": {"seed": 5}})
    full = project.run("full", "update", project.undisturbed.counts["update"])
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


class KilledPipeline(Project):
    """A project whose fine-tuning takes some seconds."""

    def __init__(self, root: Path, folder: Path) -> None:
        super().__init__(root, folder)
        self.checkpoints = folder.with_name("checkpoints")
        self.write_params({"finetune": {"epochs": 60}, "checkpoints": {"steps": 20, "folder": str(self.checkpoints)}})

    def processes(self) -> list[int]:
        """The processes that run in its folder."""
        found = []
        for link in Path("/proc").glob("[0-9]*/cwd"):
            try:
                inside = link.readlink().is_relative_to(self.folder)
            except OSError:  # it has ended, or is another user's
                continue
            if inside:
                found.append(int(link.parent.name))
        return found

    def outputs(self) -> dict[str, bytes]:
        """What finetune has written."""
        folders = ("models/members", "predictions/members", "plots/history", "plots/steps", "plots/conflicts")
        files = [path for name in folders for path in (self.folder / name).rglob("*") if path.is_file()]
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in files}


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_killing_dvc_ends_its_training_and_the_next_repro_gives_the_same_bytes(root, tmp_path):
    (tmp_path / "project").mkdir()
    project = KilledPipeline(root, tmp_path / "project")
    with open(tmp_path / "said", "w") as said:
        dvc = subprocess.Popen(
            [str(Path(sys.executable).parent / "dvc"), "repro", "finetune@base"],
            cwd=project.folder,
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        try:
            wait_until(lambda: list(project.checkpoints.glob("finetune-base-*/*-step-*")), 300)
            dvc.kill()
            time.sleep(5)
            assert project.processes() == []
        finally:
            os.killpg(dvc.pid, signal.SIGKILL) if project.processes() else None
            dvc.wait()
    assert "checkpoint saved; the same command goes on from there" in (tmp_path / "said").read_text()
    output = project.run("dvc", "repro", "finetune@base")
    assert "goes on after step" in output
    resumed = project.outputs()
    assert not list(project.checkpoints.glob("finetune-base-*"))
    project.run(sys.executable, "stages/finetune.py", "--member", "base")  # in one go
    assert differing(project.outputs(), resumed) == []


def wait_until(condition, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "took too long"
        time.sleep(0.1)
