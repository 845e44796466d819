"""A lock that one process at a time holds on a folder, and that tells the others who does."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from bertrio.core.errors import UserError
from bertrio.core.files import read_json, write_json

LOCK, HOLDER = "lock", "holder.json"


class FolderLock:
    """The lock of one folder. The system gives it back when its holder dies, however it dies.

    The file of the lock may be removed by its holder, with the folder or without: filelock notices and takes the new
    one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = FileLock(folder / LOCK, thread_local=False)

    def free(self) -> bool:
        """Takes the lock if nobody holds it.

        Raises:
            OSError: if the file of the lock cannot be made.
        """
        with suppress(Timeout):
            self._lock.acquire(blocking=False)
        return self._lock.is_locked

    def take(self, what: str) -> None:
        """Takes the lock and writes down who holds it.

        Args:
            what: the folder holds, for the message.

        Raises:
            UserError: if another process holds it, or this one by another lock; names it.
            OSError: if the file of the lock cannot be made.
        """
        if not self.free():
            raise UserError(
                f"{what}: {self._holder()} is at work in {self._folder}. Wait until it has ended, or end it; "
                "then start this one again, and it goes on from the last checkpoint"
            )
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        with suppress(OSError):  # on a full disk others are told of nobody, which is better than of who was here before
            (self._folder / HOLDER).unlink(missing_ok=True)
            write_json(self._folder / HOLDER, {"pid": os.getpid(), "host": platform.node(), "since": now})

    def remove_files(self) -> None:
        """Removes what the lock, which is held, has in the folder. From then on another process may take a new one."""
        (self._folder / HOLDER).unlink(missing_ok=True)
        (self._folder / LOCK).unlink(missing_ok=True)

    def release(self) -> None:
        """Gives the lock back. The note of who held it stays: it is read only where somebody holds it."""
        self._lock.release()

    def _holder(self) -> str:
        try:
            holder: dict[str, Any] = read_json(self._folder / HOLDER)
            return f"process {holder['pid']} on {holder['host']}, begun {holder['since']},"
        except (OSError, ValueError, KeyError, TypeError):  # it has the lock and has not yet said who it is
            return "another process"
