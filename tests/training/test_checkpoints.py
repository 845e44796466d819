"""Checkpoints: what is there is whole, whatever happens to the process, the disk or the files."""

import errno
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from contextlib import contextmanager
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
    """Names of what is in the folder of a run, lock and notes apart."""
    return sorted(path.name for path in run.folder.iterdir() if path.is_dir())


def test_without_a_folder_of_ones_own_they_lie_outside_the_repository(monkeypatch):
    monkeypatch.delenv("BERTRIO_CHECKPOINTS")
    assert not checkpoints._root(None).is_relative_to(Path(__file__).parents[2])


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


def test_finish_leaves_nothing(tmp_path):
    with opened(tmp_path) as run:
        run.save(1, state_of(1))
        run.finish()
        assert not list(tmp_path.iterdir())
        with opened(tmp_path) as next_run:  # has nothing to fear from the end of the first one
            next_run.save(1, state_of(1))
            run.__exit__()
            assert step_of(next_run.latest()) == 1
            next_run.finish()
    assert not list(tmp_path.iterdir())
    with opened(tmp_path):
        pass  # nothing was saved
    assert not list(tmp_path.iterdir())


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


# Damage


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


DAMAGE = {"truncated": cut, "bit flipped": flip, "empty": lambda path: path.write_bytes(b""), "missing": os.unlink}


@pytest.mark.parametrize("harm", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json", "manifest.json"])
def test_a_damaged_checkpoint_is_reported_and_the_one_before_it_is_used(tmp_path, capsys, name, harm):
    with opened(tmp_path) as run:
        run.save(1, state_of(1))
        run.save(2, state_of(2))
        harm(run.folder / "000002-step-00000002" / name)
        assert step_of(run.latest()) == 1
        told = capsys.readouterr().err
        assert "000002-step-00000002 is damaged" in told and name in told
        run.save(2, state_of(2))
        run.save(3, state_of(3))
        assert on_disk(run) == ["000002-step-00000002", "000003-step-00000003"]  # the damaged one takes nobody's place


def test_with_none_left_it_says_so_and_starts_afresh(tmp_path, capsys):
    with opened(tmp_path) as run:
        for step in (1, 2):
            run.save(step, state_of(step))
        for folder in run.folder.glob("*-step-*"):
            shutil.rmtree(folder)
            folder.mkdir()
        assert run.latest() is None
        assert "training starts afresh" in capsys.readouterr().err
        assert on_disk(run) == []


# Death


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
    ("call", "operations", "leaves"), [("open", 8, {2}), ("save", 12, {2, 3}), ("finish", 12, {2, None})]
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
    assert "damaged" not in capsys.readouterr().err


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
        assert len(files) == 3 and set(done[:3]) == files
        assert done[3:] == [folder, str(final), parent.st_ino]


# Disk


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


def test_a_disk_that_is_full_at_the_start_may_have_room_when_the_first_checkpoint_is_due(tmp_path):
    def body():
        no_room(0)
        run = opened(tmp_path)
        assert not run.save(1, state_of(1))
        with pytest.raises(UserError, match="another process is at work"):
            opened(tmp_path)
        no_room(None)
        assert run.save(2, state_of(2))

    assert in_a_child(body) == 0
    with opened(tmp_path) as run:
        assert step_of(run.latest()) == 2


@pytest.fixture
def folder_of_all():
    """A folder that every user can reach, which pytest's are not."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@contextmanager
def without_rights():
    """As an ordinary user: root may write where it is forbidden."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


@contextmanager
def read_only(folder):
    folder.chmod(0o555)
    try:
        with without_rights():
            yield
    finally:
        folder.chmod(0o755)


def test_a_folder_that_cannot_be_made_leaves_training_without_checkpoints(folder_of_all, capsys):
    with read_only(folder_of_all), opened(folder_of_all / "cache", steps=1) as run:
        told = capsys.readouterr().err
        assert "Permission denied" in told and "checkpoints.folder" in told
        assert run.latest() is None and not run.due(1) and not run.save(1, state_of(1))
        run.finish()
        assert capsys.readouterr().err == ""  # once is enough
    assert not list(folder_of_all.iterdir())


def test_a_folder_that_has_become_read_only_keeps_what_it_has(folder_of_all, capsys):
    with opened(folder_of_all, steps=1) as run:
        run.save(1, state_of(1))
        with read_only(run.folder):
            assert not run.save(2, state_of(2))
            assert "step 2 could not be written" in capsys.readouterr().err
            assert step_of(run.latest()) == 1
        assert run.due(3) and run.save(3, state_of(3))
        assert step_of(run.latest()) == 3


@contextmanager
def unreadable(folder):
    """A disk that can't read this folder's files for a while."""
    read = Path.read_bytes

    def fails(path):
        if folder in path.parents:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return read(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "read_bytes", fails)
        yield


def test_a_checkpoint_that_cannot_be_read_now_is_told_and_stays(tmp_path, capsys):
    with opened(tmp_path) as run:
        run.save(1, state_of(1))
        run.save(2, state_of(2))
        newest = run.folder / "000002-step-00000002"
        with unreadable(newest):
            assert step_of(run.latest()) == 1
        assert f"{newest} can't be read (Input/output error)" in capsys.readouterr().err
        assert step_of(run.latest()) == 2


def test_a_folder_that_cannot_be_listed_is_not_taken_for_an_empty_one(tmp_path, monkeypatch, capsys):
    def fails(_):
        raise OSError(errno.EMFILE, "Too many open files")

    with opened(tmp_path) as run:
        run.save(1, state_of(1))
        with monkeypatch.context() as patch:
            patch.setattr(Path, "iterdir", fails)
            assert run.latest() is None and not run.save(2, state_of(2))
            assert capsys.readouterr().err.count("Too many open files") == 2
            run.finish()
    with opened(tmp_path) as run:
        assert step_of(run.latest()) == 1


def test_a_folder_that_somebody_removes_under_a_run_is_made_again(tmp_path):
    with opened(tmp_path / "cache") as run:
        run.save(1, state_of(1))
        shutil.rmtree(tmp_path / "cache")
        assert run.latest() is None and run.save(2, state_of(2))
        assert step_of(run.latest()) == 2
        run.finish()
    assert not list((tmp_path / "cache").iterdir())


# Others


def test_a_second_start_is_refused_as_long_as_the_first_lives(tmp_path):
    told, tell = os.pipe()
    first = os.fork()
    if first == 0:
        try:
            with opened(tmp_path):
                os.write(tell, b"held")
                time.sleep(600)
        finally:
            os._exit(1)
    try:
        assert os.read(told, 4) == b"held"
        with pytest.raises(UserError, match=f"finetune-base: process {first} on .*, begun 20.* is at work") as refused:
            opened(tmp_path)
        assert str(tmp_path) in str(refused.value) and os.uname().nodename in str(refused.value)
        with opened(tmp_path, stage="finetune-second"):
            pass  # has a folder of its own
    finally:
        os.kill(first, signal.SIGKILL)
        os.waitpid(first, 0)
        os.close(told)
        os.close(tell)
    with opened(tmp_path) as run, pytest.raises(UserError, match=f"process {os.getpid()} "):
        opened(tmp_path)
    with opened(tmp_path):
        assert run.folder.is_dir()


def test_a_run_that_starts_while_another_ends_keeps_its_folder_and_its_lock(tmp_path, monkeypatch):
    first, rmdir, second = opened(tmp_path), Path.rmdir, []

    def starts(folder):
        if not second:
            second.append(opened(tmp_path))
        rmdir(folder)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rmdir", starts)
        first.finish()
    with second[0] as run:
        assert run.save(1, state_of(1)) and step_of(run.latest()) == 1
        with pytest.raises(UserError, match=f"process {os.getpid()} .* is at work"):
            opened(tmp_path)


def test_folders_that_nobody_touched_for_long_are_removed(tmp_path, monkeypatch, capsys):
    with opened(tmp_path, of={"settings": "old"}) as old, opened(tmp_path, of={"settings": "held"}) as held:
        old.save(1, state_of(1))
        held.save(1, state_of(1))
        with opened(tmp_path, of={"settings": "new"}) as new:
            new.save(1, state_of(1))
    others = tmp_path / "photos", tmp_path / "photos-0123456789abcdef"
    for folder in others:
        folder.mkdir()
    (others[0] / "identity.json").touch()
    long_ago = time.time() - 31 * 24 * 3600
    with opened(tmp_path, of={"settings": "held"}) as held:
        for folder in (old.folder, held.folder, *others):
            os.utime(folder, (long_ago, long_ago))
        with opened(tmp_path):
            pass
        assert {path for path in tmp_path.iterdir()} == {held.folder, new.folder, *others}
        assert str(old.folder) in capsys.readouterr().err


def test_params_come_before_the_environment_and_that_before_the_cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(checkpoints.VARIABLE, raising=False)
    nowhere = CheckpointParams(minutes=5, steps=None, folder=None)
    with Checkpoints.open("mlm", IDENTITY, nowhere) as run:
        assert tmp_path / "cache" in run.folder.parents
    monkeypatch.setenv(checkpoints.VARIABLE, str(tmp_path / "variable"))
    with Checkpoints.open("mlm", IDENTITY, nowhere) as run:
        assert run.folder.parent == tmp_path / "variable"
    with opened(tmp_path / "param") as run:
        assert run.folder.parent == tmp_path / "param"
    monkeypatch.setenv(checkpoints.VARIABLE, "~nobody-here/x")
    with pytest.raises(UserError, match=f"{checkpoints.VARIABLE}: expected a folder, found ~nobody-here/x"):
        Checkpoints.open("mlm", IDENTITY, nowhere)


# Identity


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
