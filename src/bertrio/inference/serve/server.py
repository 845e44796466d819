"""From a model's folder to a server that listens."""

from __future__ import annotations

import logging
import socket

import uvicorn
from fastapi import FastAPI

from bertrio.core.console import say
from bertrio.core.errors import UserError
from bertrio.inference.predictor import Predictor
from bertrio.inference.serve.app import build_app
from bertrio.inference.serve.requests import Limits

STOP_WITHIN = 30  # seconds for requests that are being answered when the server is told to stop


class Server(uvicorn.Server):
    """Uvicorn, on a socket that is bound already; says where once it listens."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            say(f"serving on {address(sockets[0])}; Ctrl-C stops")


def serve(model: str, host: str, port: int, device: str, precision: str, limits: Limits) -> None:
    """Loads a model and answers requests until SIGTERM or Ctrl-C; requests that were taken are answered first.

    Args:
        model: a run's models folder, a member's folder, or models/ensemble.
        host: name or address to listen on.
        port: 0 takes a free one.
        device: as `Predictor.load`.
        precision: likewise.
        limits: what a request may ask for, and how requests are joined.

    Raises:
        UserError: if there is no such model or device, or the port can't be had.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with bound(host, port) as own:  # before the model is loaded, which takes longer than to say that the port is taken
        half = -(-limits.max_batch // 2)  # a batch, sorted by length, in two passes: a quarter less time on a CPU
        predictor = Predictor.load(model, device=device, precision=precision, batch_size=half)
        server_of(build_app(predictor, limits)).run(sockets=[own])


def server_of(app: FastAPI) -> Server:
    """The server for `app`, to be run with a bound socket."""
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,  # /metrics counts
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=STOP_WITHIN,
    )
    return Server(config)


def bound(host: str, port: int) -> socket.socket:
    """A socket that is bound but does not listen: clients are turned away until the model is ready.

    Raises:
        UserError: if there is no such host here, or the port is taken or not allowed.
    """
    try:
        family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        own = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UserError(f"--host {host}: can't be listened on ({error}); 127.0.0.1 is this machine alone") from error
    try:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        own.bind(place)
    except OSError as error:
        own.close()
        raise UserError(
            f"--host {host} --port {port}: can't be listened on ({error.strerror or error}); choose another port, or "
            "0 for a free one"
        ) from error
    return own


def address(own: socket.socket) -> str:
    """The URL of a bound socket."""
    host, port = own.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
