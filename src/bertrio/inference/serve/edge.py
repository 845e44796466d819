"""The outermost layer of the server: headers for every response, a count of it, and what nobody expected."""

from __future__ import annotations

import logging
import time
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertrio.inference.serve.metrics import Metrics

log = logging.getLogger("bertrio.inference.serve")

ROUTES = {"/", "/page.css", "/page.js", "/tasks", "/health", "/metrics", "/openapi.json"}
GONE = 499  # what nginx counts for clients that did not wait; no response has it
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Edge:
    """An ASGI layer around `app`.

    An exception that comes out of it is a bug: it is logged, and the client gets a bare 500. Texts of clients are never
    logged.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # start and end of the server
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), GONE

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        try:
            await self._app(scope, receive, send_on)
        except ClientDisconnect:
            pass
        except Exception:
            log.exception("%s %s failed", scope["method"], route_of(scope))
            if status == GONE:  # else half a response is out, and all that is left is to break off
                await JSONResponse({"error": "an error of the server"}, 500)(scope, receive, send_on)
        finally:
            self._metrics.request(route_of(scope), status, time.perf_counter() - began)


def route_of(scope: dict[str, Any]) -> str:
    """The path of a request as a metric's label: of those that there are, or `other`, however many are tried."""
    path = scope["path"]
    if path.startswith("/predict/"):
        return "/predict/{task}"
    return path if path in ROUTES else "other"
