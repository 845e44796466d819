"""Metrics for Prometheus: counts and times of requests, sizes and times of batches, and the number of waiting rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Metrics:
    """The metrics of one server, in a registry of their own."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)  # memory and processor time
        timed = partial(Histogram, buckets=SECONDS, registry=registry)
        self._requests = Counter("bertrio_requests", "Requests.", ["route", "status"], registry=registry)
        self._seconds = timed("bertrio_request_seconds", "Time from a request to its answer.", ["route"])
        self._rows = Histogram(
            "bertrio_batch_rows", "Rows predicted together.", ["task"], buckets=ROWS, registry=registry
        )
        self._batch_seconds = timed("bertrio_batch_seconds", "Time that a batch takes.", ["task"])
        self._waiting = Gauge("bertrio_waiting_rows", "Rows that wait.", registry=registry)

    def watch_waiting(self, waiting: Callable[[], int]) -> None:
        """Set the function that returns the number of waiting rows; it is called whenever the metrics are read."""
        self._waiting.set_function(waiting)

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def batch(self, task: str, rows: int, seconds: float) -> None:
        """Count a batch."""
        self._rows.labels(task).observe(rows)
        self._batch_seconds.labels(task).observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)
