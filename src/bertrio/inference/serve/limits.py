"""Limits of the server: of rows, of connections, of request bodies, and of the names that call it."""

from __future__ import annotations

import asyncio
import re
import resource
import time
from dataclasses import dataclass
from typing import Any

import anyio
from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from bertrio.inference.serve.metrics import Metrics

HEAD_SECONDS = 10.0  # for the line and the headers of a request, from the last response on
BODY_SECONDS = 10.0  # for the whole body
CONNECTIONS = 1000  # at most
SPARE_FILES = 100  # open files other than connections


@dataclass(frozen=True)
class Limits:
    """Limits of the server.

    Args:
        max_batch: rows in a batch.
        max_wait: seconds that a request waits for others to join its batch.
        max_rows: rows in a request.
        max_bytes: bytes in a request's body.
        queue: rows in the queue.
        hosts: names by which requests may call the server; none allows all.
    """

    max_batch: int = 64
    max_wait: float = 0.005
    max_rows: int = 256
    max_bytes: int = 2_000_000
    queue: int = 1024
    hosts: tuple[str, ...] = ()


def most_connections() -> int:
    """Return how many connections the limit of open files leaves room for, and as many that are too many."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return CONNECTIONS if files == resource.RLIM_INFINITY else max(1, min(CONNECTIONS, (files - SPARE_FILES) // 2))


def limited_protocol(most: int) -> type[H11Protocol]:
    """Return the protocol of connections of one server.

    A connection without a request is closed after `HEAD_SECONDS`, half a request's headers or not. One more than
    `most` takes the place of the one that has been without a request for longest, so that connections that ask for
    nothing keep nobody out.
    """
    idle: dict[LimitedProtocol, asyncio.TimerHandle] = {}  # those without a request, the longest first

    class LimitedProtocol(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._note_idle()
            for longest in list(idle)[: max(0, len(self.connections) - most)]:
                longest.transport.abort()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._note_idle()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._note_idle()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._note_idle()

        def _note_idle(self) -> None:
            if self in self.connections and (self.cycle is None or self.cycle.response_complete):
                if self not in idle:
                    idle[self] = self.loop.call_later(HEAD_SECONDS, self.transport.abort)
            elif self in idle:
                idle.pop(self).cancel()

    return LimitedProtocol


class LimitMiddleware:
    """Stops reading a request's body at `limits.max_bytes`, and counts and times requests.

    Requests that call the server by a name not in `limits.hosts` are refused: by DNS rebinding, a page of another site
    can make its own name lead to this machine.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, limits: Limits) -> None:
        self._app, self._metrics, self._max_bytes, self._hosts = app, metrics, limits.max_bytes, limits.hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # start and end of the server
            await self._app(scope, receive, send)
            return
        began, status, size = time.perf_counter(), 500, 0
        deadline = anyio.current_time() + BODY_SECONDS

        async def receive_within_limits() -> Message:
            nonlocal size
            try:
                with anyio.fail_after(deadline - anyio.current_time()):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(
                    408, f"body: is not complete after {BODY_SECONDS:.0f} seconds", {"Connection": "close"}
                ) from None
            size += len(message.get("body", b""))
            if size > self._max_bytes:
                raise HTTPException(413, f"body: found more than {self._max_bytes} bytes; send fewer rows at a time")
            return message

        async def send_and_note_status(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        host = re.sub(r"\.?(:\d*)?$", "", Headers(scope=scope).get("host", "")).lower()
        try:
            if host and self._hosts and host not in self._hosts:  # browsers always send one
                message = f"host: found {host[:100]!r}, expected {' or '.join(self._hosts)}; allow it with --allow-host"
                await JSONResponse({"error": message}, 421)(scope, receive, send_and_note_status)
                return
            await self._app(scope, receive_within_limits, send_and_note_status)
        finally:
            route = getattr(scope.get("route"), "path", "other")  # unknown paths share one label
            self._metrics.requests.labels(route, str(status)).inc()
            self._metrics.request_seconds.labels(route).observe(time.perf_counter() - began)
