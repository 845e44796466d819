"""Running a stage: exit codes, messages and the timing file."""

from __future__ import annotations

import errno
import re
import resource
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

from bertrio.core.console import console, say
from bertrio.core.errors import UserError
from bertrio.core.files import write_json
from bertrio.core.interruption import AT_ONCE, Interrupted, stoppable

DISK_ADVICE = {
    errno.ENOENT: "it is missing, or was taken away meanwhile; dvc repro brings back what stages made",
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room there",
    errno.EFBIG: "see ulimit -f",
    errno.EACCES: "see who may write there",
    errno.EPERM: "see who may write there",
    errno.EROFS: "see how it is mounted",
}
MEMORY_ADVICE = (
    "take smaller batches (tasks.NAME.batch_size, finetune.eval_batch_size), or the same in pieces "
    "(finetune.accumulate: 2), or less of each (encoder.checkpointing: true, encoder.max_length)"
)


def run_stage(name: str, body: Callable[[], dict[str, Any] | None], timing: bool = True) -> None:
    """Run a stage and end the process: 0 if all went well, 2 for a message to the user, 130 for Ctrl-C, 143 for
    SIGTERM, 129 for a terminal that is gone. When DVC runs it and dies, the stage ends within seconds.

    Args:
        name: of the stage, as in its timing file metrics/timing/<name>.json.
        body: does the work and may return more to report there, such as rows per second.
        timing: write the timing file: seconds, peak memory, and what `body` returned. It stands apart from the
            results, which are the same bytes every time.
    """
    began = time.perf_counter()
    try:
        with stoppable():
            facts = body() or {}
            if timing:
                cost = {"seconds": time.perf_counter() - began, "peak_memory_mb": peak_memory_mb()}
                write_json(f"metrics/timing/{name}.json", {**cost, **facts}, digits=1)
    except Interrupted as stopped:
        say(f"{name}: {stopped}")
        sys.exit(stopped.code)
    except KeyboardInterrupt:
        say(f"{name}: {AT_ONCE}")
        sys.exit(130)
    except Exception as error:
        message = explained(error)
        if message is None:
            raise
        _fail(name, message)


def _fail(name: str, message: str) -> NoReturn:
    console.print(f"[bold red]error[/bold red] in {name}:", end=" ")
    say(message)
    sys.exit(2)


def explained(error: Exception) -> str | None:
    """Return the message for an error that is no fault of the code; None for all others, which keep their traceback."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return _with_advice(f"{place}{error.strerror or error}", DISK_ADVICE.get(error.errno or 0))
    number = re.search(r"\(os error (\d+)\)", str(error))  # libraries in Rust (safetensors, tokenizers) put it so
    if number:
        return _with_advice(str(error), DISK_ADVICE.get(int(number[1])))
    if _is_out_of_memory(error):
        return _with_advice(f"out of memory: {error}".splitlines()[0].removesuffix(": "), MEMORY_ADVICE)
    return None


def _with_advice(message: str, advice: str | None) -> str:
    return f"{message}; {advice}" if advice else message


def _is_out_of_memory(error: Exception) -> bool:
    """MemoryError is Python's and numpy's; torch has its own for CUDA, and on the CPU and Apple's GPUs only a text."""
    texts = ("out of memory", "not enough memory", "can't allocate memory")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in texts)
    )


def peak_memory_mb() -> float:
    """Return the peak memory of this process in MB: on the GPU if one was used, else resident."""
    torch = sys.modules.get("torch")  # a stage that never imported it need not wait for it here
    if torch is not None and torch.cuda.is_available() and torch.cuda.max_memory_allocated() > 0:
        return torch.cuda.max_memory_allocated() / 2**20
    unit = 2**20 if sys.platform == "darwin" else 2**10  # macOS counts bytes, Linux KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
