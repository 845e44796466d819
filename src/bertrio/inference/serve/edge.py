"""Outermost layer of the server: security headers, limits of a request's body, and counts of requests."""

from __future__ import annotations

import time

import anyio
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertrio.inference.serve.metrics import Metrics

BODY_SECONDS = 10.0  # a client that stalls does not hold its connection for longer
GONE = 499  # nginx's status for clients that disconnect; no response has it
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Edge:
    """ASGI middleware that reads each request's body within limits before `app` sees the request."""

    def __init__(self, app: ASGIApp, metrics: Metrics, max_bytes: int) -> None:
        self._app, self._metrics, self._max_bytes = app, metrics, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # start and end of the server
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), GONE

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        try:
            await self._handle(scope, receive, send_with_headers)
        except ClientDisconnect:
            pass
        except Exception:
            status = 500
            raise
        finally:
            route = getattr(scope.get("route"), "path", "other")  # few names, whatever paths clients try
            self._metrics.request(route, status, time.perf_counter() - began)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = bytearray()
        try:
            with anyio.fail_after(BODY_SECONDS):
                async for chunk in Request(scope, receive).stream():
                    body += chunk
                    if len(body) > self._max_bytes:
                        error = f"body: found more than {self._max_bytes} bytes, expected at most {self._max_bytes}"
                        await JSONResponse({"error": f"{error}; send fewer rows at a time"}, 413)(scope, receive, send)
                        return
        except TimeoutError:
            error = f"body: found no end, expected all of it within {BODY_SECONDS:.0f} seconds"
            await JSONResponse({"error": error}, 408, {"Connection": "close"})(scope, receive, send)
            return
        replayed: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> Message:
            return replayed.pop() if replayed else await receive()

        await self._app(scope, replay, send)
