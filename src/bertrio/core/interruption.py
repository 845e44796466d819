"""Graceful stops: signals wait for the end of a step, and a stage ends when DVC has died."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # SIGHUP: the terminal was closed
LOOK_EVERY = 0.25  # seconds between checks of the parent processes
SAVE_WITHIN = 3.0  # seconds to save a checkpoint and exit once DVC has died
_stop_requested = threading.Event()
AT_ONCE = "stopped before its end; the same command starts again, from the last checkpoint if there is one"


class Interrupted(KeyboardInterrupt):
    """Raised when a signal ends the run. A KeyboardInterrupt, so that no `except Exception` catches it.

    Args:
        number: of the signal.
        message: shown to the user after the name of the stage.

    Attributes:
        code: the exit code by shell convention: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP.
    """

    def __init__(self, number: int, message: str = AT_ONCE) -> None:
        super().__init__(message)
        self.code = 128 + number


class Interruption:
    """Flag of a signal that asks training to stop.

    Attributes:
        requested: the signal, or None.
    """

    def __init__(self) -> None:
        self.requested: signal.Signals | None = None

    def stop(self, step: int, saved: bool = True) -> None:
        """End the run if a signal arrived. Call it between steps, after saving a checkpoint if `requested`.

        Args:
            step: number of steps done.
            saved: whether a checkpoint of this step exists.

        Raises:
            Interrupted: if a signal arrived.
        """
        if self.requested is not None:
            resume = "checkpoint saved; the same command goes on from there"
            failure = "the checkpoint could not be saved; the same command goes on from the one before it"
            raise Interrupted(self.requested, f"stopped at step {step}, {resume if saved else failure}")


@contextmanager
def install() -> Iterator[Interruption]:
    """Record the first of SIGNALS during the block instead of acting on it; a second signal acts at once.

    At the end of the block the previous handlers are restored. Ignored signals stay ignored, such as Ctrl-C under
    nohup. Outside the main thread, where Python handles no signals, nothing is recorded.

    Raises:
        Interrupted: at the end, for a recorded signal that `Interruption.stop` has not handled.
    """
    interruption = Interruption()

    def record(number: int, frame: Any) -> None:
        _stop_requested.set()
        interruption.requested = signal.Signals(number)
        for other, handler in before.items():
            signal.signal(other, handler)
        _print_safely("stopping after this step; once more stops at once")

    with _handled(record) as before:
        yield interruption
    if interruption.requested is not None:
        raise Interrupted(interruption.requested)


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise `Interrupted` for each of SIGNALS during the block, so that half-written files are cleaned up. End the
    stage when DVC, or the launcher that started it, has died."""

    def end(number: int, frame: Any) -> None:
        _stop_requested.set()
        raise Interrupted(number)

    _stop_requested.clear()
    with _handled(end):
        if "DVC_STAGE" in os.environ or "LOCAL_RANK" in os.environ:
            threading.Thread(target=_end_after, args=(parents(),), daemon=True).start()
        yield


@contextmanager
def _handled(handler: Any) -> Iterator[dict[int, Any]]:
    """Set the handler of all signals during the block; yield the previous handlers."""
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        current = {number: signal.getsignal(number) for number in SIGNALS}
        before = {number: old for number, old in current.items() if old not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, handler)
    try:
        yield before
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def parents() -> list[int]:
    """Return the ancestors of this process, its parent first: the shells of DVC's command, and DVC.

    DVC sets DVC_STAGE for its commands but not for itself. Where environments can't be read (macOS has no /proc), the
    list holds only the parent, which is DVC: most shells replace themselves with the command. A launched process has
    only its launcher, which watches DVC for all of them.
    """
    ancestors = [os.getppid()]
    while "LOCAL_RANK" not in os.environ and b"\0DVC_STAGE=" in b"\0" + _read_proc(ancestors[-1], "environ"):
        status = _read_proc(ancestors[-1], "stat")
        if not status:  # has just ended
            break
        ancestors.append(int(status.rpartition(b")")[2].split()[1]))
    return ancestors


def _is_dvc(process: int) -> bool:
    """Return whether a process, the last of `parents`, is DVC. If not, DVC died before this check and `process`
    adopted the shell in between.

    DVC's commands are in its process group, unless a command in between creates another one (`timeout`, `torchrun`);
    then the command line decides.
    """
    with suppress(ProcessLookupError):
        return os.getpgid(process) == os.getpgrp() or b"dvc" in _read_proc(process, "cmdline")
    return False


def _read_proc(process: int, entry: str) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{process}/{entry}").read_bytes()
    return b""


def _end_after(ancestors: list[int]) -> None:
    """Wait until one of the parents has died, then end this process: gracefully within `SAVE_WITHIN` seconds, else
    at once.

    Children of a dead process get another parent, so `parents` changes. `_is_dvc` tells whether DVC died before.
    """
    if "LOCAL_RANK" in os.environ or _is_dvc(ancestors[-1]):
        while parents() == ancestors:
            time.sleep(LOOK_EVERY)
    if not _stop_requested.is_set():  # a second signal would end it at once
        _print_safely(f"{'DVC' if 'DVC_STAGE' in os.environ else 'the launcher'}, which started this stage, is gone")
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SAVE_WITHIN)
    os._exit(128 + signal.SIGTERM)


def _print_safely(text: str) -> None:
    """Print a line from a signal handler or thread, where another `print` may be in progress."""
    with suppress(OSError):
        os.write(2, f"\n{text}\n".encode())
