import errno
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from bertrio.core.errors import UserError
from bertrio.core.files import read_json, write_text
from bertrio.core.interruption import install
from bertrio.core.stage import run_stage, user_message


def test_a_stage_tells_what_it_cost(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_stage("split", lambda: {"rows_per_second": 12.34})
    timing = read_json("metrics/timing/split.json")
    assert timing["rows_per_second"] == 12.3
    assert timing["seconds"] >= 0
    assert timing["peak_memory_mb"] > 1


def ended(body, capsys) -> tuple[int, str]:
    """The exit code of a stage, and what it said."""
    with pytest.raises(SystemExit) as caught:
        run_stage("split", body)
    told = capsys.readouterr().err
    assert "split" in told and "Traceback" not in told
    assert not Path("metrics").exists()
    return caught.value.code, told


def fail(error):
    raise error


def no_reading():
    Path("data/gone.parquet").read_bytes()


def no_folder():
    Path("models").write_text("a file stands where the stage wants a folder")
    write_text("models/members/base.json", "{}")


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (lambda: fail(UserError("data.path: [x] is\nwrong")), 2, "data.path: [x] is\nwrong"),
        (lambda: fail(KeyboardInterrupt()), 130, "stopped before its end; the same command starts again"),
        (lambda: signal.raise_signal(signal.SIGTERM), 143, "stopped before its end; the same command starts again"),
        (lambda: fail(OSError(errno.ENOSPC, "No space left on device", "a.csv")), 2, "a.csv: No space left on device"),
        (no_reading, 2, "data/gone.parquet: No such file or directory"),
        (no_folder, 2, "models/members"),
        (lambda: np.empty(10**15), 2, "finetune.accumulate: 2"),
        (lambda: torch.empty(10**15), 2, "finetune.accumulate: 2"),
    ],
)
def test_a_failure_ends_with_its_code_and_without_a_timing_file(tmp_path, monkeypatch, capsys, body, code, words):
    monkeypatch.chdir(tmp_path)
    found, told = ended(body, capsys)
    assert found == code
    assert words in told


def test_training_that_was_stopped_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    def train():
        with install() as interruption:
            signal.raise_signal(signal.SIGTERM)
            interruption.stop(12)

    monkeypatch.chdir(tmp_path)
    code, told = ended(train, capsys)
    assert code == 143
    assert "split: stopped at step 12, checkpoint saved; the same command goes on from there" in told


def test_faults_of_the_code_keep_their_traceback():
    for error in (ValueError("x"), RuntimeError("shapes differ"), KeyError("x")):
        assert user_message(error) is None
        with pytest.raises(type(error)):
            run_stage("split", lambda error=error: fail(error))


def test_a_gpu_without_memory_and_libraries_with_errors_of_their_own_are_explained():
    assert "encoder.checkpointing" in user_message(
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    )
    assert "make room" in user_message(Exception("I/O error: No space left on device (os error 28)"))
