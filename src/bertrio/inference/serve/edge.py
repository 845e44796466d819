"""Outermost layer of the server: limits the size of requests and the names that call it, and counts requests."""

from __future__ import annotations

import re
import time

import anyio
from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertrio.inference.serve.metrics import Metrics
from bertrio.inference.serve.schemas import Limits

BODY_SECONDS = 10.0  # for the whole body


class Edge:
    """ASGI middleware that stops reading a request's body at `limits.max_bytes`, and counts and times requests.

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
