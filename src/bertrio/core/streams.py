"""Standard streams that are closed, full or not UTF-8, and text that a terminal can print."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bertrio.core.errors import UserError

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")  # lone surrogates: bytes of names not in UTF-8
CLOSED = {"stdin": (os.O_RDONLY, "r"), "stdout": (os.O_RDONLY, "w"), "stderr": (os.O_WRONLY, "w")}


def printable(text: str) -> str:
    """Return `text` with control characters but tab and newline as escapes, such as `\\x1b`."""
    return CONTROL.sub(lambda match: repr(match[0])[1:-1], text)


def discard(stream: Any) -> None:
    """Discard all further output of a stream. Python flushes once more at exit and would fail there."""
    with open(os.devnull, "w") as devnull:
        os.dup2(devnull.fileno(), stream.fileno())


@contextmanager
def standard_streams() -> Iterator[None]:
    """Open closed standard streams for the block, at whose end all of standard output is written.

    Input that was closed is empty, output fails when it is used, and errors go nowhere. Characters that
    the encoding of standard output lacks become escapes.

    Raises:
        BrokenPipeError: if the reader of standard output has closed it.
        UserError: if standard output can't be written.
    """
    for name, (flags, mode) in CLOSED.items():
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), mode, encoding="utf-8"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        try:
            sys.stderr.flush()
        except OSError:
            discard(sys.stderr)
        try:
            sys.stdout.flush()
        except OSError as error:
            discard(sys.stdout)
            if isinstance(error, BrokenPipeError):
                raise
            raise UserError(f"standard output: can't be written ({error.strerror})") from error
