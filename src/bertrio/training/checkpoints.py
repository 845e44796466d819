"""Checkpoints of a training stage: what a run that was stopped goes on from, with the same bytes at the end.

They stand outside the stage's outputs, which DVC removes before a run, in a folder named after everything that decides
the result. So a run of other params, data, code or libraries has another folder, and takes no checkpoint for its own
that isn't; and a run in a copy of the repository (`dvc exp run --temp`, `--queue`) has the same. The folder is removed
when the stage has ended well, or when nobody has touched it for 30 days.

    <folder>/finetune-base-0123456789abcdef/
        identity.json                 what the 16 digits stand for
        lock, holder.json             one run at a time
        000007-step-00000420/         the seventh that was saved; the last two are kept
            tensors.safetensors, state.json, manifest.json
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs
import torch

import bertrio
from bertrio.core.console import say
from bertrio.core.errors import UserError, need
from bertrio.core.files import sync, write_text
from bertrio.training.folder_lock import FolderLock
from bertrio.training.state_files import Damaged, State, read_state, write_state

if TYPE_CHECKING:
    from bertrio.config.groups import CheckpointParams
    from bertrio.core.runtime import Runtime

VARIABLE = "BERTRIO_CHECKPOINTS"  # of the environment: the folder, where params name none
KEPT = 2  # the newest, and the one before it in case the newest is damaged
DAYS = 30  # after which nobody is expected to go on with a run
# Those that compute
LIBRARIES = ("torch", "transformers", "tokenizers", "numpy", "scipy", "pandas", "torchjd", "peft", "triton")
IDENTITY = "identity.json"
CHECKPOINT = re.compile(r"(\d+)-step-\d+")  # numbered by saving: a step can be saved twice, before and after scoring
RUN = re.compile(r"[A-Za-z0-9_-]+-[0-9a-f]{16}")


class Checkpoints:
    """The checkpoints of one run of one stage. A context manager: at its end the lock is given back.

    Nothing here ends a training that goes well: what cannot be written is told, and training goes on without.
    """

    def __init__(self, folder: Path, options: CheckpointParams, lock: FolderLock | None) -> None:
        self.folder, self._options, self._lock = folder, options, lock
        self._asked: int | None = None  # the step that was last said to be due, or saved
        self._saved_at = time.monotonic()

    @classmethod
    def open(cls, stage: str, identity: Mapping[str, Any], options: CheckpointParams) -> Checkpoints:
        """Takes the folder of this run, and removes what nobody needs: remains of a save that was cut off, and folders
        of other runs, of any stage, that were not touched for 30 days.

        Where the folder can't be written, that is said, and training goes on without checkpoints.

        Args:
            stage: letters, digits, `-` and `_`.
            identity: all that decides the result; `identity` makes one.
            options: when and where.

        Raises:
            UserError: if another process holds the folder; names it.
        """
        root = _root(options.folder)
        text = json.dumps(identity, sort_keys=True, indent=2)
        folder = root / f"{stage}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        lock = FolderLock(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            sync(root)
            lock.take(f"checkpoints of {stage}")
        except OSError as error:
            say(
                f"{stage}: no checkpoints can be written in {folder} ({_reason(error)}). Training goes on without; "
                f"checkpoints.folder or {VARIABLE} names another folder"
            )
            return cls(folder, options, None)
        with suppress(OSError):  # a full disk may have room again when the first checkpoint is due
            _remove_remains(folder)
            _remove_old(root)
            write_text(folder / IDENTITY, text + "\n")
        return cls(folder, options, lock)

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def latest(self) -> State | None:
        """The newest whole checkpoint, or None if there is none. One that can't be used is told: the one before leads
        to the same result. A damaged one is removed; one that can't be read now stays, as a later run may read it."""
        there = self._listed()
        for folder in reversed(there):
            try:
                return read_state(folder)
            except Damaged as error:
                say(f"checkpoint {folder} is damaged ({error}): it is removed, and the one before it is looked at")
                _remove(folder)
            except OSError as error:
                say(f"checkpoint {folder} can't be read ({_reason(error)}): the one before it is looked at")
        if there:
            say("no checkpoint is left that can be used: training starts afresh")
        return None

    def due(self, step: int) -> bool:
        """Whether it is time for one: `minutes` after the last one or the start, or at a multiple of `steps`; once for
        a step.

        Args:
            step: the number of steps done.
        """
        if self._lock is None or step == self._asked:
            return False
        minutes, steps = self._options.minutes, self._options.steps
        late = minutes is not None and time.monotonic() - self._saved_at >= 60 * minutes
        if late or (steps is not None and step % steps == 0):
            self._asked = step
            return True
        return False

    def save(self, step: int, state: State) -> bool:
        """Writes a checkpoint and removes those before the last two. It gets its name when all of it is on disk, so
        that at any moment what has a name is whole.

        Args:
            step: the number of steps done.
            state: as in `write_state`.

        Returns:
            Whether it is there. If the disk is full or can't be written, that is said, and the ones before stay whole.

        Raises:
            TypeError: if the state holds something that can't be written.
        """
        self._asked = step
        if self._lock is None:
            return False  # `open` has said why, or all is over
        temporary = self.folder / f".saving-step-{step:08d}-{os.getpid()}"
        try:
            temporary.mkdir(parents=True)  # all of it may be gone, where somebody cleans up caches
            write_state(temporary, state)
            there = self._all()
            number = 1 + (_number(there[-1]) if there else 0)
            os.replace(temporary, self.folder / f"{number:06d}-step-{step:08d}")
            sync(self.folder)
            for old in self._all()[:-KEPT]:
                _remove(old)
        except OSError as error:
            say(
                f"the checkpoint of step {step} could not be written to {self.folder} ({_reason(error)}). Training "
                "goes on; if it is stopped, it starts again from the checkpoint before, or afresh if there is none"
            )
            return False
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            self._saved_at = time.monotonic()
        return True

    def finish(self) -> None:
        """Removes all of it and gives the lock back: the stage has ended well, and its outputs are on disk."""
        if self._lock is not None:
            for folder in self._listed():  # oldest first: if this is cut off, what is left is still the newest
                _remove(folder)
        self._close()

    def _close(self) -> None:
        """Gives the lock back, once: from then on the folder may be that of another process."""
        if self._lock is None:
            return
        with suppress(OSError):
            if not self._all():
                (self.folder / IDENTITY).unlink(missing_ok=True)
                self._lock.remove_files()
        self._lock.release()
        self._lock = None
        with suppress(OSError):  # something is in it: a checkpoint, or the lock of a process that starts right now
            self.folder.rmdir()

    def _all(self) -> list[Path]:
        """Folders of checkpoints, in the order in which they were saved.

        Raises:
            OSError: if the folder is there and can't be looked into: that is not the same as an empty one.
        """
        with suppress(FileNotFoundError, NotADirectoryError):
            return sorted((path for path in self.folder.iterdir() if CHECKPOINT.fullmatch(path.name)), key=_number)
        return []

    def _listed(self) -> list[Path]:
        """`_all`; none, and it is said, where they can't be listed."""
        try:
            return self._all()
        except OSError as error:
            say(f"the checkpoints in {self.folder} can't be listed ({_reason(error)})")
            return []


def identity(stage: str, settings: Mapping[str, Any], inputs: Sequence[str | Path], runtime: Runtime) -> dict[str, Any]:
    """All that decides the result of a training stage, for `Checkpoints.open`.

    Args:
        stage: its name, with the member's if it has one.
        settings: the params that the stage reads, as JSON has them.
        inputs: files and folders that it reads, named as seen from the repository, so that a copy of it has the same.
        runtime: where it computes.

    Raises:
        UserError: if an input is missing.
    """
    cuda = runtime.device.type == "cuda"
    package = Path(bertrio.__file__).parent
    script = getattr(sys.modules["__main__"], "__file__", None)  # of the stage
    return {
        "stage": stage,
        "settings": dict(settings),
        "inputs": {str(path): _hashes(need(path)) for path in inputs},
        "code": {str(path.relative_to(package)): _hash(path) for path in sorted(package.rglob("*.py"))}
        | ({"script": _hash(Path(script))} if script else {}),
        "device": torch.cuda.get_device_name(runtime.device) if cuda else runtime.device.type,
        "compute": str(runtime.compute),
        "threads": torch.get_num_threads(),
        "machine": _machine(),
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in LIBRARIES},
    }


def _root(folder: str | None) -> Path:
    """The folder of all runs' checkpoints: the param's, the environment's, or one in the user's cache.

    Raises:
        UserError: if it begins with `~` and a user who is not known here.
    """
    chosen = folder or os.environ.get(VARIABLE)
    if not chosen:
        return platformdirs.user_cache_path("bertrio") / "checkpoints"
    try:
        return Path(chosen).expanduser().absolute()
    except RuntimeError as error:
        name = "checkpoints.folder" if folder else f"the environment variable {VARIABLE}"
        raise UserError(f"{name}: expected a folder, found {chosen}: there is no such user") from error


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:  # an extra
        return None


def _machine() -> str:
    """What a CPU multiplies and adds with: sums come out differently where 8 numbers are added at a time, and where 16,
    and products in bf16 where there is a unit for them."""
    units = {"amx": torch.cpu._is_amx_tile_supported, "bf16": torch.cpu._is_avx512_bf16_supported}
    there = [name for name, is_there in units.items() if is_there()]
    return " ".join([platform.machine(), torch.backends.cpu.get_cpu_capability(), *there])


def _remove_remains(folder: Path) -> None:
    """Removes what a save or a removal that was cut off has left; to be called with the lock held."""
    for path in folder.iterdir():
        if path.name.startswith("."):
            with suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _remove_old(root: Path) -> None:
    """Removes the folders of runs, of any stage, that were not touched for 30 days and that nobody holds."""
    for folder in root.iterdir():
        with suppress(OSError):  # another user's, or another process was faster
            too_old = time.time() - folder.stat().st_mtime > DAYS * 24 * 3600  # to save is to touch it
            lock = FolderLock(folder)
            if too_old and RUN.fullmatch(folder.name) and (folder / IDENTITY).is_file() and lock.free():
                shutil.rmtree(folder)
                lock.release()
                say(f"removed the checkpoints in {folder}: nobody has touched them for {DAYS} days")


def _remove(folder: Path) -> None:
    """Removes a checkpoint: first its name, so that none is ever half there under it."""
    hidden = folder.with_name(f".{folder.name}.old-{os.getpid()}")
    try:
        os.replace(folder, hidden)
        shutil.rmtree(hidden)
    except OSError as error:
        say(f"could not remove {folder}: {_reason(error)}")


def _number(folder: Path) -> int:
    return int(folder.name.partition("-")[0])


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(2**20):
            digest.update(piece)
    return digest.hexdigest()


def _hashes(path: Path) -> str | dict[str, str]:
    """SHA-256 of a file, or of every file in a folder."""
    if path.is_file():
        return _hash(path)
    return {file.relative_to(path).as_posix(): _hash(file) for file in sorted(path.rglob("*")) if file.is_file()}
