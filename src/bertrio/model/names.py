"""Names of encoders: `tiny`, a local folder, or an id on the Hugging Face hub.

A hub id is resolved to a commit, whose files are fetched into the hub's cache and loaded like a local folder.
Neither code nor pickles are ever fetched, run or loaded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertrio.core.errors import UserError, missing_path

FILES = ("*.json", "*.txt", "*.model", "*.safetensors")  # the files of an encoder
PINNED = {"sentence-transformers/all-MiniLM-L6-v2": "c9745ed1d9f207416be6d2e6f8de32d1f16199bf"}  # if revision is null
PARTS = {
    "tokenizer": ("tokenizer.json", "vocab.txt", "vocab.json", "*.model"),
    "weights": ("model.safetensors", "model-*.safetensors"),
}


def local_folder(name: str) -> Path | None:
    """Return the folder of a local encoder; None for `tiny` and for hub ids.

    Raises:
        UserError: if the name can only be a path, but there is no such folder.
    """
    if name == "tiny":
        return None
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise missing_path("encoder.name", name)
    return None


def fetch_encoder(name: str, revision: str | None) -> Path:
    """Fetch a hub encoder and return its folder, which is named after the commit; without a network, use the cache.

    A revision of None is the commit in `PINNED`, or the newest.

    Raises:
        UserError: if there is no such id or revision, or neither a network nor a cached copy.
    """
    from huggingface_hub import snapshot_download

    revision = revision or PINNED.get(name)
    at = f" at revision {revision}" if revision else ""
    hint = f"looked for this id{at} on the Hugging Face hub; without a network, give a local folder or tiny"
    with loading(f"encoder.name: {name}", hint):
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(FILES), ignore_patterns=["*/*"]))


def hub_origin(name: str, revision: str | None) -> dict[str, Any] | None:
    """Return the `id` and `commit` of a hub encoder, and the SHA-256 of each of its `files`.

    Return None for `tiny` and local folders.
    """
    if name == "tiny" or local_folder(name):
        return None
    folder = fetch_encoder(name, revision)
    digests = {file.name: sha256(file) for pattern in FILES for file in sorted(folder.glob(pattern))}
    return {"id": name, "commit": folder.name, "files": digests}


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hex.

    Raises:
        UserError: if it can't be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror})") from error


@contextmanager
def encoder_source(name: str, revision: str | None, part: str) -> Iterator[str]:
    """Yield the folder of an encoder for `from_pretrained`; failures inside the block become messages for the user.

    Args:
        name: a local folder, or an id on the hub.
        revision: revision of an id.
        part: `tokenizer` or `weights`, the part to be loaded.

    Raises:
        UserError: if the files are missing, or loading fails inside the block.
    """
    folder = local_folder(name) or fetch_encoder(name, revision)
    hint = (
        "expected a folder with config.json, safetensors weights and tokenizer files, as save_pretrained writes it; "
        "pickles, which can run any code, are never loaded"
    )
    with loading(f"encoder.name: {name}", hint):
        for patterns in (("config.json",), PARTS[part]):  # some of which transformers does not require
            if not any(any(folder.glob(pattern)) for pattern in patterns):
                raise FileNotFoundError(f"there is no {' or '.join(patterns)}")
        yield str(folder)


@contextmanager
def loading(what: str | Path, hint: str = "run the stage that writes it again") -> Iterator[None]:
    """Turn any failure of the block, which loads `what`, into a message for the user.

    Transformers and the hub's client raise many kinds of exceptions for damaged and missing files.

    Raises:
        UserError: with `what`, the cause, and the `hint` for the user.
    """
    from transformers import logging

    logging.disable_progress_bar()  # reading local files is too fast for a progress bar; downloads have their own
    logging.set_verbosity_error()  # warnings of transformers are errors here, or expected
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if "trust_remote_code" in reason:
            reason = "it needs code of its own, and code that comes with an encoder is never run"
        raise UserError(f"{what}: can't be loaded ({reason[:300]}); {hint}") from error
