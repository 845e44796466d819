"""What all stage scripts share: one way to run, to fail and to tell what it cost."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from typing import Any

from bertrio.console import console, say
from bertrio.errors import UserError
from bertrio.files import write_json


def run_stage(name: str, body: Callable[[], dict[str, Any] | None], timing: bool = True) -> None:
    """Runs a stage and ends the process: 0 if all went well, 2 for a message to the user, 130 for Ctrl-C.

    Args:
        name: of the stage, as in its timing file metrics/timing/<name>.json.
        body: does the work and may return more to report there, such as rows per second.
        timing: write the timing file: seconds, peak memory, and what `body` returned. It stands apart from the
            results, which are the same bytes every time.
    """
    began = time.perf_counter()
    try:
        facts = body() or {}
    except UserError as error:
        console.print(f"[bold red]error[/bold red] in {name}:", end=" ")
        say(str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        say(f"{name}: stopped; nothing of this stage was kept")
        sys.exit(130)
    if timing:
        seconds = time.perf_counter() - began
        write_json(
            f"metrics/timing/{name}.json", {"seconds": seconds, "peak_memory_mb": peak_memory_mb(), **facts}, digits=1
        )


def peak_memory_mb() -> float:
    """The most memory that this process has held so far, in MB: on the GPU where one was used, else resident."""
    torch = sys.modules.get("torch")  # a stage that never imported it need not wait for it here
    if torch is not None and torch.cuda.is_available() and torch.cuda.max_memory_allocated() > 0:
        return torch.cuda.max_memory_allocated() / 2**20
    unit = 2**20 if sys.platform == "darwin" else 2**10  # macOS counts bytes, Linux KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
