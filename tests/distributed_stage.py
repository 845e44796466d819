"""Runs a stage script as Python does, and does something to one of its processes after one of its updates.

    python tests/distributed_stage.py ACTION RANK NUMBER stages/finetune.py --member base

ACTION is done by process RANK after its NUMBERth update: `kill` (-9, itself), `stop` (SIGTERM to the launcher), `end`
(-9 to the launcher), `fail` (a message to the user), `freeze` (SIGSTOP, itself, and SIGTERM twice to the launcher), or
`none`. Each process leaves its id in a file pids/<id>.
Production code knows nothing of this: it is patched from here.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any


def act(action: str) -> None:
    from bertrio.core.errors import UserError

    if action == "fail":
        raise UserError(f"process {os.environ['RANK']} has had enough")
    if action == "freeze":
        twice = f"kill -TERM {os.environ['LAUNCHER']}; sleep 1; kill -TERM {os.environ['LAUNCHER']}"
        subprocess.Popen(["sh", "-c", twice], start_new_session=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    elif action != "none":
        number = signal.SIGTERM if action == "stop" else signal.SIGKILL
        os.kill(os.getpid() if action == "kill" else int(os.environ["LAUNCHER"]), number)


def main(action: str, rank: str, number: str, script: str, *arguments: str) -> None:
    import torch

    inner, updates = torch.optim.AdamW.step, iter(range(1, 1 << 30))

    def step(*args: Any, **kwargs: Any) -> Any:
        result = inner(*args, **kwargs)
        if next(updates) == int(number) and os.environ.get("RANK") == rank:
            act(action)
        return result

    torch.optim.AdamW.step = step
    os.environ.setdefault("LAUNCHER", str(os.getpid()))
    Path("pids").mkdir(exist_ok=True)
    Path(f"pids/{os.getpid()}").touch()
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
