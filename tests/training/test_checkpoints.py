"""Checkpoints: a run that was killed anywhere finds a whole one, or none."""

import os
import resource
import time
import weakref
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from bertrio.config.groups import CheckpointParams
from bertrio.core.errors import UserError
from bertrio.core.runtime import set_up
from bertrio.training import checkpoints
from bertrio.training.checkpoints import Checkpoints


def part_of(number=0.0):
    """A part of a run with 1000 weights of this value."""
    part = torch.nn.Linear(1000, 1, bias=False)
    torch.nn.init.constant_(part.weight, number)
    return part


def opened(root, stage="finetune-base", identity="a", minutes=None, steps=None):
    with patch.dict(os.environ, {checkpoints.VARIABLE: str(root)}):
        return Checkpoints.open(stage, identity, CheckpointParams(minutes=minutes, steps=steps), set_up(1, "cpu"))


def saved(root, *steps, **how):
    """Saves at these steps, and gives the names of the files that are left."""
    with opened(root, **how) as run:
        with run.resumed({"part": (part := part_of())}):
            for step in steps:
                torch.nn.init.constant_(part.weight, step)
                run.after_step(step, force=True)
        return sorted(path.name for path in run.folder.glob("step-*"))


def restored(root, **how):
    """The number that a run goes on from; 0 if it starts afresh."""
    with opened(root, **how) as run, run.resumed({"part": (part := part_of())}):
        return part.weight.unique().item()


def test_the_last_state_comes_back_and_the_last_two_are_kept(tmp_path):
    assert saved(tmp_path, 10, 20, 30) == ["step-00000020.safetensors", "step-00000030.safetensors"]
    assert restored(tmp_path) == 30
    assert restored(tmp_path, identity="b") == restored(tmp_path, stage="finetune-second") == 0


def test_a_checkpoint_of_another_run_is_not_resumed(tmp_path, capsys):
    saved(tmp_path, 5, identity="b")
    saved(tmp_path, 3)
    (theirs,), (ours,) = tmp_path.glob("*/step-*5.safetensors"), tmp_path.glob("*/step-*3.safetensors")
    theirs.rename(ours.with_name(theirs.name))
    assert restored(tmp_path) == 3
    assert "step-00000005.safetensors cannot be read (it is of another run" in capsys.readouterr().err


def test_a_clock_that_jumps_changes_nothing_for_runs_at_work(tmp_path, monkeypatch):
    saved(tmp_path, 1)
    year, clock = 365 * 24 * 3600, time.time
    for jump in (year, -year):
        with opened(tmp_path, minutes=1) as run, run.resumed({"part": (part := part_of())}):
            monkeypatch.setattr(time, "time", lambda jump=jump: clock() + jump)
            opened(tmp_path, stage="other").finish()  # looks for old ones
            run.after_step(2)
            assert part.weight.unique().item() == 1 and len(run._files()) == 1


def test_saving_and_resuming_keep_no_copy_of_the_state(tmp_path, monkeypatch):
    written, read = [], []
    save, load = checkpoints.save_file, checkpoints._read
    monkeypatch.setattr(
        checkpoints, "save_file", lambda tensors, *a, **b: save(written.append(tensors) or tensors, *a, **b)
    )
    monkeypatch.setattr(checkpoints, "_read", lambda *where: remember(load(*where)))

    def remember(state):
        read.append(weakref.ref(state["parts"]["part"]["weight"]))
        return state

    with opened(tmp_path) as run, run.resumed({"part": (part := part_of(1.0))}):
        run.after_step(1, force=True)
        assert written[0]["0"].data_ptr() == part.weight.data_ptr()
    with opened(tmp_path) as run, run.resumed({"part": part_of()}):
        assert read[0]() is None


def test_tensors_that_share_memory_come_back(tmp_path):
    for number in (2.0, 0.0):
        tied = part_of(number)
        with opened(tmp_path) as run, run.resumed({"part": torch.nn.ModuleList([tied, tied])}):
            assert tied.weight.unique().item() == 2
            run.after_step(1, force=True)


def test_due_by_steps_and_by_minutes(tmp_path, monkeypatch):
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
def test_a_checkpoint_that_cannot_be_read_is_reported_and_the_one_before_it_is_used(tmp_path, capsys, damaged):
    saved(tmp_path, 1, 2)
    path = next(tmp_path.glob("*/step-00000002.safetensors"))
    path.write_bytes(damaged(path.read_bytes()))
    assert restored(tmp_path) == 1
    assert "step-00000002.safetensors cannot be read" in capsys.readouterr().err


def test_a_full_disk_is_reported_keeps_what_is_there_and_passes(tmp_path, capsys):
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


def test_a_second_start_is_refused_and_an_unwritable_folder_is_not(tmp_path, capsys):
    message = rf"finetune-base: process {os.getpid()} in {Path.cwd()} trains the same, .* {tmp_path}.*Wait .* or end it"
    with opened(tmp_path), pytest.raises(UserError, match=message):
        opened(tmp_path)
    (tmp_path / "file").touch()
    assert saved(tmp_path / "file/cache", 1) == []
    assert "set BERTRIO_CHECKPOINTS" in capsys.readouterr().err


def test_two_clones_never_meet_and_a_copy_for_an_experiment_goes_on_where_another_was(tmp_path, monkeypatch):
    places = [tmp_path / at for at in ("one", "two", "one/.dvc/tmp/exps/tmp1", "one/.dvc/tmp/exps/standalone/tmp2")]
    folders = []
    for place in places:
        place.mkdir(parents=True)
        monkeypatch.chdir(place)
        with opened(tmp_path / "cache") as run:
            folders.append(run.folder)
            monkeypatch.chdir(tmp_path)  # another clone, at the same time
            opened(tmp_path / "cache").finish()
    assert folders[0] == folders[2] == folders[3] != folders[1]


def test_only_runs_that_nobody_has_touched_for_30_days_or_holds_are_removed(tmp_path):
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
