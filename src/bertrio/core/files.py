"""Atomic writes of files and folders, and JSON and CSV with reproducible bytes."""

from __future__ import annotations

import csv
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertrio.core.errors import UserError

if TYPE_CHECKING:  # this module starts fast
    import pandas as pd
    import pyarrow as pa

DVC_COPIES = "/.dvc/tmp/exps/"  # where `dvc exp run --temp` and `--queue` copy a repository to
OLD = "old"  # name of the replaced folder, inside the temporary one until the new one is in place


def repository() -> Path:
    """Return the repository that stages run in: the working directory, or what DVC copied there for an experiment."""
    return Path(str(Path.cwd()).partition(DVC_COPIES)[0])


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; at the end it is synced to disk and renamed to `path`.

    An error inside the block leaves the previous content of `path` untouched.
    """
    path = Path(path)
    with _temporary(path, partial(Path.touch, exist_ok=False)) as temporary:
        yield temporary
        sync(temporary)
        os.replace(temporary, path)


@contextmanager
def whole_folder(path: str | Path) -> Iterator[Path]:
    """Yield a new folder; at the end it is synced to disk and replaces `path`.

    An error inside the block leaves the previous content of `path` untouched. A folder can't be renamed over another
    one, so `path` is briefly missing, but never incomplete.

    Raises:
        UserError: if another process is writing `path`.
    """
    path = Path(path)
    with _temporary(path, Path.mkdir, sole=True) as temporary:
        new = temporary / "new"
        new.mkdir()
        yield new
        for inside in new.rglob("*"):
            sync(inside)
        sync(new)
        if os.path.lexists(path):
            path.rename(temporary / OLD)
        new.rename(path)
        sync(path.parent)


@contextmanager
def _temporary(path: Path, make: Callable[[Path], None], sole: bool = False) -> Iterator[Path]:
    """Make a file or folder beside `path` and lock it for the block, at whose end it is removed if it is still there.

    What killed processes have left there for `path` is removed first: nobody holds its lock.

    Args:
        path: what it is for; it is called `.<name>.<16 random digits>.partial`.
        make: function that makes it.
        sole: whether only one process at a time may have one for `path`.

    Raises:
        UserError: if `sole`, and another process has one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    others = path.parent.glob(f".{escape(path.name)}.{'[0-9a-f]' * 16}.partial")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    parent = _lock(path.parent, wait=True)  # what another process has just made may not be locked yet
    try:
        if not all([_remove_leftover(other, path) for other in others]) and sole:
            raise UserError(f"{path}: another process is writing it; start again when that one has ended")
        make(temporary)
        lock = _lock(temporary)
    finally:
        os.close(parent)
    try:
        yield temporary
    except BaseException as error:
        error.written = path  # type: ignore[attr-defined]  # which errors of a full disk do not name
        raise
    finally:
        _remove(temporary, path)
        os.close(lock)


def _lock(path: Path, wait: bool = False) -> int:
    """Lock a file or folder until the returned handle is closed.

    Raises:
        BlockingIOError: if another process holds the lock, unless `wait`.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(handle)
        raise
    except OSError:
        pass  # some network file systems can't lock folders
    return handle


def _remove_leftover(leftover: Path, path: Path) -> bool:
    """Remove what a killed process has left for `path`; return False if its process still runs."""
    try:
        lock = _lock(leftover)
        _remove(leftover, path)
        os.close(lock)
    except BlockingIOError:
        return False
    except OSError:
        pass  # just removed by its process, or of another user
    return True


def _remove(temporary: Path, path: Path) -> None:
    """Remove a temporary file or folder of `path`; what was there before is put back if nothing has taken its place."""
    if os.path.lexists(temporary / OLD) and not os.path.lexists(path):
        (temporary / OLD).rename(path)
    remove(temporary)


def remove(path: Path) -> None:
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
    if digits is not None:
        value = rounded(value, digits)
    write_text(path, json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


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


def read_parquet(source: Any, columns: list[str] | None = None) -> pa.Table:
    """Read a parquet file, by path or open, or only those of some columns that it has.

    It is read in this thread: pyarrow waits for ever where none can be started.
    """
    import pyarrow.parquet as pq

    with pq.ParquetFile(source, pre_buffer=False) as file:
        return file.read(columns, use_threads=False)


def parquet_batches(path: Path, size: int, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a parquet file, `size` at a time, as `read_parquet` reads them."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path, pre_buffer=False) as file:
        yield from file.iter_batches(size, columns=columns, use_threads=False)


def read_json(path: str | Path) -> Any:
    """Read a JSON file."""
    return json.loads(Path(path).read_text(encoding="utf-8"))


def rounded(value: Any, digits: int) -> Any:
    """Return `value` as JSON types, with all floats rounded to `digits` decimals.

    Raises:
        ValueError: if a float is not finite.
    """
    return json.loads(json.dumps(value, allow_nan=False), parse_float=lambda text: round(float(text), digits))
