"""The state of a run as three files: tensors in safetensors, all else in JSON, and a manifest to check the two by.

Nothing is pickled: whoever reads a state runs no code of whoever wrote it. Files are written in one pass, from the
tensors' own memory and hashed on the way: half the time that safetensors' `save_file` takes, and no second copy of a
large model.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from bertrio.core.files import sync

State = dict[str, Any]  # a tree: dicts with text keys, lists, and leaves as in `write_state`

TENSORS, REST, MANIFEST = "tensors.safetensors", "state.json", "manifest.json"
LEAF = "$"  # the one key of the dict that stands in JSON for a tensor or an array
DTYPES = {  # names in torch and numpy: names in safetensors
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}


class Damaged(Exception):
    """What is wrong with the files of a state."""


def write_state(folder: Path, state: State) -> None:
    """Writes a state into an empty folder; at the end all of it is on disk.

    Args:
        folder: is there, and empty.
        state: a tree of dicts, lists and tuples (which come back as lists) whose leaves are tensors (which come back on
            the CPU, without gradient), numpy arrays, int, float, str, bool and None. All come back exactly: type, shape
            and every bit, of numbers that are not finite too. Tensors that share memory come back apart.

    Raises:
        TypeError: if something else is in it; says where. Nothing is written then.
        OSError: if the disk is full or cannot be written.
    """
    leaves: dict[str, Tensor | np.ndarray] = {}
    tree = json.dumps(_taken_apart(state, "state", leaves)).encode("ascii")
    manifest = {
        TENSORS: _write(folder / TENSORS, _safetensors(leaves)),
        REST: _write(folder / REST, [tree]),
    }
    _write(folder / MANIFEST, [json.dumps(manifest, indent=2).encode("ascii")])
    sync(folder)


def read_state(folder: Path) -> State:
    """Reads what `write_state` wrote.

    Raises:
        Damaged: if a file is missing, or is not byte for byte what was written.
        OSError: if a file is there and cannot be read: by this user, or from this disk.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        tensors, rest = (_checked(folder / name, **manifest[name]) for name in (TENSORS, REST))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise Damaged(f"{Path(error.filename).name}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:  # whatever odd JSON brings about
        raise Damaged(f"{MANIFEST} is not the one that was written") from error
    return _put_together(json.loads(rest), safetensors.torch.load(tensors))


def _taken_apart(value: Any, where: str, leaves: dict[str, Tensor | np.ndarray]) -> Any:
    """`value` with a name in place of each tensor and array, which go into `leaves` under these names."""
    if isinstance(value, dict):
        if odd := [key for key in value if not isinstance(key, str) or key == LEAF]:
            raise TypeError(f"{where}: a state has keys of text, and none that is {LEAF!r}; found {odd[0]!r}")
        return {key: _taken_apart(item, f"{where}.{key}", leaves) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_taken_apart(item, f"{where}.{index}", leaves) for index, item in enumerate(value)]
    if isinstance(value, (Tensor, np.ndarray)):
        if _dtype(value) not in DTYPES or getattr(value, "layout", torch.strided) != torch.strided:
            raise TypeError(f"{where}: a state cannot hold a {type(value).__name__} of {value.dtype}")
        name = f"{len(leaves)} {where}"  # the number tells {"a.b": x} from {"a": {"b": x}}
        leaves[name] = value
        return {LEAF: ["tensor" if isinstance(value, Tensor) else "array", name]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{where}: a state cannot hold a {type(value).__name__}")


def _put_together(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Undoes `_taken_apart`; empties `tensors`."""
    if isinstance(value, list):
        return [_put_together(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if LEAF not in value:
        return {key: _put_together(item, tensors) for key, item in value.items()}
    kind, name = value[LEAF]
    tensor = tensors.pop(name).clone()  # into memory aligned as torch's own: matrix products may depend on it
    return tensor if kind == "tensor" else tensor.numpy()


def _dtype(leaf: Tensor | np.ndarray) -> str:
    return str(leaf.dtype).removeprefix("torch.")


def _safetensors(leaves: Mapping[str, Tensor | np.ndarray]) -> Iterator[bytes | np.ndarray]:
    """The pieces of a safetensors file: the header's length, the header, and the bytes of each tensor."""
    order = sorted(leaves, key=lambda name: -leaves[name].itemsize)  # each begins at a multiple of its item size
    header, end = {}, 0
    for name in order:
        leaf, start = leaves[name], end
        end += leaf.nbytes
        header[name] = {"dtype": DTYPES[_dtype(leaf)], "shape": list(leaf.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode("ascii")
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little")
    yield text
    for name in order:
        yield _bytes(leaves[name])


def _bytes(leaf: Tensor | np.ndarray) -> np.ndarray:
    """The bytes in row-major order: a view where they lie so in the CPU's memory, else a copy of this one tensor."""
    if isinstance(leaf, Tensor):
        return leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return np.ascontiguousarray(leaf).reshape(-1).view(np.uint8)


def _write(path: Path, pieces: Iterable[bytes | np.ndarray]) -> dict[str, Any]:
    """Writes a file through to the disk, and gives what the manifest says of it."""
    digest = hashlib.sha256()
    with open(path, "wb") as file:
        for piece in pieces:
            digest.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        return {"size": file.tell(), "sha256": digest.hexdigest()}


def _checked(path: Path, size: int, sha256: str) -> bytes:
    """The content of a file, if it is what the manifest says."""
    content = path.read_bytes()
    if len(content) != size:
        raise Damaged(f"{path.name} has {len(content)} bytes, not {size}")
    if hashlib.sha256(content).hexdigest() != sha256:
        raise Damaged(f"{path.name} is not what was written: its SHA-256 differs")
    return content
