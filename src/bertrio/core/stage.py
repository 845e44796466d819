"""Running a stage: exit codes, messages and the timing file."""

from __future__ import annotations

import errno
import hashlib
import re
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bertrio.core.console import console, say
from bertrio.core.errors import UserError
from bertrio.core.files import write_json
from bertrio.core.interruption import AT_ONCE, stoppable
from bertrio.core.streams import standard_streams

DISK_ADVICE = {
    errno.ENOENT: "it is missing, or was taken away meanwhile; dvc repro brings back what stages made",
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "make room there"),
}
LIBRARIES = {("dvc.exceptions", "DvcException"), ("scmrepo.exceptions", "SCMError")}  # whose messages are for users
OUT_OF_MEMORY = (  # of torch on CUDA, Apple's GPUs and CPUs, of Linux, oneDNN and C++
    "out of memory", "not enough memory", "allocate memory", "failed to map segment", "could not create a primitive",
    "bad_alloc",
)  # fmt: skip
MEMORY_ADVICE = (
    "take smaller batches (tasks.NAME.batch_size, finetune.eval_batch_size), or the same in pieces "
    "(finetune.accumulate: 2), or less of each (encoder.checkpointing: true, encoder.max_length)"
)


def run_stage(name: str, body: Callable[[], dict[str, Any] | None], timing: bool = True) -> None:
    """Run a stage and set the exit code: 0 on success, 2 for a message to the user, 130 for Ctrl-C, 143 for SIGTERM,
    129 for a closed terminal. When DVC runs the stage and dies, the stage ends within seconds.

    Args:
        name: name of the stage, as in its timing file metrics/timing/<name>.json.
        body: function that does the work; it may return more figures for the timing file, such as rows per second.
        timing: write the timing file: seconds, peak memory and the result of `body`. Timings have a file of their
            own because the bytes of all other results are reproducible.
    """
    began = time.perf_counter()
    try:
        with standard_streams(), stoppable():
            facts = body() or {}
            if timing:
                facts = {**cost_since(began), **facts, "session": session()}
                write_json(f"metrics/timing/{name}.json", facts, digits=1)
    except KeyboardInterrupt as stopped:
        say(f"{name}: {str(stopped) or AT_ONCE}")
        sys.exit(getattr(stopped, "code", 130))
    except Exception as error:
        message = user_message(error)
        if message is None:
            raise
        console.print(f"[bold red]error[/bold red] in {name}:", end=" ")
        say(message)
        sys.exit(2)


def user_message(error: Exception) -> str | None:
    """Return the message for an error that is not a bug; None for all others, which keep their traceback."""
    cause = error.__cause__ or error if isinstance(error, UserError) else error
    if isinstance(cause, MemoryError) or any(part in str(cause) for part in OUT_OF_MEMORY):
        return f"out of memory: {cause}".splitlines()[0].removesuffix(": ") + f"; {MEMORY_ADVICE}"
    if isinstance(error, UserError):
        return str(error)
    text, code = str(error), 0
    if isinstance(error, OSError):
        text, code = error.strerror or text, error.errno or 0
    elif number := re.search(r"\(os error (\d+)\)", text):  # format of Rust libraries (safetensors, tokenizers)
        code = int(number[1])
    elif not LIBRARIES.intersection((kind.__module__, kind.__name__) for kind in type(error).__mro__):
        return None
    if path := getattr(error, "filename", None) or getattr(error, "written", None):
        text = f"{path}: {text}"
    return f"{text}; {DISK_ADVICE[code]}" if code in DISK_ADVICE else text


def cost_since(began: float) -> dict[str, float]:
    """Return the seconds since `began`, a value of `time.perf_counter`, and the peak memory in MB."""
    return {"seconds": time.perf_counter() - began, "peak_memory_mb": peak_memory_mb()}


def session() -> str | None:
    """Return a digest of this boot of the machine: timings with the same one can be compared. None but on Linux."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return hashlib.sha256(boot.read_bytes()).hexdigest()[:8] if boot.exists() else None


def peak_memory_mb() -> float:
    """Return the peak memory of this process in MB: on the GPU if one was used, else resident."""
    torch = sys.modules.get("torch")  # not imported here: it is slow
    if torch is not None and torch.cuda.is_available() and torch.cuda.max_memory_allocated() > 0:
        return torch.cuda.max_memory_allocated() / 2**20
    unit = 2**20 if sys.platform == "darwin" else 2**10  # macOS counts bytes, Linux KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
