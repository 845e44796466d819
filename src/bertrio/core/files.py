"""Atomic writes of files and folders, and JSON and CSV with reproducible bytes."""

from __future__ import annotations

import csv
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # this module starts fast
    import pandas as pd

DVC_COPIES = "/.dvc/tmp/exps/"  # where `dvc exp run --temp` and `--queue` copy a repository to


def repository() -> Path:
    """Return the repository that stages run in: the working directory, or what DVC copied there for an experiment."""
    return Path(str(Path.cwd()).partition(DVC_COPIES)[0])


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; at the end it is synced to disk and renamed to `path`.

    An error inside the block leaves the previous content of `path` untouched.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
    except BaseException as error:
        error.written = path  # type: ignore[attr-defined]  # which errors of a full disk do not name
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def whole_folder(path: str | Path) -> Iterator[Path]:
    """Yield a new folder beside `path`; at the end it is synced to disk and replaces `path`.

    An error inside the block leaves the previous content of `path` untouched. A folder can't be renamed over another
    one, so `path` is briefly missing, but never incomplete. The new folder is called `.<name>.new`; leftovers of a
    killed process are removed first. Only one process at a time may write a folder.
    """
    path = Path(path)
    new, old = (path.with_name(f".{path.name}.{which}") for which in ("new", "old"))
    for leftover in (new, old):
        _remove(leftover)
    new.mkdir(parents=True)
    try:
        yield new
        for inside in new.rglob("*"):
            sync(inside)
        sync(new)
        if os.path.lexists(path):
            path.rename(old)
        new.rename(path)
    except BaseException as error:
        error.written = path  # type: ignore[attr-defined]
        if os.path.lexists(old) and not os.path.lexists(path):
            old.rename(path)
        _remove(new)
        raise
    sync(path.parent)
    _remove(old)


def _remove(path: Path) -> None:
    """Remove a file, link or folder if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8 with `\\n` line ends."""
    with whole_file(path) as temporary:
        temporary.write_bytes(text.encode("utf-8"))


def write_json(path: str | Path, value: Any, digits: int | None = 6) -> None:
    """Write `value` as indented JSON with floats rounded to `digits` decimals (None keeps all).

    Raises:
        ValueError: if a float is not finite, which JSON cannot represent.
    """
    write_text(path, json.dumps(rounded(value, digits), indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def write_csv(frame: pd.DataFrame, path: str | Path, quoted: bool = False) -> None:
    """Write a table with a header, `\\n` line ends and six significant digits.

    Args:
        frame: the table; its index is not written.
        path: the file.
        quoted: quote every field. Needed for texts: otherwise csv leaves a carriage return unquoted and readers take
            it for the end of a line.
    """
    quoting = csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL
    with whole_file(path) as temporary:
        frame.to_csv(temporary, index=False, float_format="%.6g", lineterminator="\n", quoting=quoting)


def read_json(path: str | Path) -> Any:
    """Read a JSON file."""
    return json.loads(Path(path).read_text(encoding="utf-8"))


def rounded(value: Any, digits: int | None) -> Any:
    """Return `value` as JSON types, with all floats rounded to `digits` decimals (None keeps all)."""
    if isinstance(value, dict):
        return {str(key): rounded(item, digits) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item, digits) for item in value]
    if isinstance(value, float) and digits is not None:
        return round(value, digits)
    return value
