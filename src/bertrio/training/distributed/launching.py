"""Starts the processes of a run on this machine, and ends with them.

The command that was called starts itself once for each process and then only watches. What a stage promises holds for
all of them together: a signal reaches every process once, the exit code is that of the process that failed first, and
none is left behind, however the others or the command itself may end.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO, Any

from bertrio.core.interruption import SAVE_WITHIN, SIGNALS

GRACE = 10.0  # seconds that the others have to end by themselves after one has failed; a GPU's may hang in a message
LOOK_EVERY = 0.1  # seconds between two looks at them
LAUNCHED = "BERTRIO_LAUNCHED"  # of the environment: this process was started here, and its stdin ends with its launcher
THREADS = "BERTRIO_THREADS"  # and: the threads of all processes of the machine together
STAGE, KEPT_STAGE = "DVC_STAGE", "BERTRIO_STAGE"  # the stage that DVC runs, and where it is put by for a moment


def launch(count: int, threads: int) -> int:
    """Runs this very command in `count` processes, each with the environment that torchrun and accelerate give theirs.

    The first one has the terminal. What the others say is shown if one of them fails before it.

    Args:
        count: of processes, 2 or more.
        threads: of the CPU, for all of them together; each has its share, at least one.

    Returns:
        The exit code: 0 if the first process ended well, which writes the results; else that of the process that failed
        first, or 128 + n if signal n ended it.
    """
    with ExitStack() as stack:
        said = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(1, count)]
        shared = {
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "OMP_NUM_THREADS": str(max(1, threads // count)),
            LAUNCHED: "1",
            THREADS: str(threads),
        }
        workers: list[subprocess.Popen] = []
        stack.callback(_kill, workers)
        stack.enter_context(_signals_go_to(workers))
        for rank, to in enumerate([None, *said]):
            workers.append(_start({**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}, to))
        failed = _wait(workers)
        if 0 not in failed:  # it has the terminal
            for rank in failed:
                _show(rank, workers[rank].returncode, said[rank - 1])
        code = workers[failed[0]].returncode if failed else 0
    return code if code >= 0 else 128 - code


def end_with_launcher() -> None:
    """To be called in each process of a run: if `launch` started it, it ends when the launcher is gone, killed by -9 as
    it may be; in good order if that is quick, else at once."""
    if LAUNCHED in os.environ:
        threading.Thread(target=_end_at_end_of_stdin, daemon=True).start()
    if KEPT_STAGE in os.environ:
        os.environ[STAGE] = os.environ.pop(KEPT_STAGE)


def _end_at_end_of_stdin() -> None:
    os.read(0, 1)  # the launcher writes nothing, and the system closes what a dead process had open
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SAVE_WITHIN)
    os._exit(128 + signal.SIGTERM)


def _start(variables: dict[str, str], said: IO[bytes] | None) -> subprocess.Popen:
    """One process: in a session of its own, so that Ctrl-C in a terminal reaches the launcher alone, which hands it
    on; and with DVC's variable put by while it starts, for it is the launcher that looks whether DVC lives."""
    environment = {KEPT_STAGE if name == STAGE else name: value for name, value in os.environ.items()} | variables
    command = [sys.executable, *sys.orig_argv[1:]]
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=said, stderr=said, start_new_session=True
    )


@contextmanager
def _signals_go_to(workers: list[subprocess.Popen]) -> Iterator[None]:
    """A context in which the workers get the signals that would stop this process; those ignored here stay so."""

    def hand_on(number: int, frame: Any) -> None:
        for worker in list(workers):
            worker.send_signal(number)  # does nothing if it has ended

    before = {number: signal.getsignal(number) for number in SIGNALS}
    before = {number: old for number, old in before.items() if old not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, hand_on)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _wait(workers: list[subprocess.Popen]) -> list[int]:
    """Waits for all of them; kills those that are not through `GRACE` seconds after the first has ended well or any
    other has failed.

    Returns:
        The ranks of those that were seen to have failed first; none if the first process ended well.
    """
    failed: list[int] = []
    deadline = None
    while True:
        codes = [worker.poll() for worker in workers]  # None: at work
        failed = failed or [rank for rank, code in enumerate(codes) if code]
        if None not in codes:
            return failed if codes[0] else []
        if deadline is None and (failed or codes[0] == 0):
            deadline = time.monotonic() + GRACE
        if deadline is not None and time.monotonic() > deadline:
            _kill(workers)
        time.sleep(LOOK_EVERY)


def _show(rank: int, code: int, said: IO[bytes]) -> None:
    """Prints how a process ended that was the first to fail, and what it said; to be stopped in order is no failure."""
    if code in [128 + number for number in SIGNALS]:
        return
    said.seek(0)
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else "ended first"
    print(f"process {rank} {how}\n{said.read().decode(errors='replace').strip()}".strip(), file=sys.stderr)


def _kill(workers: list[subprocess.Popen]) -> None:
    for worker in workers:
        if worker.poll() is None:
            worker.kill()
            worker.wait()


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
