import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from bertrio.core.interruption import SIGNALS, Interrupted, Interruption, install, stoppable
from tests.waiting import wait_until

each_signal = pytest.mark.parametrize("number", SIGNALS)


@pytest.fixture(autouse=True)
def handlers():
    """Check that signal handlers are restored."""
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    assert [signal.getsignal(number) for number in SIGNALS] == before


@each_signal
def test_first_signal_stops_between_steps(number):
    steps = []

    def train():
        with install() as interruption:
            for step in (1, 2, 3):
                if step == 2:
                    signal.raise_signal(number)
                steps.append(step)
                interruption.stop(step)

    with pytest.raises(Interrupted, match="stopped at step 2, checkpoint saved; the same command goes on") as caught:
        train()
    assert steps == [1, 2]
    assert caught.value.code == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}[number]


@each_signal
def test_second_signal_stops_at_once(number):
    noted = []

    def train():
        with stoppable(), install() as interruption:
            signal.raise_signal(number)
            noted.append(interruption.requested)
            signal.raise_signal(number)
            noted.append("went on")

    with pytest.raises(KeyboardInterrupt):
        train()
    assert noted == [number]


def test_unhandled_signal_is_raised_at_the_end():
    with pytest.raises(Interrupted), install():
        signal.raise_signal(signal.SIGTERM)


def test_errors_pass_through_without_a_signal():
    with install() as interruption:
        interruption.stop(1)
    with pytest.raises(ValueError, match="own"), install():
        raise ValueError("own")


def test_message_when_the_checkpoint_is_not_saved():
    interruption = Interruption()
    interruption.requested = signal.SIGTERM
    with pytest.raises(Interrupted, match="could not be saved; the same command goes on from the one before"):
        interruption.stop(7, saved=False)


def test_ignored_signals_stay_ignored():
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with install() as interruption:
            signal.raise_signal(signal.SIGINT)
            assert interruption.requested is None
    finally:
        signal.signal(signal.SIGINT, handler)


def test_other_threads_run_without_signals():
    def body():
        with stoppable(), install() as interruption:
            return interruption.requested

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(body).result() is None


# A small run of 30 seconds in steps of 0.1 that records how it ended.
RUN = """
import os, sys, time
from pathlib import Path
from bertrio.core.interruption import install, stoppable
if sys.argv[4] == "own":
    os.setpgid(0, 0)
Path(sys.argv[1], "started").touch()
time.sleep(float(sys.argv[3]))
try:
    with stoppable(), install() as interruption:
        for step in range(300):
            time.sleep(0.1)
            if sys.argv[2] == "checks":
                interruption.stop(step)
except KeyboardInterrupt as stopped:
    Path(sys.argv[1], "saved").write_text(str(stopped))
"""
# A stand-in for DVC: runs a command in a shell and waits. "; true" keeps the shell from replacing itself by exec.
DVC = """
import os, subprocess, sys
stage = {"DVC_STAGE": "finetune"} if sys.argv[2] == "dvc" else {}
subprocess.run(["/bin/sh", "-c", f"sh -c '{sys.argv[1]}; true'; true"], env={**os.environ, **stage})
"""


class StartedRun:
    """A run started in a shell by a stand-in for DVC, in its own process group."""

    def __init__(self, folder, checks: str = "checks", wait: float = 0.0, by: str = "dvc", group: str = "dvc") -> None:
        folder.mkdir()
        self.folder, self.script = folder, folder / "run.py"
        self.script.write_text(RUN)
        command = f"{sys.executable} {self.script} {folder} {checks} {wait} {group}"
        environment = {key: value for key, value in os.environ.items() if key != "DVC_STAGE"}
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        started = [sys.executable, "-c", DVC, command, by]
        self.process = subprocess.Popen(started, env=environment, start_new_session=True, stderr=subprocess.DEVNULL)

    def is_alive(self) -> bool:
        """Return True if any of its processes is running."""
        self.process.poll()
        listed = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        return str(self.script) in listed


@pytest.mark.heavy
@pytest.mark.skipif(sys.platform != "linux", reason="shells between DVC and a stage are seen on Linux alone")
def test_stage_ends_with_dvc_and_other_runs_outlive_their_shell(tmp_path):
    checks, no_checks, _, own_group, without_dvc = runs = [
        StartedRun(tmp_path / "a"),
        StartedRun(tmp_path / "b", checks="never"),
        StartedRun(tmp_path / "c", wait=2.5),  # DVC is gone before it checks
        StartedRun(tmp_path / "d", group="own"),  # as under timeout
        StartedRun(tmp_path / "e", by="hand"),
    ]
    try:
        wait_until(lambda: all((run.folder / "started").exists() for run in runs))
        time.sleep(1.5)  # all but the third run steps
        assert all(run.is_alive() for run in runs)
        for run in runs:
            run.process.kill()
        wait_until(lambda: sum(run.is_alive() for run in runs) == 1)
        assert without_dvc.is_alive()
        assert all("stopped at step" in (run.folder / "saved").read_text() for run in (checks, own_group))
        assert not (no_checks.folder / "saved").exists()
    finally:
        for run in runs:
            if run.is_alive():
                os.killpg(run.process.pid, signal.SIGKILL)
