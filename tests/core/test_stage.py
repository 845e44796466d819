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


def test_stage_writes_its_timing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_stage("split", lambda: {"rows_per_second": 12.34})
    timing = read_json("metrics/timing/split.json")
    assert timing["rows_per_second"] == 12.3 and timing["session"] == session()
    assert timing["seconds"] >= 0 and timing["peak_memory_mb"] > 1


def test_missing_packages_error_says_how_to_set_up(root):
    commands = [[str(path)] for path in sorted((root / "stages").glob("*.py"))] + [["-m", "bertrio.cli.main", "check"]]
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    for command in commands:
        command = [sys.executable, "-S", *command]  # without site-packages
        result = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert result.returncode == 2 and "Traceback" not in result.stderr
        assert "lacks the packages of bertrio: huggingface_hub, numpy" in result.stderr
        assert "run make" in result.stderr and "source .venv/bin/activate" in result.stderr


def test_missing_temporary_folder_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/nowhere"])
    with pytest.raises(SystemExit):
        need_environment()
    assert "No usable temporary directory found in ['/nowhere']; set TMPDIR" in capsys.readouterr().err


def fail(error):
    raise error


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
        (lambda: Path("data/gone.parquet").read_bytes(), 2, "data/gone.parquet: No such file or directory"),
        (full_disk, 2, "folder/a.csv: No space left on device; make room there"),
        (lambda: np.empty(10**15), 2, "finetune.accumulate: 2"),
        (lambda: torch.empty(10**15), 2, "finetune.accumulate: 2"),
        (lambda: fail(RuntimeError("could not create a primitive")), 2, "out of memory"),  # oneDNN
        (lambda: fail(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")), 2, "finetune.accumulate: 2"),
        (lambda: fail(NoSCMError()), 2, "Only supported for Git repositories"),
        (lambda: fail(UserError("a\x1b[2J:smile:\udcff")), 2, "a\\x1b[2J:smile:\\udcff"),
    ],
)
def test_failed_stage_has_an_exit_code_and_no_timing_file(tmp_path, monkeypatch, capsys, body, code, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        run_stage("split", body)
    printed = capsys.readouterr().err
    assert caught.value.code == code
    assert "split" in printed and words in printed and "Traceback" not in printed
    assert not Path("metrics").exists()


def test_bugs_keep_their_traceback():
    for error in (ValueError("x"), RuntimeError("shapes differ"), KeyError("x")):
        assert user_message(error) is None
        with pytest.raises(type(error)):
            run_stage("split", lambda error=error: fail(error))


def test_out_of_memory_and_full_disk_messages():
    error = UserError("a.parquet: can't be read; run the stage that writes it again")
    error.__cause__ = MemoryError("malloc failed")
    assert "encoder.checkpointing" in user_message(error)
    assert "make room" in user_message(Exception("I/O error: No space left on device (os error 28)"))
