"""Progress messages never end a run."""

import os
import subprocess
import sys

import pytest

# Writes messages and a progress bar before and after the reader of stderr is gone.
SCRIPT = """
import os, pty, sys
where = sys.argv[1]
if where == "full disk":
    other, end = None, os.open("/dev/full", os.O_WRONLY)
else:
    other, end = pty.openpty() if where == "terminal" else os.pipe()
os.dup2(end, 2)
from bertrio.core.console import console, progress, say
assert console.is_terminal == (where == "terminal")
say("one")
with progress("two", total=3) as bar:
    if other is not None:
        os.close(other)
    say("three")
    bar.advance(note="four")
    print("five", file=sys.stderr) if where == "terminal" else None
say("six")
sys.exit(7)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full, and terminals as Linux has them")
@pytest.mark.parametrize("where", ["pipe", "terminal", "full disk"])
def test_unwritable_stderr_stops_nothing(where):
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm", "PATH": ""}
    result = subprocess.run([sys.executable, "-c", SCRIPT, where], env=environment, capture_output=True)
    assert result.returncode == 7, result.stderr
