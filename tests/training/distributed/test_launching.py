"""The processes of a run start with, are stopped with and end with the command that was called."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

LAUNCH = """
import os, signal, sys, time
from pathlib import Path
from bertrio.training.distributed import launching

launching.GRACE = 1.0
if "RANK" not in os.environ:
    sys.exit(launching.launch(2, threads=5))
launching.end_with_launcher()
rank, signals = os.environ["RANK"], []
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, frame: signals.append(number))
Path(rank).write_text(str(os.getpid()))
while not (Path("0").exists() and Path("1").exists()):
    time.sleep(0.01)
"""


class Launched:
    """A script that runs as two processes; `body` is what each does once both are there."""

    def __init__(self, folder: Path, body: str) -> None:
        self.folder = folder
        (folder / "script.py").write_text(LAUNCH + body)
        environment = {name: value for name, value in os.environ.items() if name != "RANK"}
        self.launcher = subprocess.Popen(
            [sys.executable, "script.py"],
            cwd=folder,
            env=environment | {"PYTHONPATH": str(Path(__file__).parents[3] / "src"), "DVC_STAGE": "finetune@base"},
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self) -> tuple[int, str]:
        """Waits; the exit code and what was said."""
        _, said = self.launcher.communicate(timeout=60)
        return self.launcher.returncode, said

    def pids(self) -> list[int]:
        """The two processes, once they are there."""
        _until(lambda: all((self.folder / rank).exists() and (self.folder / rank).read_text() for rank in "01"))
        return [int((self.folder / rank).read_text()) for rank in "01"]

    def all_gone(self) -> bool:
        """Whether both have ended."""
        return not any(_runs(number) for number in self.pids())


def _until(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _runs(number: int) -> bool:
    """Whether a process is there that is not a zombie."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_each_process_knows_its_rank_and_has_its_share_of_the_threads(tmp_path):
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS", "BERTRIO_THREADS", "DVC_STAGE")
    code, _ = Launched(tmp_path, f"Path(f'env-{{rank}}').write_text(' '.join(map(os.environ.get, {names})))").end()
    assert code == 0
    assert (tmp_path / "env-0").read_text() == "0 0 2 2 2 5 finetune@base"
    assert (tmp_path / "env-1").read_text() == "1 1 2 2 2 5 finetune@base"


def test_it_is_well_when_the_main_process_is_and_nobody_is_left(tmp_path):
    run = Launched(tmp_path, "if rank == '1': time.sleep(60)")
    assert run.end() == (0, "")
    assert run.all_gone()


def test_who_fails_first_gives_code_and_message_and_the_others_end(tmp_path):
    run = Launched(tmp_path, "sys.exit('the disk is full' if rank == '1' else time.sleep(60))")
    assert run.end() == (1, "process 1 ended first\nthe disk is full\n")
    assert run.all_gone()


def test_a_message_of_the_main_process_stands_alone(tmp_path):
    run = Launched(tmp_path, "time.sleep(0.5 * int(rank)); sys.exit(f'rank {rank} has had enough')")
    assert run.end() == (1, "rank 0 has had enough\n")


def test_a_killed_process_is_told(tmp_path):
    run = Launched(tmp_path, "os.kill(os.getpid(), signal.SIGKILL) if rank == '1' else time.sleep(60)")
    assert run.end() == (128 + signal.SIGKILL, "process 1 was ended by SIGKILL\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_each_process_once(tmp_path, number):
    wait = "[time.sleep(0.05) for _ in range(600) if not signals]; time.sleep(0.5); "
    run = Launched(tmp_path, f"{wait}Path(f'signals-{{rank}}').write_text(str(signals)); sys.exit(128 + signals[0])")
    run.pids()
    time.sleep(0.2)
    run.launcher.send_signal(number)
    assert run.end() == (128 + number, "")
    assert [(tmp_path / f"signals-{rank}").read_text() for rank in "01"] == [str([number.value])] * 2


def test_processes_do_not_outlive_a_launcher_that_is_killed(tmp_path):
    run = Launched(tmp_path, "time.sleep(60); time.sleep(60)")  # SIGTERM is noted, and nobody acts on it
    run.pids()
    run.launcher.kill()
    assert run.end()[0] == -signal.SIGKILL
    _until(run.all_gone)
