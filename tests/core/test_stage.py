import errno
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from dvc.scm import NoSCMError

from bertrio.core.errors import UserError, need_environment
from bertrio.core.files import read_json, whole_file
from bertrio.core.stage import run_stage, session, user_message


def test_a_stage_tells_what_it_cost(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_stage("split", lambda: {"rows_per_second": 12.34})
    timing = read_json("metrics/timing/split.json")
    assert timing["rows_per_second"] == 12.3
    assert timing["seconds"] >= 0
    assert timing["peak_memory_mb"] > 1
    assert timing["session"] == session()


def test_a_python_without_the_packages_is_told_how_to_set_up(root):
    commands = [[str(path)] for path in sorted((root / "stages").glob("*.py"))] + [["-m", "bertrio.cli.main", "check"]]
    assert len(commands) > 9
    for command in commands:
        bare = [sys.executable, "-S", *command]  # without site-packages
        environment = {**os.environ, "PYTHONPATH": str(root / "src")}
        ended = subprocess.run(bare, env=environment, capture_output=True, text=True)
        assert ended.returncode == 2 and "Traceback" not in ended.stderr
        assert "lacks the packages of bertrio: huggingface_hub, numpy" in ended.stderr
        assert "run make" in ended.stderr and "source .venv/bin/activate" in ended.stderr


def test_without_a_folder_for_temporary_files_a_command_says_so(monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/nowhere"])
    with pytest.raises(SystemExit):
        need_environment()
    assert "No usable temporary directory found in ['/nowhere']; set TMPDIR" in capsys.readouterr().err


def fail(error):
    raise error


def no_reading():
    Path("data/gone.parquet").read_bytes()


def full_disk():
    with whole_file("folder/a.csv") as temporary:
        temporary.touch()
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (lambda: fail(UserError("data.path: [x] is\nwrong")), 2, "data.path: [x] is\nwrong"),
        (lambda: fail(KeyboardInterrupt()), 130, "stopped before its end; the same command starts again"),
        (lambda: signal.raise_signal(signal.SIGTERM), 143, "stopped before its end; the same command starts again"),
        (lambda: fail(OSError(errno.ENOSPC, "No space left on device", "a.csv")), 2, "a.csv: No space left on device"),
        (no_reading, 2, "data/gone.parquet: No such file or directory"),
        (full_disk, 2, "folder/a.csv: No space left on device; make room there"),
        (lambda: np.empty(10**15), 2, "finetune.accumulate: 2"),
        (lambda: torch.empty(10**15), 2, "finetune.accumulate: 2"),
        (lambda: fail(RuntimeError("could not create a primitive")), 2, "out of memory"),  # oneDNN
        (lambda: fail(NoSCMError()), 2, "Only supported for Git repositories"),
        (lambda: fail(UserError("a\x1b[2J:smile:\udcff")), 2, "a\\x1b[2J:smile:\\udcff"),
    ],
)
def test_a_failure_ends_with_its_code_and_without_a_timing_file(tmp_path, monkeypatch, capsys, body, code, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        run_stage("split", body)
    printed = capsys.readouterr().err
    assert caught.value.code == code
    assert "split" in printed and words in printed and "Traceback" not in printed
    assert not Path("metrics").exists()


def test_faults_of_the_code_keep_their_traceback():
    for error in (ValueError("x"), RuntimeError("shapes differ"), KeyError("x")):
        assert user_message(error) is None
        with pytest.raises(type(error)):
            run_stage("split", lambda error=error: fail(error))


def test_a_gpu_without_memory_and_libraries_with_errors_of_their_own_are_explained():
    error = UserError("a.parquet: can't be read; run the stage that writes it again")
    error.__cause__ = MemoryError("malloc failed")
    for without_memory in (error, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")):
        assert "encoder.checkpointing" in user_message(without_memory)
    assert "make room" in user_message(Exception("I/O error: No space left on device (os error 28)"))
