"""Stopping a run in good order: signals wait for the end of a step, and a stage ends when DVC is gone."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the last: the terminal is gone
LOOK_EVERY = 0.25  # seconds between two looks at the parents
SAVE_WITHIN = 3.0  # seconds to save a checkpoint and end once DVC is gone
_asked = threading.Event()  # whether this run was told to stop
AT_ONCE = "stopped before its end; the same command starts again, from the last checkpoint if there is one"


class Interrupted(KeyboardInterrupt):
    """A signal has ended the run. A KeyboardInterrupt, so that no `except Exception` on the way holds it up.

    Args:
        by: the signal.
        message: for the user, after the name of the stage.
    """

    def __init__(self, by: int, message: str = AT_ONCE) -> None:
        super().__init__(message)
        self.by = signal.Signals(by)

    @property
    def code(self) -> int:
        """The exit code, as shells have it: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP."""
        return 128 + self.by


class Interruption:
    """Whether a signal has asked training to stop.

    Attributes:
        requested: the signal; None as long as there was none.
    """

    def __init__(self) -> None:
        self.requested: signal.Signals | None = None

    def stop(self, step: int, saved: bool = True) -> None:
        """End the run if a signal came; call it between two steps, after saving a checkpoint if `requested`.

        Args:
            step: the number of steps done.
            saved: whether there is a checkpoint of this step.

        Raises:
            Interrupted: if a signal came.
        """
        if self.requested is not None:
            kept = "checkpoint saved; the same command goes on from there"
            lost = "the checkpoint could not be saved; the same command goes on from the one before it"
            raise Interrupted(self.requested, f"stopped at step {step}, {kept if saved else lost}")


@contextmanager
def install() -> Iterator[Interruption]:
    """Note the first of SIGNALS in this block instead of acting on it; a second one acts at once, as outside.

    At the end of the block signals act at once again, beginning with one that was noted and that nobody has acted on.
    Ignored signals stay so, such as Ctrl-C under nohup. In a thread that is not the main one, where Python has no
    signals, nothing is ever noted.

    Raises:
        Interrupted: at the end, for a signal that was noted.
    """
    interruption = Interruption()

    def note(number: int, frame: Any) -> None:
        _asked.set()
        interruption.requested = signal.Signals(number)
        for other, handler in before.items():
            signal.signal(other, handler)
        _print_safely("stopping after this step; once more stops at once")

    with _handled(note) as before:
        yield interruption
    if interruption.requested is not None:
        raise Interrupted(interruption.requested)


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise `Interrupted` for each of SIGNALS in this block, so that half-written files are cleaned up, and end the
    stage when DVC or the launcher that started it is gone."""

    def end(number: int, frame: Any) -> None:
        _asked.set()
        raise Interrupted(number)

    _asked.clear()
    with _handled(end):
        if "DVC_STAGE" in os.environ or "LOCAL_RANK" in os.environ:
            threading.Thread(target=_end_after, args=(parents(),), daemon=True).start()
        yield


@contextmanager
def _handled(handler: Any) -> Iterator[dict[int, Any]]:
    """Set the handler of all signals in this block; yield the handlers before."""
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        found = {number: signal.getsignal(number) for number in SIGNALS}
        before = {number: old for number, old in found.items() if old not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, handler)
    try:
        yield before
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def parents() -> list[int]:
    """Return the ancestors of this process, its parent first: shells that DVC runs its command in, and DVC.

    DVC sets DVC_STAGE for its commands and has none itself. Where environments can't be read (there is no /proc on
    macOS), the parent alone; most shells put the command in their own place, and it is DVC. A process of a launcher
    has the launcher alone, which watches DVC for all of them.
    """
    found = [os.getppid()]
    while "LOCAL_RANK" not in os.environ and b"\0DVC_STAGE=" in b"\0" + _of_process(found[-1], "environ"):
        status = _of_process(found[-1], "stat")
        if not status:  # has just ended
            break
        found.append(int(status.rpartition(b")")[2].split()[1]))
    return found


def _is_dvc(process: int) -> bool:
    """Return whether a process, the last of `parents`, is DVC. If not, DVC died before this process could
    look, and the shell in between was left to `process`, which takes orphans in.

    DVC's commands are in its own process group, unless something between the two makes another (`timeout`, `torchrun`);
    then the command line tells.
    """
    with suppress(ProcessLookupError):
        return os.getpgid(process) == os.getpgrp() or b"dvc" in _of_process(process, "cmdline")
    return False


def _of_process(process: int, what: str) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{process}/{what}").read_bytes()
    return b""


def _end_after(started_by: list[int]) -> None:
    """Wait until one of the parents is gone, and end this process: in good order if that is quick, else at once.

    A parent that dies leaves its children to another, so the list of them changes. Whether the last in the list was
    DVC to begin with is another question, see `_is_dvc`.
    """
    if "LOCAL_RANK" in os.environ or _is_dvc(started_by[-1]):  # a launcher of processes stands between
        while parents() == started_by:
            time.sleep(LOOK_EVERY)
    if not _asked.is_set():  # a second signal would stop at once
        _print_safely(f"{'DVC' if 'DVC_STAGE' in os.environ else 'the launcher'}, which started this stage, is gone")
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SAVE_WITHIN)
    os._exit(128 + signal.SIGTERM)


def _print_safely(text: str) -> None:
    """Print a line from a signal handler or a thread, where `print` may be in the middle of another one."""
    with suppress(OSError):
        os.write(2, f"\n{text}\n".encode())
