"""Load a model and serve it."""

from __future__ import annotations

import logging
import socket

import uvicorn
from fastapi import FastAPI

from bertrio.core.console import say
from bertrio.core.errors import UserError
from bertrio.inference.predictor import Predictor
from bertrio.inference.serve.app import build_app
from bertrio.inference.serve.schemas import Limits

STOP_WITHIN = 30  # seconds for open requests when the server is told to stop


class Server(uvicorn.Server):
    """Uvicorn on a bound socket, whose address it prints once it listens."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and sockets:
            host, port = sockets[0].getsockname()[:2]
            say(f"serving on http://{f'[{host}]' if ':' in host else host}:{port}; Ctrl-C stops")


def serve(model: str, host: str, port: int, device: str, precision: str, limits: Limits) -> None:
    """Load a model and answer requests until SIGTERM or Ctrl-C; requests that were taken are answered first.

    Args:
        model: a run's models folder, a member's folder, or models/ensemble.
        host: name or address to listen on.
        port: port to listen on; 0 takes a free one.
        device: as in `Predictor.load`.
        precision: as in `Predictor.load`.
        limits: limits of requests and batches.

    Raises:
        UserError: if there is no such model or device, or the port is not available.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with bind(host, port) as bound:  # before the model is loaded, which takes longer
        half = -(-limits.max_batch // 2)  # a batch, sorted by length, in two passes: a quarter less time on a CPU
        predictor = Predictor.load(model, device=device, precision=precision, batch_size=half)
        server_for(build_app(predictor, limits)).run(sockets=[bound])


def server_for(app: FastAPI) -> Server:
    """Return the server for `app`, to be run with a bound socket."""
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


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound but does not listen: clients are turned away until the model is ready.

    Raises:
        UserError: if there is no such host here, or the port is taken or not allowed.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except (OSError, UnicodeError) as error:
        raise UserError(
            f"--host {host} --port {port}: can't be listened on ({error}); choose another port, or 0 for a free one; "
            "host 127.0.0.1 is this machine alone"
        ) from error
    return bound
