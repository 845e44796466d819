"""Dynamic batching: rows of concurrent requests are joined into batches for the one thread that predicts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from bertrio.inference.predictor import Prediction, Row


class Unavailable(Exception):
    """No rows are taken: the queue is full, or the server starts or stops."""


@dataclass(frozen=True, eq=False)
class Waiting:
    """A row that waits for its prediction; `arrived` is the event loop's time in seconds."""

    task: str
    row: Row
    arrived: float
    answer: asyncio.Future[Prediction]


class Batcher:
    """Predict the rows of concurrent requests in batches, in one thread, the oldest row's task first.

    A batch holds rows of one task. It starts as soon as it is full or its oldest row has waited for `max_wait`. If a
    batch fails, its rows are predicted one by one, so that only the requests of failing rows fail. Belongs to one
    event loop. Use it as an asynchronous context manager: on exit it takes no more rows and finishes those that wait.

    Args:
        predict: `(task, rows) -> predictions`, one a row, in order. Called by one thread only.
        max_batch: largest number of rows of a batch.
        max_wait: seconds that a row waits for others, from 0.
        room: largest number of rows that wait.
        on_batch: called with task, number of rows and seconds of each batch.
    """

    def __init__(
        self,
        predict: Callable[[str, list[Row]], Sequence[Prediction]],
        max_batch: int,
        max_wait: float,
        room: int,
        on_batch: Callable[[str, int, float], None] = lambda task, rows, seconds: None,
    ) -> None:
        self._predict, self._on_batch = predict, on_batch
        self._max_batch, self._max_wait, self._room = max_batch, max_wait, room
        self._waiting: list[Waiting] = []  # in order of arrival
        self._changed = asyncio.Event()  # rows arrived, or the batcher stops
        self._stopping = False
        self._worker: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Batcher:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="predict")
        self._worker = asyncio.create_task(self._work())
        return self

    async def __aexit__(self, *exception: Any) -> None:
        self._stopping = True
        self._changed.set()
        if self._worker:
            await self._worker
        self._thread.shutdown()

    @property
    def running(self) -> bool:
        """Whether rows are taken."""
        return self._worker is not None and not self._worker.done() and not self._stopping

    @property
    def waiting(self) -> int:
        """Number of rows that wait, without those that are being predicted."""
        return len(self._waiting)

    async def predict(self, task: str, rows: Sequence[Row]) -> list[Prediction]:
        """Return the predictions of one request. If it is cancelled, its rows that still wait are dropped.

        Raises:
            Unavailable: if there is no room for all rows, or the batcher is not running.
            Exception: of the first row that fails.
        """
        if not self.running:
            raise Unavailable("server: found it starting or stopping, expected it ready")
        if len(self._waiting) + len(rows) > self._room:
            raise Unavailable(f"server: found {len(self._waiting)} rows waiting, expected room for {len(rows)} more")
        loop = asyncio.get_running_loop()
        request = [Waiting(task, row, loop.time(), loop.create_future()) for row in rows]
        self._waiting += request
        self._changed.set()
        try:
            return await asyncio.gather(*[row.answer for row in request])
        finally:  # rows of a request that failed or was cancelled need no prediction
            for row in request:
                row.answer.cancel()
            self._waiting = [row for row in self._waiting if not row.answer.done()]

    async def _work(self) -> None:
        """Predict batch after batch, until the batcher stops and no row waits."""
        while self._waiting or not self._stopping:
            if not self._waiting:
                await self._change()
                continue
            oldest = self._waiting[0]
            await self._fill(oldest)
            batch = [row for row in self._waiting if row.task == oldest.task][: self._max_batch]
            self._waiting = [row for row in self._waiting if row not in batch]
            if batch:  # all may have been cancelled
                await self._answer(batch)

    async def _fill(self, oldest: Waiting) -> None:
        """Wait until the batch is full, its oldest row has waited for `max_wait`, or the batcher stops."""
        left = oldest.arrived + self._max_wait - asyncio.get_running_loop().time()
        with anyio.move_on_after(left):
            while not self._stopping and sum(row.task == oldest.task for row in self._waiting) < self._max_batch:
                await self._change()

    async def _change(self) -> None:
        """Wait until rows arrive or the batcher stops."""
        self._changed.clear()
        await self._changed.wait()

    async def _answer(self, batch: list[Waiting]) -> None:
        """Predict a batch; if that fails, its rows one by one."""
        task, rows, began = batch[0].task, [row.row for row in batch], time.perf_counter()
        try:
            predictions = await asyncio.get_running_loop().run_in_executor(self._thread, self._predict, task, rows)
            self._on_batch(task, len(rows), time.perf_counter() - began)
        except Exception as error:
            for row in batch:
                if row.answer.done():  # its request was cancelled
                    continue
                if len(batch) > 1:
                    await self._answer([row])
                else:
                    row.answer.set_exception(error)
            return
        for row, prediction in zip(batch, predictions):
            if not row.answer.done():
                row.answer.set_result(prediction)
