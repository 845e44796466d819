"""Load a model and serve it."""

from __future__ import annotations

import gc
import ipaddress
import os
import socket
from dataclasses import replace
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from bertrio.core.console import say
from bertrio.core.errors import UserError
from bertrio.inference.predictor import Predictor
from bertrio.inference.serve.app import build_app
from bertrio.inference.serve.limits import Limits, limited_protocol, most_connections

LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
WAITING = 4096  # connections that wait to be accepted
STOP_WITHIN = 30  # seconds for open requests after a signal to stop
KERNEL_CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")  # of oneDNN and of torch's layer above it
KERNELS = "64"  # kept in each; by default 1024, one for every shape of a batch: hundreds of MB for 2 % of the time
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def serve(model: str, host: str, port: int, device: str, precision: str, limits: Limits) -> None:
    """Load a model and serve it until SIGTERM or Ctrl-C; open requests are finished first.

    Args:
        model: a run's models folder, a member's folder, or models/ensemble.
        host: name or address to listen on.
        port: port to listen on; 0 takes a free one.
        device: as in `Predictor.load`.
        precision: as in `Predictor.load`.
        limits: limits of requests and batches. On loopback, requests may call the server by its own names only, and
            by those of `limits.hosts`.

    Raises:
        UserError: if there is no such model or device, or the port is not available.
    """
    with bind(host, port) as bound:  # fails early: loading the model takes longer
        half = -(-limits.max_batch // 2)  # two passes sorted by length take a quarter less time on a CPU
        limit_kernel_caches()
        predictor = Predictor.load(model, device=device, precision=precision, batch_size=half)
        if ipaddress.ip_address(bound.getsockname()[0]).is_loopback:
            limits = replace(limits, hosts=tuple(dict.fromkeys((*LOCAL_HOSTS, host.lower(), *limits.hosts))))
        say(f"serving on http://{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}; Ctrl-C stops")
        server = server_for(build_app(predictor, limits, Path(model).resolve().name))
        gc.freeze()  # else each full collection walks through all that libraries made, for half a second
        server.run(sockets=[bound])


def limit_kernel_caches() -> None:
    """Keep memory flat under batches of all shapes; works before the first pass of a model in this process."""
    for variable in KERNEL_CACHES:
        os.environ.setdefault(variable, KERNELS)


class Server(uvicorn.Server):
    """A server that accepts few connections at a time, while many wait to be accepted.

    asyncio accepts as many at a time as may wait, up to four times before it has closed those that are too many.
    """

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for bound in sockets or ():
            bound.listen(WAITING)


def server_for(app: FastAPI) -> uvicorn.Server:
    """Return the server for `app`, to be run with a bound socket."""
    connections = most_connections()
    config = uvicorn.Config(
        app,
        http=limited_protocol(connections),
        backlog=max(1, connections // 4),
        log_config=None,
        log_level="error",  # not each invalid request
        access_log=False,  # /metrics counts
        server_header=False,
        headers=list(HEADERS.items()),
        ws="none",
        timeout_graceful_shutdown=STOP_WITHIN,
    )
    return Server(config)


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; clients that connect before the model is ready wait in its backlog.

    Raises:
        UserError: if the host is not local, or the port is taken or not allowed.
    """
    try:
        bound = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections inherit it; asyncio sets it for some
        return bound
    except (OSError, OverflowError) as error:
        raise UserError(
            f"--host {host} --port {port}: can't be listened on ({error}); choose another port, or 0 for a free one; "
            "host 127.0.0.1 is this machine alone"
        ) from error
