"""Run a stage script, count events in it, and trigger an action at one of them.

    python tests/stopped_stage.py COUNTS ACTION EVENT NUMBER stages/finetune.py --member base

COUNTS is a JSON file that gets the count of each event, and the seconds since the start of the script. ACTION runs at
the NUMBERth EVENT: `kill` (-9), `term`, `full` (no file can grow any more: a full disk), `memory` (no more can be
mapped), `fail` (a UserError), or `none`. Of several processes, the one with rank ACTS (environment) acts; `term` and
`end` (-9) go to their launcher, and `freeze` stops the process and sends `term` twice.
This script patches the code under test, which has no hooks for it. Events:

    pass      after a backward pass, before the update
    update    after an update of the weights, before the rest of the step
    sync      before a file or folder of a checkpoint is synced: a checkpoint half on disk
    rename    before a checkpoint is renamed or removed: all of it is on disk
    renamed   just after that
    scored    after an epoch is scored
    output    before an output of the stage is renamed into place
    moment    any time: NUMBER seconds after the start of the script
"""

from __future__ import annotations

import json
import os
import resource
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any


def mapped() -> int:
    """Return the bytes of memory that this process has mapped."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def fail() -> None:
    from bertrio.core.errors import UserError

    raise UserError(f"process {os.environ['RANK']} has had enough")


def freeze() -> None:
    twice = "kill -TERM $LAUNCHER; sleep 1; kill -TERM $LAUNCHER"
    subprocess.Popen(["sh", "-c", twice], start_new_session=True, cwd="/")
    os.kill(os.getpid(), signal.SIGSTOP)


ACTIONS: dict[str, Callable[[], None]] = {
    "none": lambda: None,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "term": lambda: os.kill(int(os.environ["LAUNCHER"]), signal.SIGTERM),
    "end": lambda: os.kill(int(os.environ["LAUNCHER"]), signal.SIGKILL),
    "fail": fail,
    "freeze": freeze,
    "memory": lambda: resource.setrlimit(resource.RLIMIT_AS, (mapped(), resource.RLIM_INFINITY)),
    "full": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY)),
}
Event = str | None | Callable[..., str | None]
replace = os.replace  # the function before it is patched


class Stage:
    """Event counter of one run."""

    def __init__(self, counts_file: str, action: str, event: str, number: float) -> None:
        self._file, self._action, self._wanted = Path(counts_file), ACTIONS[action], (event, number)
        self._counts: Counter[str] = Counter()
        self._checkpoints = str(Path(os.environ["BERTRIO_CHECKPOINTS"]).resolve())

    def happens(self, event: str | None) -> None:
        """Count an event, and act if it is the wanted one."""
        if event is None:
            return
        self._counts[event] += 1
        if (event, self._counts[event]) == self._wanted:
            self.write()
            self._action()

    def begin(self) -> None:
        """Start the clock."""
        self._began = time.monotonic()
        if self._wanted[0] == "moment":
            threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        time.sleep(self._wanted[1])
        self.write()
        self._action()

    def write(self) -> None:
        """Lift the limit on file sizes and write the counts so far."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        temporary = self._file.with_suffix(f".{os.getpid()}")  # processes and the test use the file at the same time
        temporary.write_text(json.dumps({**self._counts, "seconds": time.monotonic() - self._began}))
        replace(temporary, self._file)

    def watch(self, owner: Any, name: str, before: Event = None, after: Event = None) -> None:
        """Patch a function to count events before and after each call; an event may be a function of the arguments."""
        inner = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            self.happens(before(*args) if callable(before) else before)
            result = inner(*args, **kwargs)
            self.happens(after(*args) if callable(after) else after)
            return result

        setattr(owner, name, watched)

    def of_checkpoint(self, path: Any) -> bool:
        """Return True if a path, or an open file, is a checkpoint or inside one."""
        path = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else str(path)
        return path.startswith(self._checkpoints) and "step-" in path

    def of_output(self, path: Any) -> str | None:
        """Return the event of a rename outside the checkpoints."""
        return None if str(path).startswith(self._checkpoints) else "output"


def main(counts_file: str, action: str, event: str, number: str, script: str, *arguments: str) -> None:
    import torch

    import bertrio.evaluation.metrics as metrics  # before modules that import functions from it

    single_process, acts = "RANK" not in os.environ, os.environ["ACTS"]
    os.environ.setdefault("LAUNCHER", str(os.getpid()))
    stage = Stage(counts_file, action if os.environ.get("RANK", acts) == acts else "none", event, float(number))
    stage.watch(torch.Tensor, "backward", after="pass")
    stage.watch(torch.optim.AdamW, "step", after="update")
    stage.watch(metrics, "evaluate_predictions", after="scored")
    os.fsync = lambda file: None  # a kill is no power cut: writes survive without syncing
    stage.watch(os, "fsync", before=lambda file: "sync" if stage.of_checkpoint(file) else None)
    for name in ("replace", "rename"):
        stage.watch(
            os,
            name,
            before=lambda _, target: "rename" if stage.of_checkpoint(target) else stage.of_output(target),
            after=lambda _, target: "renamed" if stage.of_checkpoint(target) else None,
        )
    sys.argv = [script, *arguments]
    stage.begin()
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        stage.write() if single_process else None


if __name__ == "__main__":
    main(*sys.argv[1:])
