"""Limits of connections: how many there are, and how long each may take to ask for something."""

from __future__ import annotations

import asyncio
import resource
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0  # for the line and the headers of a request, from the last response on
CONNECTIONS = 1000  # at most
SPARE_FILES = 100  # open files other than connections


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
