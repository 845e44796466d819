"""Runs a stage script as Python does, counts what happens in it, and does something to it where it is told to.

    python tests/stopped_stage.py COUNTS ACTION EVENT NUMBER stages/finetune.py --member base

COUNTS is a JSON file that gets how often each event came, and the seconds since the script has begun. ACTION is done
when EVENT comes for the NUMBERth time: `kill` (-9), `term`, `full` (from then on no file can grow: a full disk),
`memory` (from then on no more can be mapped), `fail` (a message to the user), or `none`. Of several processes, that of
the rank ACTS (environment) acts; `term` and `end` (-9) are for their launcher, and `freeze` stops the process and sends
`term` twice.
Production code knows nothing of this: it is patched from here. Events:

    pass      after a backward pass: a step has begun, nothing is updated
    update    after an update of the weights, before all that follows it in the step
    sync      before a file of a checkpoint, or the names in its folder, are brought to disk: it is half there
    rename    before a checkpoint gets its name, or one that goes loses it: all is on disk
    renamed   just after that
    scored    after an epoch was scored
    output    before an output of the stage gets its name
    moment    any time: NUMBER seconds after the script has begun
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
    """Bytes of memory that this process has mapped."""
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
replace = os.replace  # as it is before a stage's is watched


class Stage:
    """The events of one run."""

    def __init__(self, counts_file: str, action: str, event: str, number: float) -> None:
        self._file, self._action, self._wanted = Path(counts_file), ACTIONS[action], (event, number)
        self._counts: Counter[str] = Counter()
        self._checkpoints = str(Path(os.environ["BERTRIO_CHECKPOINTS"]).resolve())

    def happens(self, event: str | None) -> None:
        """Counts an event, and acts if it is the one that was named."""
        if event is None:
            return
        self._counts[event] += 1
        if (event, self._counts[event]) == self._wanted:
            self.write()
            self._action()

    def begin(self) -> None:
        """Starts the clock."""
        self._began = time.monotonic()
        if self._wanted[0] == "moment":
            threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        time.sleep(self._wanted[1])
        self.write()
        self._action()

    def write(self) -> None:
        """Writes down what happened so far, on a disk with room again."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        whole = self._file.with_suffix(f".{os.getpid()}")  # several processes write, and the test may read meanwhile
        whole.write_text(json.dumps({**self._counts, "seconds": time.monotonic() - self._began}))
        replace(whole, self._file)

    def watch(self, owner: Any, name: str, before: Event = None, after: Event = None) -> None:
        """Lets a function tell that it is called; an event may depend on what it is called with."""
        inner = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            self.happens(before(*args) if callable(before) else before)
            result = inner(*args, **kwargs)
            self.happens(after(*args) if callable(after) else after)
            return result

        setattr(owner, name, watched)

    def of_checkpoint(self, path: Any) -> bool:
        """Whether a path, or an open file, is a checkpoint or in one."""
        path = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else str(path)
        return path.startswith(self._checkpoints) and "step-" in path

    def of_output(self, path: Any) -> str | None:
        """The event of a rename outside the checkpoints."""
        return None if str(path).startswith(self._checkpoints) else "output"


def main(counts_file: str, action: str, event: str, number: str, script: str, *arguments: str) -> None:
    import torch

    import bertrio.evaluation.metrics as metrics  # before those that take functions from it

    alone, acts = "RANK" not in os.environ, os.environ["ACTS"]
    os.environ.setdefault("LAUNCHER", str(os.getpid()))
    stage = Stage(counts_file, action if os.environ.get("RANK", acts) == acts else "none", event, float(number))
    stage.watch(torch.Tensor, "backward", after="pass")
    stage.watch(torch.optim.AdamW, "step", after="update")
    stage.watch(metrics, "evaluate_predictions", after="scored")
    os.fsync = lambda file: None  # a kill is no power cut: what was written is there, synced or not
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
        stage.write() if alone else None


if __name__ == "__main__":
    main(*sys.argv[1:])
