"""Checkpoints: a run killed at any point finds a complete one, or none."""

import os
import resource
import time
import weakref
from pathlib import Path
from unittest.mock import Mock, patch

import pytest
import torch
from safetensors import safe_open

from bertrio.config.groups import CheckpointParams
from bertrio.core.errors import UserError
from bertrio.core.runtime import set_up
from bertrio.training import checkpoints
from bertrio.training.checkpoints import Checkpoints


def part_of(number=0.0):
    """Return a part of a run with 1000 weights of this value."""
    part = torch.nn.Linear(1000, 1, bias=False)
    torch.nn.init.constant_(part.weight, number)
    return part


def opened(root, stage="finetune-base", identity="a", minutes=None, steps=None):
    with patch.dict(os.environ, {checkpoints.CHECKPOINTS: str(root)}):
        return Checkpoints.open(stage, identity, CheckpointParams(minutes=minutes, steps=steps), set_up(1, "cpu"))


def saved(root, *steps, **how):
    """Save at these steps and return the names of the files that are left."""
    with opened(root, **how) as run:
        with run.resumed({"part": (part := part_of())}):
            for step in steps:
                torch.nn.init.constant_(part.weight, step)
                run.after_step(step, force=True)
        return sorted(path.name for path in run.folder.glob("step-*"))


def restored(root, **how):
    """Return the number that a run resumes from; 0 if it starts anew."""
    with opened(root, **how) as run, run.resumed({"part": (part := part_of())}):
        return part.weight.unique().item()


def test_the_last_state_is_restored_and_two_are_kept(tmp_path):
    assert saved(tmp_path, 10, 20, 30) == ["step-00000020.safetensors", "step-00000030.safetensors"]
    assert restored(tmp_path) == 30
    assert restored(tmp_path, identity="b") == restored(tmp_path, stage="finetune-second") == 0


def test_a_checkpoint_of_another_run_is_not_resumed(tmp_path, capsys):
    saved(tmp_path, 5, identity="b")
    saved(tmp_path, 3)
    (foreign,), (own,) = tmp_path.glob("*/step-*5.safetensors"), tmp_path.glob("*/step-*3.safetensors")
    foreign.rename(own.with_name(foreign.name))
    assert restored(tmp_path) == 3
    assert "step-00000005.safetensors cannot be read (it is of another run" in capsys.readouterr().err


def test_clock_jumps_do_not_affect_active_runs(tmp_path, monkeypatch):
    saved(tmp_path, 1)
    year, clock = 365 * 24 * 3600, time.time
    for jump in (year, -year):
        with opened(tmp_path, minutes=1) as run, run.resumed({"part": (part := part_of())}):
            monkeypatch.setattr(time, "time", lambda jump=jump: clock() + jump)
            opened(tmp_path, stage="other").finish()  # removes old ones
            run.after_step(2)
            assert part.weight.unique().item() == 1 and len(run._files()) == 1


def test_saving_and_resuming_keep_no_copy_of_the_state(tmp_path, monkeypatch):
    save, load, loaded = Mock(wraps=checkpoints.save_file), checkpoints._read, []

    def read(*where):
        state = load(*where)
        loaded.append(weakref.ref(state["parts"]["part"]["weight"]))
        return state

    monkeypatch.setattr(checkpoints, "save_file", save)
    monkeypatch.setattr(checkpoints, "_read", read)
    with opened(tmp_path) as run, run.resumed({"part": (part := part_of(1.0))}):
        run.after_step(1, force=True)
        assert save.call_args.args[0]["0"].data_ptr() == part.weight.data_ptr()
    with opened(tmp_path) as run, run.resumed({"part": part_of()}):
        assert loaded[0]() is None


def test_tied_tensors_are_restored(tmp_path):
    for number in (2.0, 0.0):
        tied = part_of(number)
        with opened(tmp_path) as run, run.resumed({"part": torch.nn.ModuleList([tied, tied])}):
            assert tied.weight.unique().item() == 2
            run.after_step(1, force=True)
    with safe_open(run._files()[-1], "pt") as file:
        assert set(file.metadata()) == {"run", "sha256"}, "a long state does not fit into the header"


def test_checkpoints_are_due_by_steps_or_minutes(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for how, expected in (({"steps": 3}, [3, 6]), ({"minutes": 2}, [4]), ({}, [])):
        with opened(tmp_path, **how) as run, run.resumed({"part": part_of()}):
            for step in range(1, 8):
                now[0] += 30
                run.after_step(step)
            assert [int(path.stem[5:]) for path in run._files()] == expected
            run.finish()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damaged", [lambda x: b"", lambda x: x[:-1], lambda x: x[:-9] + b"\1" + x[-8:]])
def test_unreadable_checkpoints_fall_back_to_the_previous_one(tmp_path, capsys, damaged):
    saved(tmp_path, 1, 2)
    path = next(tmp_path.glob("*/step-00000002.safetensors"))
    path.write_bytes(damaged(path.read_bytes()))
    assert restored(tmp_path) == 1
    assert "step-00000002.safetensors cannot be read" in capsys.readouterr().err


def test_a_full_disk_is_reported_and_keeps_older_checkpoints(tmp_path, capsys):
    saved(tmp_path, 1)
    with opened(tmp_path) as run, run.resumed({"part": part_of(1.0)}):
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
        try:
            run.after_step(3, force=True)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert "step 3 could not be written" in capsys.readouterr().err
        run.after_step(4, force=True)
    assert restored(tmp_path) == 1


def test_a_second_start_is_an_error_and_an_unwritable_folder_is_not(tmp_path, capsys):
    message = rf"finetune-base: process {os.getpid()} in {Path.cwd()} trains the same, .* {tmp_path}.*Wait .* or end it"
    with opened(tmp_path), pytest.raises(UserError, match=message):
        opened(tmp_path)
    (tmp_path / "file").touch()
    assert saved(tmp_path / "file/cache", 1) == []
    assert "set BERTRIO_CHECKPOINTS" in capsys.readouterr().err


def test_clones_are_separate_and_experiment_copies_share_checkpoints(tmp_path, monkeypatch):
    folders = []
    for clone in ("one", "two", "one/.dvc/tmp/exps/tmp1", "one/.dvc/tmp/exps/standalone/tmp2"):
        (tmp_path / clone).mkdir(parents=True)
        monkeypatch.chdir(tmp_path / clone)
        with opened(tmp_path / "cache") as run:
            folders.append(run.folder)
            monkeypatch.chdir(tmp_path)  # another clone, at the same time
            opened(tmp_path / "cache").finish()
    assert folders[0] == folders[2] == folders[3] != folders[1]


def test_runs_that_are_untouched_for_30_days_and_not_held_are_removed(tmp_path):
    long_ago = time.time() - (checkpoints.DAYS + 1) * 24 * 3600
    for stage in ("old", "fresh", "held"):
        saved(tmp_path, 1, stage=stage)
    held = opened(tmp_path, stage="held")
    for folder in [*tmp_path.glob("old-*"), held.folder]:
        os.utime(folder, (long_ago, long_ago))
    with opened(tmp_path):
        pass
    assert {path.name.partition("-")[0] for path in tmp_path.iterdir()} == {"fresh", "held"}
    held.finish()
