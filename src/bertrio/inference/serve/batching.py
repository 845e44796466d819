"""Dynamic batching: concurrent requests are joined into batches for a single prediction thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any

from fastapi import HTTPException

from bertrio.inference.predictor import Prediction, Row
from bertrio.inference.serve.limits import Limits
from bertrio.inference.serve.metrics import Metrics


@dataclass(frozen=True, eq=False)
class Waiting:
    """A request in the queue; `arrived` is the event loop's time in seconds."""

    task: str
    rows: list[Row]
    arrived: float
    predictions: asyncio.Future[Sequence[Prediction]]


class Batcher:
    """Predict the rows of concurrent requests in batches, in one thread, the oldest request's task first.

    A batch holds whole requests for one task: the oldest, and others up to `limits.max_batch` rows. It starts once its
    oldest request has waited for `limits.max_wait`. If a batch fails, its requests are predicted one by one, so that
    one bad request does not fail the others. A batcher belongs to one event loop. Use it as an asynchronous context
    manager: on exit it accepts no more requests and finishes those in the queue.

    Args:
        predict: `(task, rows) -> predictions`, one for each row, in order. Called by one thread only.
        limits: sizes of batches and of the queue.
        metrics: metrics that count batches.
    """

    def __init__(
        self, predict: Callable[[str, list[Row]], Sequence[Prediction]], limits: Limits, metrics: Metrics
    ) -> None:
        self._predict, self._limits, self._metrics = predict, limits, metrics
        self._queue: list[Waiting] = []  # in order of arrival
        self._changed = asyncio.Event()  # a request arrived, or the batcher stops
        self.running = False  # whether requests are accepted

    async def __aenter__(self) -> Batcher:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="predict")
        self.running = True
        self._worker = asyncio.create_task(self._work())
        return self

    async def __aexit__(self, *exception: Any) -> None:
        self.running = False
        self._changed.set()
        await self._worker
        self._thread.shutdown()

    @property
    def waiting(self) -> int:
        """Number of rows in the queue, without those being predicted."""
        return sum(len(request.rows) for request in self._queue)

    async def predict(self, task: str, rows: list[Row]) -> Sequence[Prediction]:
        """Return the predictions of one request.

        Raises:
            HTTPException: if the queue is full, or the batcher is not running.
            Exception: of the prediction, if it fails.
        """
        if not self.running or (self._queue and self.waiting + len(rows) > self._limits.queue):
            reason = f"{self.waiting} rows are waiting" if self.running else "it is starting or stopping"
            raise HTTPException(503, f"server: {reason}; try again in a second", {"Retry-After": "1"})
        loop = asyncio.get_running_loop()
        request = Waiting(task, rows, loop.time(), loop.create_future())
        self._queue.append(request)
        self._changed.set()
        return await request.predictions

    async def _work(self) -> None:
        """Predict batch after batch, until the batcher stops and no request waits."""
        loop = asyncio.get_running_loop()
        while self._queue or self.running:
            if not self._queue:
                self._changed.clear()
                await self._changed.wait()
                continue
            oldest = self._queue[0]
            await asyncio.sleep(oldest.arrived + self._limits.max_wait - loop.time())  # others may join it
            same_task = [request for request in self._queue if request.task == oldest.task]
            ends = accumulate(len(request.rows) for request in same_task)
            batch = [oldest, *[request for request, end in zip(same_task, ends) if end <= self._limits.max_batch][1:]]
            self._queue = [request for request in self._queue if request not in batch]
            await self._predict_batch(batch)

    async def _predict_batch(self, batch: list[Waiting]) -> None:
        """Predict a batch; if that fails, its requests one by one."""
        task, rows, began = batch[0].task, [row for request in batch for row in request.rows], time.perf_counter()
        try:
            predictions = await asyncio.get_running_loop().run_in_executor(self._thread, self._predict, task, rows)
        except Exception as error:
            if len(batch) > 1:
                for request in batch:
                    await self._predict_batch([request])
            elif not batch[0].predictions.cancelled():  # the client may have left
                batch[0].predictions.set_exception(error)
            return
        self._metrics.batch_rows.labels(task).observe(len(rows))
        self._metrics.batch_seconds.labels(task).observe(time.perf_counter() - began)
        remaining = iter(predictions)
        for request in batch:
            request_predictions = list(islice(remaining, len(request.rows)))
            if not request.predictions.cancelled():
                request.predictions.set_result(request_predictions)
