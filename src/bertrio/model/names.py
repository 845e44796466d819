"""What an encoder's name stands for: `tiny`, a local folder, or an id on the Hugging Face hub.

Of an id, a commit is fetched into the hub's cache, and loaded from there like a local folder. No code and no pickle is
among the files that are fetched, and none is ever run or loaded.
"""

from __future__ import annotations

import hashlib
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
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise missing_path("encoder.name", name)
    return None


def fetched(name: str, revision: str | None) -> Path:
    """The folder of a hub id's files at one commit, which is the folder's name; without a network, what was fetched.

    Raises:
        UserError: if there is no such id or revision, or neither a network nor the files.
    """
    from huggingface_hub import snapshot_download

    at = f" at revision {revision}" if revision else ""
    hint = f"looked for this id{at} on the Hugging Face hub; without a network, give a local folder or tiny"
    with loading(f"encoder.name: {name}", hint):
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(FILES), ignore_patterns=["*/*"]))


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
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror})") from error


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
    folder = local_folder(name) or fetched(name, revision)
    hint = (
        "expected a folder with config.json, safetensors weights and tokenizer files, as save_pretrained writes it; "
        "pickles, which can run any code, are never loaded"
    )
    with loading(f"encoder.name: {name}", hint):
        for patterns in (("config.json",), PARTS[part]):  # some of which transformers does without
            if not any(any(folder.glob(pattern)) for pattern in patterns):
                raise FileNotFoundError(f"there is no {' or '.join(patterns)}")
        yield str(folder)


@contextmanager
def loading(what: str | Path, hint: str = "run the stage that writes it again") -> Iterator[None]:
    """Turn any failure of the block, which loads `what`, into a message for the user.

    Damage shows in many ways in transformers, as do missing files in the hub's client.

    Raises:
        UserError: naming `what`, the cause, and the `hint` at what to do.
    """
    from transformers import logging

    logging.disable_progress_bar()  # reading a local file takes a second; downloads have a bar of their own
    logging.set_verbosity_error()  # what transformers only warns about is an error here, or is meant
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if "trust_remote_code" in reason:
            reason = "it needs code of its own, and code that comes with an encoder is never run"
        raise UserError(f"{what}: can't be loaded ({reason[:300]}); {hint}") from error
