"""What an encoder's name stands for: `tiny`, a local folder, or an id on the Hugging Face hub.

Of an id, a commit is fetched into the hub's cache, and loaded from there like a local folder. No code and no pickle is
among the files that are fetched, and none is ever run or loaded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertrio.core.errors import UserError, missing_path

FILES = ("*.json", "*.txt", "*.model", "*.safetensors")  # that an encoder is made of
PARTS = {
    "tokenizer": ("tokenizer.json", "vocab.txt", "vocab.json", "*.model"),
    "weights": ("model.safetensors", "model-*.safetensors"),
}
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def local_folder(name: str) -> Path | None:
    """The folder that an encoder's name stands for; None for `tiny` and for hub ids.

    Raises:
        UserError: if the name can only be a path, and nothing is there.
    """
    if name == "tiny":
        return None
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name:
        raise missing_path("encoder.name", name)
    return None


def fetched(name: str, revision: str | None) -> Path:
    """The folder of a hub id's files at one commit, which is the folder's name; without a network, what was fetched.

    Raises:
        UserError: if there is no such id or revision, or neither a network nor the files.
    """
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(FILES), ignore_patterns=["*/*"]))
    except Exception as error:  # each version of the client has its own kinds of errors for the same few causes
        at = f" at revision {revision}" if revision else ""
        raise UserError(
            f"encoder.name: {name} can't be loaded ({_reason(error)}); looked for this id{at} on the Hugging Face hub; "
            "without a network, give a local folder or tiny"
        ) from error


def origin_of(name: str, revision: str | None) -> dict[str, Any] | None:
    """What was fetched for a hub id: `id`, `commit`, and the SHA-256 of each of its `files`.

    None for `tiny` and local folders, of which nothing is fetched.
    """
    if name == "tiny" or local_folder(name):
        return None
    folder = fetched(name, revision)
    digests = {file.name: sha256(file) for pattern in FILES for file in sorted(folder.glob(pattern))}
    return {"id": name, "commit": folder.name, "files": digests}


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hex.

    Raises:
        UserError: if it can't be read.
    """
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while block := file.read(2**20):
                digest.update(block)
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror})") from error
    return digest.hexdigest()


@contextmanager
def source_of(name: str, revision: str | None, part: str) -> Iterator[str]:
    """The folder to hand to `from_pretrained` for an encoder's name; its failures become messages for the user.

    Args:
        name: of a local folder, or an id on the hub.
        revision: of an id.
        part: `tokenizer` or `weights`, what is to be loaded of it.

    Raises:
        UserError: if it is not there, or can't be loaded inside of the block.
    """
    from transformers import logging

    logging.disable_progress_bar()  # reading a local file takes a second; downloads have a bar of their own
    logging.set_verbosity_error()  # what it would only warn of is an error here, or is meant
    folder = local_folder(name) or fetched(name, revision)
    reason = _problem(folder, part)
    if reason:
        raise _unloadable(name, reason)
    try:
        yield str(folder)
    except (UserError, MemoryError):
        raise
    except Exception as error:  # a folder can be wrong in every place that transformers looks at
        raise _unloadable(name, _reason(error)) from error


def _unloadable(name: str, reason: str) -> UserError:
    advice = "expected a folder with config.json, safetensors weights and tokenizer files, as save_pretrained writes it"
    return UserError(f"encoder.name: {name} can't be loaded ({reason}); {advice}")


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    if "trust_remote_code" in text:
        return "it needs code of its own, and code that comes with an encoder is never run"
    return text[:300] or type(error).__name__


def _problem(folder: Path, part: str) -> str | None:
    """Why `part` of an encoder's folder can't be loaded, where transformers would say less or nothing."""
    if not (folder / "config.json").is_file():
        return "there is no config.json"
    for name in ("config.json", "tokenizer_config.json", "tokenizer.json"):
        if (folder / name).is_file() and not isinstance(_json(folder / name), dict):
            return f"{name} is damaged: it is no JSON object"
    files = sorted(file for pattern in PARTS[part] for file in folder.glob(pattern))
    if not files:
        pickles = sorted(file.name for pattern in PICKLES for file in folder.glob(pattern))
        if part == "weights" and pickles:
            return f"its weights are in {pickles[0]}, a pickle, which can run any code and is never loaded"
        return f"there is no {' or '.join(PARTS[part])}"
    return next(filter(None, map(_damage, files)), None) if part == "weights" else None


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def _damage(path: Path) -> str | None:
    """Why a safetensors file is not whole: its header says where in it each tensor lies."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy"):
            return None
    except (SafetensorError, OSError) as error:
        return f"{path.name} is damaged or cut off ({error}); copy or download it again"
