"""Checkpoints of a training stage: a stopped run resumes from them and ends in the same bytes.

They lie outside the stage's outputs, which DVC removes before a run, in a folder named after the repository and
everything that decides the result. A run with other params, data, code or libraries, or in another clone, has another
folder; a run in DVC's copy of the repository (`dvc exp run --temp`, `--queue`) has that of the repository itself. The
folder is removed when the stage succeeds, or after 30 days without a change.

    <folder>/finetune-base-0123456789abcdef/
        identity.json                 the values that the 16 digits are a hash of
        lock                          one run at a time
        process                       which process holds the lock, and where it runs
        step-00000420.safetensors     the last two are kept

A resumed run builds everything as a fresh one does, from the same params, files and seeds, and then loads the state
that training has changed: the `state_dict`s of its parts and of the global generators. A checkpoint is one safetensors
file. Its tensor `state` holds all other values as JSON, so that reading it, unlike a pickle, runs no code.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING, Any, ClassVar

import pandas as pd
import platformdirs
import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

import bertrio
from bertrio.core.console import say
from bertrio.core.errors import UserError, need
from bertrio.core.files import read_parquet, repository, sync, whole_file, write_text
from bertrio.core.interruption import Interruption, install
from bertrio.core.runtime import Runtime
from bertrio.model.names import sha256

if TYPE_CHECKING:
    from bertrio.config import Params
    from bertrio.config.groups import CheckpointParams

CHECKPOINTS = "BERTRIO_CHECKPOINTS"  # environment variable: the folder, if not in the cache
STATE = "state"  # name of the tensor that holds the JSON text
FILES = 2  # the newest checkpoint, and the one before in case the newest cannot be read
DAYS = 30  # age at which folders of other runs are removed
LIBRARIES = ("torch", "transformers", "tokenizers", "numpy", "scipy", "pandas", "torchjd", "peft", "triton")  # compute
IDENTITY, LOCK, PROCESS = "identity.json", "lock", "process"


class Stateful:
    """An object whose state are the attributes named in `saved`.

    These may be plain values, tables, generators, objects with a `state_dict`, and dicts of them.
    """

    saved: ClassVar[tuple[str, ...]] = ()

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {name: _state_of(getattr(self, name)) for name in self.saved}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name in self.saved:
            setattr(self, name, _restored(getattr(self, name), state[name]))


def _state_of(value: Any) -> Any:
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, dict):
        return {name: _state_of(item) for name, item in value.items()}
    return value.state_dict() if hasattr(value, "state_dict") else value


def _restored(value: Any, state: Any) -> Any:
    """Return the value with `state` loaded into it, or `state` itself if it is a plain value."""
    if isinstance(value, torch.Generator):
        value.set_state(state)
    elif isinstance(value, dict):
        value.update({name: _restored(value.get(name), item) for name, item in state.items()})
    elif hasattr(value, "load_state_dict"):
        value.load_state_dict(state)
    else:
        return state
    return value


class GlobalGenerators:
    """Torch's global generators of a process, on the CPU and on the device of training."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def state_dict(self) -> dict[str, Any]:
        """Return the state of both generators."""
        return {"torch": torch.get_rng_state(), "device": self._runtime.random_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        torch.set_rng_state(state["torch"])
        self._runtime.set_random_state(state["device"])


class Checkpoints:
    """Checkpoints of one run of a stage. A context manager that holds the lock of their folder.

    If several processes share the run, all of them make the same calls; the main one reads and writes. A run may resume
    with another number of processes, which changes no more than rounding. If a checkpoint cannot be written, a warning
    is printed and training continues.

    Args:
        folder: folder of this run.
        options: when to save.
        runtime: the processes, and the device whose generator is saved.
        lock: lock of the folder; None saves nothing.
    """

    def __init__(self, folder: Path, options: CheckpointParams, runtime: Runtime, lock: FileLock | None) -> None:
        self.folder, self._options, self._runtime, self._lock = folder, options, runtime, lock
        self._parts: Mapping[str, Any] = {}
        self._interruption = Interruption()
        self._step, self._saved_at = 0, time.monotonic()
        self._saved: bool | None = None  # whether the current state was saved; None: not tried

    @classmethod
    def open(cls, stage: str, identity: object, options: CheckpointParams, runtime: Runtime) -> Checkpoints:
        """Lock the folder of this run, and remove folders of other runs that have not changed for 30 days.

        Args:
            stage: name of the stage: letters, digits, `-` and `_`.
            identity: everything that decides the result, as JSON values.
            options: when to save.
            runtime: as in `Checkpoints`.

        Raises:
            UserError: if another process holds the lock.
        """
        chosen = os.environ.get(CHECKPOINTS)
        root = Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("bertrio") / "checkpoints"
        text = json.dumps({"repository": str(repository()), "run": identity}, indent=2)
        folder = root.absolute() / f"{stage}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        lock = FileLock(folder / LOCK, thread_local=False)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock.acquire(blocking=False)
            for unfinished in folder.glob(".*"):
                unfinished.unlink()
            write_text(folder / IDENTITY, text + "\n")
            (folder / PROCESS).write_text(f"process {os.getpid()} in {Path.cwd()}")
            _remove_old(root)
        except Timeout as error:
            process = (folder / PROCESS).read_text() if (folder / PROCESS).exists() else "another process"
            raise UserError(
                f"checkpoints of {stage}: {process} trains the same, with checkpoints in {folder}. Wait until it has "
                "ended, or end it (kill and its number); then start this one again, and it resumes from the last "
                "checkpoint"
            ) from error
        except OSError as error:
            say(f"{stage}: no checkpoints can be written ({error}). Training goes on without; set {CHECKPOINTS}")
            return cls(folder, options, runtime, None)
        return cls(folder, options, runtime, lock)

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *error: object) -> None:
        if not self._files():
            self.finish()
        elif self._lock is not None:
            self._lock.release()

    @contextmanager
    def resumed(self, parts: Mapping[str, Any]) -> Iterator[None]:
        """Restore the parts from the last checkpoint, if there is one.

        Inside the context, a signal takes effect at the next call of `after_step` or `pause`.

        Args:
            parts: objects with a `state_dict`, by name, built as for a fresh run; loaded in this order.
        """
        self._parts = {**parts, "generators": GlobalGenerators(self._runtime)}
        state = self._runtime.processes.broadcast(self._load() if self._lock is not None else None)
        if state is not None:
            for name, part in self._parts.items():
                part.load_state_dict(state["parts"][name])
            self._step, self._saved = state["step"], True
            state = None  # frees what no part has taken over
            say(f"resumed after step {self._step}, from the checkpoint in {self.folder}")
        with install() as self._interruption:
            yield

    def after_step(self, step: int, force: bool = False) -> None:
        """Save if a checkpoint is due, or always with `force`. Call between two steps with the number of steps done.

        Raises:
            Interrupted: if a signal came, after saving.
        """
        self._step, self._saved = step, None
        minutes, steps = self._options.minutes, self._options.steps
        due = minutes is not None and time.monotonic() - self._saved_at >= 60 * minutes
        if force or due or (steps is not None and step % steps == 0):
            self._save()
        self.pause()

    def pause(self) -> None:
        """Stop if a signal came. Call often while no part changes, for example during scoring.

        A signal to one of the processes stops all of them at the same call.

        Raises:
            Interrupted: if a signal came, after saving.
        """
        processes = self._runtime.processes
        requested = processes.all_reduce_max(self._interruption.requested or 0)
        if requested:
            if self._saved is None:
                self._save()
            processes.all_reduce_max(0)  # the launcher stops the others when the first one ends
            self._interruption.requested = Signals(requested)
            self._interruption.stop(self._step, bool(self._saved))

    def finish(self) -> None:
        """Remove the folder and release the lock. Call when the stage's outputs are on disk."""
        if self._lock is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._lock.release()
            self._lock = None

    def _files(self) -> list[Path]:
        """Return the checkpoint files, newest last."""
        return sorted(self.folder.glob("step-*.safetensors"))

    def _load(self) -> dict[str, Any] | None:
        """Return the newest checkpoint that can be read, or None. All of them lead to the same result."""
        for path in reversed(self._files()):
            try:
                return _read(path, self.folder.name)
            except (OSError, ValueError, LookupError, SafetensorError) as error:
                say(f"checkpoint {path} cannot be read ({error}); trying the one before it")
        return None

    def _save(self) -> None:
        """Write a checkpoint and remove all but the last two. It gets its final name once it is complete on disk."""
        self._saved = False
        if self._lock is None:
            return
        state = {"step": self._step, "parts": {name: part.state_dict() for name, part in self._parts.items()}}
        try:
            with whole_file(self.folder / f"step-{self._step:08d}.safetensors") as temporary:
                _write(state, temporary, self.folder.name)
            sync(self.folder)
            self._saved = True
            for old in self._files()[:-FILES]:
                old.unlink()
        except (OSError, SafetensorError) as error:
            say(
                f"the checkpoint of step {self._step} could not be written to {self.folder} ({error}). Training goes "
                "on; if it is stopped, it resumes from the checkpoint before, or starts afresh if there is none"
            )
        self._saved_at = time.monotonic()


def _write(state: dict[str, Any], path: Path, run: str) -> None:
    """Write a state of tensors, tables and JSON values, with the name of the run's folder and a digest of both."""
    tensors: dict[str, torch.Tensor] = {}
    text, storages = json.dumps(_pack(state, tensors)).encode(), set()
    for name, tensor in tensors.items():
        if (storage := tensor.untyped_storage().data_ptr()) in storages:
            tensors[name] = tensor.clone()  # safetensors refuses tensors that share memory, such as tied embeddings
        storages.add(storage)
    tensors[STATE] = torch.frombuffer(bytearray(text), dtype=torch.uint8)  # metadata are 100 MB at most
    save_file(tensors, path, metadata={"run": run, "sha256": _content_hash(run, tensors)})


def _read(path: Path, run: str) -> dict[str, Any]:
    """Read the state that `_write` wrote; tuples become lists.

    Raises:
        ValueError, LookupError, SafetensorError: if the file is damaged, or of another run.
    """
    with safe_open(path, "pt") as file:
        owner, digest = (file.metadata()[name] for name in ("run", "sha256"))
        tensors = {name: file.get_tensor(name) for name in sorted(file.keys())}
    if owner != run:
        raise ValueError(f"it is of another run, {owner}")
    if digest != _content_hash(run, tensors):
        raise ValueError("its bytes are not those that were written")
    return _unpack(json.loads(tensors.pop(STATE).numpy().tobytes()), tensors)


def _pack(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Return the value in a form that JSON can hold, with its tensors and tables moved to `tensors`."""
    name = str(len(tensors))
    if isinstance(value, torch.Tensor):
        tensors[name] = value.detach().cpu().contiguous()  # no copy on the CPU, to save memory
        return {"tensor": name}
    if isinstance(value, pd.DataFrame):
        value.to_parquet(file := BytesIO())
        tensors[name] = torch.frombuffer(file.getbuffer(), dtype=torch.uint8)
        return {"table": name}
    if isinstance(value, Mapping):
        return {"items": [[key, _pack(item, tensors)] for key, item in value.items()]}  # keys may be numbers
    return [_pack(item, tensors) for item in value] if isinstance(value, (list, tuple)) else value


def _unpack(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_unpack(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if "items" in value:
        return {key: _unpack(item, tensors) for key, item in value["items"]}
    if "table" in value:
        return read_parquet(BytesIO(tensors[value["table"]].numpy().tobytes())).to_pandas(use_threads=False)
    return tensors[value["tensor"]]


def _content_hash(run: str, tensors: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.sha256(run.encode())
    for _, tensor in sorted(tensors.items()):
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def open_checkpoints(
    stage: str, params: Params, param_groups: Any, paths: Sequence[str | Path], runtime: Runtime
) -> Checkpoints:
    """Open the checkpoints of a run of `stage`. Arguments and errors as in `identity` and `Checkpoints.open`."""
    if not runtime.processes.is_main:
        return Checkpoints(Path(), params.checkpoints, runtime, lock=None)
    return Checkpoints.open(stage, identity(stage, params, param_groups, paths, runtime), params.checkpoints, runtime)


def identity(
    stage: str, params: Params, param_groups: Any, paths: Sequence[str | Path], runtime: Runtime
) -> dict[str, object]:
    """Return everything that decides the result of a training stage.

    This includes the order of tasks, in which heads are initialised and tasks trained.

    Args:
        stage: name of the stage, with that of the member if it has one.
        params: all params, as the stage sees them.
        param_groups: params that it reads, as `include` of `model_dump`: groups, or a dict of groups and params.
        paths: files and folders that it reads, relative to the repository, so that a copy of it has the same paths.
        runtime: device, precision and processes.

    Raises:
        UserError: if an input is missing.
    """
    settings = params.model_dump(by_alias=True, include=param_groups)
    del settings["runtime"]["processes"]  # their number changes no more than rounding
    package, cuda = Path(bertrio.__file__).parent, runtime.device.type == "cuda"
    script = getattr(sys.modules["__main__"], "__file__", None)  # of the stage
    units = {"amx": torch.cpu._is_amx_tile_supported, "bf16": torch.cpu._is_avx512_bf16_supported}
    return {
        "stage": stage,
        "settings": settings,
        "inputs": {str(path): _hashes(need(path)) for path in paths},
        "code": {str(path.relative_to(package)): sha256(path) for path in sorted(package.rglob("*.py"))},
        "script": sha256(Path(script)) if script and Path(script).is_file() else None,
        "device": torch.cuda.get_device_name(runtime.device) if cuda else runtime.device.type,
        "compute": str(runtime.compute),
        "threads": params.runtime.threads or runtime.processes.threads or torch.get_num_threads(),
        # decides the rounding of sums, and of products in bf16
        "cpu": [platform.machine(), torch.backends.cpu.get_cpu_capability(), [n for n, has in units.items() if has()]],
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in LIBRARIES}},
    }


def _version(library: str) -> str | None:
    with suppress(PackageNotFoundError):  # an optional package
        return version(library)
    return None


def _remove_old(root: Path) -> None:
    """Remove unlocked folders of runs, of any stage, that have not changed for 30 days."""
    for folder in [path.parent for path in root.glob(f"*/{IDENTITY}")]:
        if time.time() - folder.stat().st_mtime > DAYS * 24 * 3600:  # saving touches it
            with suppress(OSError, Timeout), FileLock(folder / LOCK, blocking=False):
                shutil.rmtree(folder)


def _hashes(path: Path) -> str | dict[str, str]:
    """Return the SHA-256 of a file, or of each file in a folder by its path."""
    if path.is_file():
        return sha256(path)
    return {file.relative_to(path).as_posix(): sha256(file) for file in sorted(path.rglob("*")) if file.is_file()}
