"""Metrics for Prometheus: counts and times of requests, sizes and times of batches, and the number of waiting rows."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Metrics:
    """Metrics of one server, in their own registry."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)  # memory and processor time
        self.requests = Counter("bertrio_requests", "Requests.", ["route", "status"], registry=registry)
        took = "Time from a request to its answer."
        self.request_seconds = Histogram("bertrio_request_seconds", took, ["route"], registry=registry)
        self.batch_rows = Histogram(
            "bertrio_batch_rows", "Rows predicted together.", ["task"], buckets=ROWS, registry=registry
        )
        self.batch_seconds = Histogram("bertrio_batch_seconds", "Time that a batch takes.", ["task"], registry=registry)
        self.waiting_rows = Gauge("bertrio_waiting_rows", "Rows that wait.", registry=registry)
