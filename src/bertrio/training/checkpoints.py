"""Checkpoints of a training stage: a run that was stopped resumes from them and ends in the same bytes.

They stand outside the stage's outputs, which DVC removes before a run, in a folder named after everything that decides
the result. So a run with other params, data, code or libraries has another folder, and a run in a copy of the
repository (`dvc exp run --temp`, `--queue`) has the same. The folder is removed when the stage has ended well, or when
nobody has touched it for 30 days.

    <folder>/finetune-base-0123456789abcdef/
        identity.json                 what the 16 digits stand for
        lock                          one run at a time
        000007-step-00000420/         the seventh that was saved; the last two are kept
            tensors.safetensors, state.json
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
from filelock import FileLock, Timeout
from safetensors import SafetensorError

import bertrio
from bertrio.core.console import say
from bertrio.core.errors import UserError, need
from bertrio.core.files import sync, write_text
from bertrio.training.stateful import State, read_state, write_state

if TYPE_CHECKING:
    from bertrio.config.groups import CheckpointParams
    from bertrio.core.runtime import Runtime

VARIABLE = "BERTRIO_CHECKPOINTS"  # environment variable: the folder, where params name none
KEPT = 2  # the newest, and the one before it in case the newest cannot be read
DAYS = 30  # after which nobody is expected to resume a run
# Those that compute
LIBRARIES = ("torch", "transformers", "tokenizers", "numpy", "scipy", "pandas", "torchjd", "peft", "triton")
IDENTITY, LOCK = "identity.json", "lock"
CHECKPOINT = re.compile(r"(\d+)-step-\d+")  # numbered by saving: a step can be saved twice, before and after scoring
RUN = re.compile(r"[A-Za-z0-9_-]+-[0-9a-f]{16}")


class Checkpoints:
    """The checkpoints of one run of one stage. A context manager, which releases their lock at its end.

    Nothing here ends a training that goes well: if a checkpoint cannot be written, that is logged, and training
    goes on.
    """

    def __init__(self, folder: Path, options: CheckpointParams, lock: FileLock | None) -> None:
        self.folder, self._options, self._lock = folder, options, lock
        self._last_step: int | None = None  # the step that was last due, or saved
        self._saved_at = time.monotonic()

    @classmethod
    def open(cls, stage: str, identity: Mapping[str, Any], options: CheckpointParams) -> Checkpoints:
        """Lock the folder of this run; remove remains of a save that was cut off, and folders of other runs that were
        not touched for 30 days.

        If the folder cannot be written, that is logged, and training goes on without checkpoints.

        Args:
            stage: letters, digits, `-` and `_`.
            identity: all that decides the result, from `identity`.
            options: when and where.

        Raises:
            UserError: if another process has locked the folder.
        """
        root = _root(options.folder)
        text = json.dumps(identity, sort_keys=True, indent=2)
        folder = root / f"{stage}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        lock = FileLock(folder / LOCK, thread_local=False)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock.acquire(blocking=False)
        except Timeout as error:
            raise UserError(
                f"checkpoints of {stage}: another process is at work in {folder}. Wait until it has ended, or end it; "
                "then start this one again, and it resumes from the last checkpoint"
            ) from error
        except OSError as error:
            say(
                f"{stage}: no checkpoints can be written in {folder} ({_reason(error)}). Training goes on without; "
                f"checkpoints.folder or {VARIABLE} names another folder"
            )
            return cls(folder, options, None)
        with suppress(OSError):  # a full disk may have room again when the first checkpoint is due
            for path in folder.glob(".*"):
                shutil.rmtree(path, ignore_errors=True)
            _remove_old(root)
            write_text(folder / IDENTITY, text + "\n")
        return cls(folder, options, lock)

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *error: object) -> None:
        self._close(finished=not self._saved())

    def latest(self) -> State | None:
        """Return the newest checkpoint that can be read, or None; any of them leads to the same result."""
        saved = self._saved()
        for folder in reversed(saved):
            try:
                return read_state(folder)
            except (OSError, ValueError, SafetensorError) as error:
                say(f"checkpoint {folder} cannot be read ({_reason(error)}); trying the one before it")
        if saved:
            say("no checkpoint is left that can be used: training starts afresh")
        return None

    def due(self, step: int) -> bool:
        """Return whether it is time for a checkpoint: `minutes` after the last one or the start, or at a multiple of
        `steps`; once for a step.

        Args:
            step: the number of steps done.
        """
        if self._lock is None or step == self._last_step:
            return False
        minutes, steps = self._options.minutes, self._options.steps
        late = minutes is not None and time.monotonic() - self._saved_at >= 60 * minutes
        if late or (steps is not None and step % steps == 0):
            self._last_step = step
            return True
        return False

    def save(self, step: int, state: State) -> bool:
        """Write a checkpoint and remove those before the last two. It gets its name when all of it is on disk.

        Args:
            step: the number of steps done.
            state: as in `write_state`.

        Returns:
            Whether it was written. If not, that is logged, and the checkpoints before stay whole.

        Raises:
            TypeError: if the state holds something that cannot be written.
        """
        self._last_step = step
        if self._lock is None:
            return False
        temporary = self.folder / f".saving-step-{step:08d}"
        try:
            temporary.mkdir(parents=True)
            write_state(temporary, state)
            saved = self._saved()
            number = 1 + (_number(saved[-1]) if saved else 0)
            os.replace(temporary, self.folder / f"{number:06d}-step-{step:08d}")
            sync(self.folder)
            for old in self._saved()[:-KEPT]:
                _remove(old)
        except (OSError, SafetensorError) as error:
            say(
                f"the checkpoint of step {step} could not be written to {self.folder} ({_reason(error)}). Training "
                "goes on; if it is stopped, it resumes from the checkpoint before, or starts afresh if there is none"
            )
            return False
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            self._saved_at = time.monotonic()
        return True

    def finish(self) -> None:
        """Remove the folder and release the lock: the stage has ended well, and its outputs are on disk."""
        if self._lock is not None:
            for folder in self._saved():  # oldest first: if this is cut off, the newest is left
                _remove(folder)
        self._close(finished=True)

    def _close(self, finished: bool) -> None:
        if self._lock is None:
            return
        if finished:
            shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.release()
        self._lock = None

    def _saved(self) -> list[Path]:
        """Return the folders of checkpoints, in the order in which they were saved."""
        return sorted((path for path in self.folder.glob("*-step-*") if CHECKPOINT.fullmatch(path.name)), key=_number)


def identity(stage: str, settings: Mapping[str, Any], inputs: Sequence[str | Path], runtime: Runtime) -> dict[str, Any]:
    """Return all that decides the result of a training stage, for `Checkpoints.open`.

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
    """Return the folder of all runs' checkpoints: the param's, the environment's, or one in the user's cache."""
    chosen = folder or os.environ.get(VARIABLE)
    if chosen:
        return Path(os.path.expanduser(chosen)).absolute()
    return platformdirs.user_cache_path("bertrio") / "checkpoints"


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:  # an extra
        return None


def _machine() -> str:
    """Return the CPU's kind and units, on which the rounding of sums and of products in bf16 depends."""
    units = {"amx": torch.cpu._is_amx_tile_supported, "bf16": torch.cpu._is_avx512_bf16_supported}
    supported = [name for name, is_supported in units.items() if is_supported()]
    return " ".join([platform.machine(), torch.backends.cpu.get_cpu_capability(), *supported])


def _remove_old(root: Path) -> None:
    """Remove the folders of runs, of any stage, that were not touched for 30 days and that nobody has locked."""
    for folder in root.iterdir():
        too_old = time.time() - folder.stat().st_mtime > DAYS * 24 * 3600  # saving touches it
        if too_old and RUN.fullmatch(folder.name) and (folder / IDENTITY).is_file():
            with suppress(OSError, Timeout), FileLock(folder / LOCK, blocking=False):
                shutil.rmtree(folder)
                say(f"removed the checkpoints in {folder}: nobody has touched them for {DAYS} days")


def _remove(folder: Path) -> None:
    """Remove a checkpoint: first its name, so that none is ever half there under it."""
    hidden = folder.with_name(f".{folder.name}")
    with suppress(OSError):
        os.replace(folder, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def _number(folder: Path) -> int:
    return int(folder.name.partition("-")[0])


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _hashes(path: Path) -> str | dict[str, str]:
    """Return the SHA-256 of a file, or of every file in a folder."""
    if path.is_file():
        return _hash(path)
    return {file.relative_to(path).as_posix(): _hash(file) for file in sorted(path.rglob("*")) if file.is_file()}
