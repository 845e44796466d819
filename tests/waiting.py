"""Wait for another process or thread."""

import time
from collections.abc import Callable


def wait_until(holds: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait until `holds()` is true; fail if that takes longer than `seconds`."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "took too long"
        time.sleep(0.01)
