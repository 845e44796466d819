"""Checkpoints: a run that was killed anywhere finds a whole one, or none."""

import json
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

import pytest
import torch

from bertrio.config.groups import CheckpointParams
from bertrio.core.errors import UserError
from bertrio.core.runtime import set_up
from bertrio.training import checkpoints
from bertrio.training.checkpoints import Checkpoints, identity

IDENTITY = {"stage": "finetune-base", "settings": {"lr": 1e-3}}


def opened(root, stage="finetune-base", of=IDENTITY, minutes=None, steps=None):
    return Checkpoints.open(stage, of, CheckpointParams(minutes=minutes, steps=steps, folder=str(root)))


def state_of(step):
    return {"step": step, "weights": torch.full((1000,), float(step))}


def step_of(state):
    """The step of a state that is all of one piece."""
    assert torch.equal(state["weights"], torch.full((1000,), float(state["step"])))
    return state["step"]


def on_disk(run):
    """Names of the checkpoints of a run."""
    return sorted(path.name for path in run.folder.iterdir() if path.is_dir())


def test_the_last_state_comes_back_and_the_last_two_are_kept(tmp_path):
    with opened(tmp_path) as run:
        assert run.latest() is None
        for step in (10, 20, 30):
            assert run.save(step, state_of(step))
        assert on_disk(run) == ["000002-step-00000020", "000003-step-00000030"]
    with opened(tmp_path) as run:
        assert step_of(run.latest()) == 30


def test_a_step_can_be_saved_again(tmp_path):
    with opened(tmp_path) as run:
        run.save(10, {"scored": False})
        run.save(10, {"scored": True})
        assert run.latest() == {"scored": True}


def test_a_run_of_another_identity_or_stage_sees_nothing_of_it(tmp_path, capsys):
    with opened(tmp_path) as run:
        run.save(1, state_of(1))
        for other in (
            opened(tmp_path, of=IDENTITY | {"settings": {"lr": 2e-3}}),
            opened(tmp_path, stage="finetune-second"),
        ):
            with other:
                assert other.latest() is None
    with opened(
        tmp_path, of={"settings": {"lr": 0.001}, "stage": "finetune-base"}
    ) as run:  # the same, written in another way
        assert step_of(run.latest()) == 1
        assert json.loads((run.folder / "identity.json").read_text()) == IDENTITY
    assert capsys.readouterr().err == ""


def test_an_error_in_the_run_keeps_its_checkpoints_and_gives_the_lock_back(tmp_path):
    with opened(tmp_path) as run:
        run.save(1, state_of(1))
        with pytest.raises(ZeroDivisionError), run:
            raise ZeroDivisionError
    with opened(tmp_path) as run:
        assert step_of(run.latest()) == 1


def test_due_by_steps_and_by_minutes_and_once_for_a_step(tmp_path, monkeypatch):
    with opened(tmp_path, steps=3) as run:
        assert [step for step in range(1, 8) if run.due(step)] == [3, 6]
        assert not run.due(6)
    with opened(tmp_path) as run:
        assert not any(run.due(step) for step in range(100))
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with opened(tmp_path, minutes=2) as run:
        now[0] += 119
        assert not run.due(1)
        now[0] += 1
        assert run.due(2) and not run.due(2)
        run.save(2, {})
        now[0] += 119
        assert not run.due(3)
        run.save(3, {})  # the end of an epoch: the minutes begin anew
        now[0] += 119
        assert not run.due(4)


def test_finish_leaves_nothing(tmp_path):
    with opened(tmp_path) as run:
        run.save(1, state_of(1))
        run.finish()
        assert not list(tmp_path.iterdir())
        with opened(tmp_path) as next_run:  # the end of the first one leaves it alone
            next_run.save(1, state_of(1))
            run.__exit__()
            assert step_of(next_run.latest()) == 1
            next_run.finish()
    with opened(tmp_path):
        pass  # nothing was saved
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json"])
def test_a_checkpoint_that_cannot_be_read_is_reported_and_the_one_before_it_is_used(tmp_path, capsys, name):
    with opened(tmp_path) as run:
        run.save(1, state_of(1))
        run.save(2, state_of(2))
        (run.folder / "000002-step-00000002" / name).write_bytes(b"")
        assert step_of(run.latest()) == 1
        assert "000002-step-00000002 cannot be read" in capsys.readouterr().err
        (run.folder / "000001-step-00000001" / name).unlink()
        assert run.latest() is None
        assert "training starts afresh" in capsys.readouterr().err


def dies_before(count):
    """kill -9 before the count-th operation on a file from here on; only to be called in a process made for it."""
    left = [count]

    def one_more(*_):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    synced = os.fsync
    os.fsync = lambda handle: (one_more(), synced(handle))[1]
    names = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir", "os.listdir"}
    sys.addaudithook(lambda event, _: one_more() if event in names else None)


def in_a_child(body):
    """Calls in a process of its own, forked as this one has torch already.

    Returns:
        Its status as `os.waitpid` has it: 0 if the call came to its end.
    """
    child = os.fork()
    if child == 0:
        try:
            body()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)  # and no second pytest
    return os.waitpid(child, 0)[1]


def killed(count, root, call):
    """Calls in a process of its own, and kills it before that operation; says whether it came that far."""

    def body():
        run, state = None if call == "open" else opened(root), state_of(3)
        dies_before(count)
        {"open": lambda: opened(root), "save": lambda: run.save(3, state), "finish": lambda: run.finish()}[call]()

    status = in_a_child(body)
    assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL
    return status != 0


@pytest.mark.parametrize(
    ("call", "operations", "leaves"), [("open", 4, {2}), ("save", 8, {2, 3}), ("finish", 8, {2, None})]
)
def test_kill_9_between_any_two_operations_leaves_a_whole_checkpoint(tmp_path, capsys, call, operations, leaves):
    left = []
    more = True
    while more:
        root = tmp_path / str(len(left))
        with opened(root) as run:
            run.save(1, state_of(1))
            run.save(2, state_of(2))
        more = killed(1 + len(left), root, call)
        with opened(root) as run:
            state = run.latest()
            left.append(state and step_of(state))
            assert not [name for name in on_disk(run) if name.startswith(".")]
    assert len(left) > operations and set(left) == leaves
    assert "cannot be read" not in capsys.readouterr().err


def test_a_checkpoint_gets_its_name_when_all_of_it_is_on_disk(tmp_path, monkeypatch):
    """What a power cut leaves is what was synced, so the order matters, which no kill can show."""
    done = []
    synced, renamed = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (synced(handle), done.append(os.fstat(handle).st_ino)))
    monkeypatch.setattr(os, "replace", lambda old, new: (renamed(old, new), done.append(str(new))))
    with opened(tmp_path) as run:
        done.clear()
        run.save(1, state_of(1))
        final = run.folder / "000001-step-00000001"
        files, folder, parent = {path.stat().st_ino for path in final.iterdir()}, final.stat().st_ino, run.folder.stat()
        assert len(files) == 2 and set(done[:2]) == files
        assert done[2:] == [folder, str(final), parent.st_ino]


def no_room(size):
    """From here on no file of this process grows beyond so many bytes; None: there is room again."""
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY if size is None else size, resource.RLIM_INFINITY)
    )


def test_a_full_disk_is_told_keeps_what_is_there_and_passes(tmp_path, capfd):
    def body():
        run = opened(tmp_path)
        assert run.save(1, state_of(1)) and run.save(2, state_of(2))
        no_room(2000)
        assert not run.save(3, state_of(3))
        assert on_disk(run) == ["000001-step-00000001", "000002-step-00000002"]
        assert step_of(run.latest()) == 2
        sys.stderr.flush()
        no_room(None)
        assert run.save(4, state_of(4))
        assert step_of(run.latest()) == 4

    assert in_a_child(body) == 0
    told = capfd.readouterr().err
    assert "the checkpoint of step 3 could not be written" in told and "File too large" in told
    with opened(tmp_path) as run:
        assert step_of(run.latest()) == 4
        assert on_disk(run) == ["000002-step-00000002", "000003-step-00000004"]


def test_a_folder_that_cannot_be_made_leaves_training_without_checkpoints(tmp_path, capsys):
    (tmp_path / "file").touch()
    with opened(tmp_path / "file/cache", steps=1) as run:
        said = capsys.readouterr().err
        assert "Not a directory" in said and "checkpoints.folder" in said
        assert run.latest() is None and not run.due(1) and not run.save(1, state_of(1))
        run.finish()
        assert capsys.readouterr().err == ""  # once is enough


def test_a_second_start_is_refused_as_long_as_the_first_lives(tmp_path):
    ready, tell = os.pipe()
    first = os.fork()
    if first == 0:
        try:
            with opened(tmp_path):
                os.write(tell, b"held")
                time.sleep(600)
        finally:
            os._exit(1)
    try:
        assert os.read(ready, 4) == b"held"
        with pytest.raises(UserError, match=f"checkpoints of finetune-base: another process is at work in {tmp_path}"):
            opened(tmp_path)
        with opened(tmp_path, stage="finetune-second"):
            pass  # has a folder of its own
    finally:
        os.kill(first, signal.SIGKILL)
        os.waitpid(first, 0)
        os.close(ready)
        os.close(tell)
    with opened(tmp_path), pytest.raises(UserError, match="another process is at work"):
        opened(tmp_path)


def test_only_runs_that_nobody_has_touched_for_30_days_or_holds_are_removed(tmp_path, capsys):
    long_ago = time.time() - (checkpoints.DAYS + 1) * 24 * 3600
    for stage in ("old", "fresh", "held"):
        with opened(tmp_path, stage=stage) as run:
            run.save(1, state_of(1))
    other = tmp_path / "other-0123456789abcdef"  # has no identity.json
    other.mkdir()
    held = opened(tmp_path, stage="held")
    for folder in [*tmp_path.glob("old-*"), held.folder, other]:
        os.utime(folder, (long_ago, long_ago))
    with opened(tmp_path):
        pass
    assert {path.name.partition("-")[0] for path in tmp_path.iterdir()} == {"fresh", "held", "other"}
    assert "nobody has touched them for 30 days" in capsys.readouterr().err
    held.finish()


def test_the_folder_is_the_params_the_environments_or_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.setenv(checkpoints.VARIABLE, str(tmp_path / "variable"))
    with Checkpoints.open("mlm", IDENTITY, CheckpointParams(minutes=5, steps=None, folder=None)) as run:
        assert run.folder.parent == tmp_path / "variable"
    with opened(tmp_path / "param") as run:
        assert run.folder.parent == tmp_path / "param"
    monkeypatch.delenv(checkpoints.VARIABLE)
    assert not checkpoints._root(None).is_relative_to(Path(__file__).parents[2])


def test_identity_is_the_same_for_the_same_and_changes_with_all_that_decides_the_result(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    Path("data/train.parquet").write_bytes(b"rows")
    Path("encoder").write_bytes(b"weights")
    runtime = set_up(1, device="cpu", precision="float32", threads=1)

    def now(stage="finetune-base", settings=None, inputs=("data", "encoder"), runtime=runtime):
        return json.dumps(identity(stage, settings or {"lr": 1e-3}, inputs, runtime), sort_keys=True)

    first = now()
    assert now() == first == now(inputs=("encoder", "data"))
    shutil.copytree("data", "copy/data")  # as `dvc exp run --temp` makes one of the repository
    shutil.copy("encoder", "copy/encoder")
    with monkeypatch.context() as patch:
        patch.chdir("copy")
        assert now() == first
    different = {
        first,
        now(stage="prefinetune"),
        now(settings={"lr": 2e-3}),
        now(inputs=("data",)),
        now(runtime=set_up(1, device="cpu", precision="bf16", threads=1)),
    }
    Path("encoder").write_bytes(b"weighty")
    different.add(now())
    Path("data/train.parquet").rename("data/dev.parquet")
    different.add(now())
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    different.add(now())
    has_amx = torch.cpu._is_amx_tile_supported()
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: not has_amx)
    different.add(now())
    monkeypatch.setattr(checkpoints, "version", lambda library: f"{library} of tomorrow")
    different.add(now())
    package = tmp_path / "bertrio"
    package.mkdir()
    monkeypatch.setattr(checkpoints.bertrio, "__file__", str(package / "__init__.py"))
    different.add(now())
    (package / "loop.py").write_text("step = 1")
    different.add(now())
    (package / "loop.py").write_text("step = 2")
    different.add(now())
    assert len(different) == 13
    with pytest.raises(UserError, match="nowhere"):
        now(inputs=("nowhere",))
