"""Training state that checkpoints save, and the two files that hold it: safetensors for tensors, and for the rest JSON
below a line with the SHA-256 of both.

Nothing is pickled, so reading a state runs no code.
"""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from bertrio.core.files import sync
from bertrio.core.runtime import Runtime

State = dict[str, Any]  # a tree: dicts with text keys, lists, and leaves as in `write_state`

TENSORS, REST = "tensors.safetensors", "state.json"
LEAF = "$"  # the one key of the dict that stands in JSON for a tensor or an array


class Stateful(Protocol):
    """A part of training that can be saved, and restored into another one that was built alike."""

    def state_dict(self) -> State:
        """Return all that it needs to go on, as a tree of tensors and plain values."""

    def load_state_dict(self, state: State) -> None:
        """Go on from what `state_dict` returned."""


class Draws:
    """The state of a generator that a function without a state of its own draws from."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def state_dict(self) -> State:
        """Return the generator's state."""
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        self._generator.set_state(state["generator"])


class GlobalGenerators:
    """The global generators of a process: torch's on the CPU and on the device that computes, numpy's and Python's."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def state_dict(self) -> State:
        """Return the states of all of them."""
        return {
            "torch": torch.get_rng_state(),
            "device": self._runtime.random_state(),
            "numpy": np.random.get_state(),
            "python": random.getstate(),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        torch.set_rng_state(state["torch"])
        self._runtime.set_random_state(state["device"])
        np.random.set_state(tuple(state["numpy"]))
        version, numbers, gauss = state["python"]
        random.setstate((version, tuple(numbers), gauss))


def write_state(folder: Path, state: State) -> None:
    """Write a state into an empty folder, through to the disk.

    Args:
        folder: exists, and is empty.
        state: a tree of dicts, lists and tuples (which come back as lists) whose leaves are tensors (which come back on
            the CPU, without gradient), numpy arrays, int, float, str, bool and None. All come back exactly: type, shape
            and every bit. Tensors that share memory come back apart.

    Raises:
        TypeError: if something else is in it; says where. Nothing is written then.
        OSError, safetensors.SafetensorError: if the disk is full or cannot be written.
    """
    tensors: dict[str, Tensor] = {}
    tree = json.dumps(_encode(state, "state", tensors))
    safetensors.torch.save_file(tensors, folder / TENSORS)
    (folder / REST).write_text(f"{_digest(folder, tree)}\n{tree}", encoding="utf-8")
    for path in (folder / TENSORS, folder / REST, folder):
        sync(path)


def read_state(folder: Path) -> State:
    """Read what `write_state` wrote.

    Raises:
        OSError, ValueError, safetensors.SafetensorError: if a file is missing, damaged or cannot be read.
    """
    digest, _, tree = (folder / REST).read_text(encoding="utf-8").partition("\n")
    if digest != _digest(folder, tree):
        raise ValueError("its bytes are not those that were written")
    return _decode(json.loads(tree), safetensors.torch.load_file(folder / TENSORS))


def _digest(folder: Path, tree: str) -> str:
    """Return the SHA-256 of the tensors' file and the text that stands for the rest."""
    digest = hashlib.sha256(tree.encode())
    with (folder / TENSORS).open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _encode(value: Any, where: str, tensors: dict[str, Tensor]) -> Any:
    """Return `value` with a name in place of each tensor and array, which go into `tensors` under these names."""
    if isinstance(value, dict):
        if invalid := [key for key in value if not isinstance(key, str) or key == LEAF]:
            raise TypeError(f"{where}: found the key {invalid[0]!r}, expected text other than {LEAF!r}")
        return {key: _encode(item, f"{where}.{key}", tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encode(item, f"{where}.{index}", tensors) for index, item in enumerate(value)]
    if isinstance(value, (Tensor, np.ndarray)):
        tensor = value if isinstance(value, Tensor) else torch.from_numpy(value.copy())
        if tensor.is_sparse:
            raise TypeError(f"{where}: a state cannot hold a sparse tensor")
        name = f"{len(tensors)} {where}"  # the number tells {"a.b": x} from {"a": {"b": x}}
        tensors[name] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {LEAF: ["tensor" if isinstance(value, Tensor) else "array", name]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{where}: a state cannot hold a {type(value).__name__}")


def _decode(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Undo `_encode`; empties `tensors`."""
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if LEAF not in value:
        return {key: _decode(item, tensors) for key, item in value.items()}
    kind, name = value[LEAF]
    tensor = tensors.pop(name).clone()  # into memory aligned as torch's own: matrix products may depend on it
    return tensor if kind == "tensor" else tensor.numpy()
