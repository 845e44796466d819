"""Outermost layer of the server: limits the size of requests, and counts them."""

from __future__ import annotations

import time

import anyio
from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertrio.inference.serve.metrics import Metrics

BODY_SECONDS = 10.0  # for the whole body


class Edge:
    """ASGI middleware that stops reading a request's body at `max_bytes`, and counts and times requests."""

    def __init__(self, app: ASGIApp, metrics: Metrics, max_bytes: int) -> None:
        self._app, self._metrics, self._max_bytes = app, metrics, max_bytes

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

        try:
            await self._app(scope, receive_within_limits, send_and_note_status)
        finally:
            route = getattr(scope.get("route"), "path", "other")  # unknown paths share one label
            self._metrics.requests.labels(route, str(status)).inc()
            self._metrics.request_seconds.labels(route).observe(time.perf_counter() - began)
