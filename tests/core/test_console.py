"""What is told of the work never ends the work."""

import os
import subprocess
import sys

import pytest

# Tells something before and after nobody can read it any more, a bar being drawn where that is a terminal.
TELL = """
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
def test_who_cannot_be_told_stops_nothing(where):
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", TELL, where], env=environment, capture_output=True)
    assert done.returncode == 7, done.stderr
