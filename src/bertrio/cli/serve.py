"""Command that serves a model over HTTP: serve."""

from __future__ import annotations

import argparse
from typing import Any

from bertrio.cli.options import add_model, positive
from bertrio.core.errors import need_packages


def add_serve_commands(commands: Any) -> None:
    """Add the command to the parser's `commands`."""
    serve = commands.add_parser("serve", _serve)
    add_model(serve)
    host = "address to listen on (default: %(default)s, local only; 0.0.0.0 listens on all interfaces)"
    serve.add_argument("--host", default="127.0.0.1", help=host)
    serve.add_argument("--port", type=int, default=8000, help="0 takes a free one (default: %(default)s)")
    for name, default, text in (
        ("--max-batch", 64, "rows that are predicted together"),
        ("--max-rows", 256, "rows of one request"),
        ("--max-bytes", 2_000_000, "bytes of one request's body"),
        ("--queue", 1024, "rows in the queue; beyond it, requests get status 503"),
    ):
        serve.add_argument(name, type=positive, default=default, metavar="N", help=f"{text} (default: %(default)s)")
    wait = "milliseconds that a row waits for others to join it (default: %(default)s)"
    serve.add_argument("--max-wait-ms", type=milliseconds, default=5.0, metavar="MS", help=wait)
    name = "also answer requests that call the server by this name, such as a proxy's; can be repeated"
    serve.add_argument("--allow-host", metavar="NAME", type=str.lower, action="append", default=[], help=name)


def milliseconds(text: str) -> float:
    """Parse a finite number of milliseconds, at least 0."""
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected milliseconds, 0 or more")
    return value


def _serve(args: argparse.Namespace) -> None:
    """Serve predictions over HTTP, with a page to try the model."""
    need_packages("serve", ["fastapi", "uvicorn", "prometheus_client"], "serve")
    from bertrio.inference.serve.limits import Limits
    from bertrio.inference.serve.server import serve

    hosts = tuple(args.allow_host)
    limits = Limits(args.max_batch, args.max_wait_ms / 1000, args.max_rows, args.max_bytes, args.queue, hosts)
    serve(args.model, args.host, args.port, args.device, args.precision, limits)
