"""Rows of requests that come in at the same time, joined into batches for the one thread that predicts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertrio.inference.predictor import Prediction, Row


class Full(Exception):
    """There is no room for the rows of a request.

    Args:
        waiting: rows that wait already.
    """

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} rows are waiting")
        self.waiting = waiting


class Stopped(Exception):
    """The batcher takes no rows: it has not started yet, or is about to end."""


class RowFailed(Exception):
    """One row of a request could not be predicted; `__cause__` says why.

    Args:
        place: of the row in its request, from 0.
    """

    def __init__(self, place: int) -> None:
        super().__init__(f"row {place}")
        self.place = place


@dataclass(frozen=True, eq=False)
class Waiting:
    """A row that waits for its prediction; `arrived` is the event loop's time in seconds."""

    task: str
    row: Row
    arrived: float
    answer: asyncio.Future[Prediction]


class Batcher:
    """Predicts the rows of concurrent requests in batches, in one thread, the oldest row's task first.

    A batch is of one task. It starts as soon as it is full or its oldest row has waited for `max_wait`; while the
    thread is busy, rows gather by themselves. Requests share nothing but time: where a batch fails, each of its rows is
    tried alone, and those that fail do so in their own requests. Belongs to one event loop; to be used as an
    asynchronous context, which at its end takes no more rows and waits for those that it has.

    Args:
        predict: `(task, rows) -> predictions`, one a row, in order. Only ever called by the one thread.
        max_batch: most rows of a batch, from 1.
        max_wait: seconds that a row waits for others, from 0.
        room: most rows that wait.
        told: called with task, rows and seconds of each batch.
    """

    def __init__(
        self,
        predict: Callable[[str, list[Row]], Sequence[Prediction]],
        max_batch: int,
        max_wait: float,
        room: int,
        told: Callable[[str, int, float], None] = lambda task, rows, seconds: None,
    ) -> None:
        self._predict, self._told = predict, told
        self._max_batch, self._max_wait, self._room = max_batch, max_wait, room
        self._waiting: list[Waiting] = []  # in the order in which they came
        self._changed = asyncio.Event()  # rows came, or the end did
        self._ending = False
        self._worker: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Batcher:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="predict")
        self._worker = asyncio.create_task(self._work())
        return self

    async def __aexit__(self, *exception: Any) -> None:
        self._ending = True
        self._changed.set()
        await self._worker
        self._thread.shutdown()

    @property
    def running(self) -> bool:
        """Whether rows are taken."""
        return self._worker is not None and not self._worker.done() and not self._ending

    @property
    def waiting(self) -> int:
        """How many rows wait; those that are being predicted do not count."""
        return len(self._waiting)

    async def predict(self, task: str, rows: Sequence[Row]) -> list[Prediction]:
        """The predictions of one request. If it is cancelled, its rows that still wait are dropped.

        Raises:
            Full: if there is no room for all of them; none is taken then.
            Stopped: if no rows are taken.
            RowFailed: naming the first row that could not be predicted.
        """
        if not self.running:
            raise Stopped
        if len(self._waiting) + len(rows) > self._room:
            raise Full(len(self._waiting))
        loop = asyncio.get_running_loop()
        own = [Waiting(task, row, loop.time(), loop.create_future()) for row in rows]
        self._waiting += own
        self._changed.set()
        try:
            found = await asyncio.gather(*[one.answer for one in own], return_exceptions=True)
        finally:  # cancelled with the request, they need not be predicted
            self._waiting = [one for one in self._waiting if not one.answer.done()]
        for place, of in enumerate(found):
            if isinstance(of, BaseException):
                raise RowFailed(place) from of
        return found

    async def _work(self) -> None:
        """Predicts batch after batch, until the end has come and no row waits."""
        while True:
            while not self._waiting:
                if self._ending:
                    return
                await self._change()
            oldest = self._waiting[0]
            await self._filled(oldest)
            batch = self._take(oldest.task)
            if batch:  # all may have been cancelled
                await self._answer(batch)

    async def _filled(self, oldest: Waiting) -> None:
        """Waits until there is a batch of the oldest row's task, that row has waited long enough, or the end comes."""
        loop, until = asyncio.get_running_loop(), oldest.arrived + self._max_wait
        while not self._ending and sum(one.task == oldest.task for one in self._waiting) < self._max_batch:
            left = until - loop.time()
            if left <= 0:
                return
            await self._change(left)

    async def _change(self, seconds: float | None = None) -> None:
        """Waits until rows come or the end does, or for so many seconds."""
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except asyncio.TimeoutError:  # builtin TimeoutError from Python 3.11 on
            return

    def _take(self, task: str) -> list[Waiting]:
        """Takes the next batch of `task` out of the rows that wait."""
        batch = [one for one in self._waiting if one.task == task][: self._max_batch]
        taken = set(batch)
        self._waiting = [one for one in self._waiting if one not in taken]
        return batch

    async def _answer(self, batch: list[Waiting]) -> None:
        """Predicts a batch; if that fails, its rows one by one."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._thread, self._timed, batch[0].task, [one.row for one in batch])
        except Exception as error:
            if len(batch) > 1:
                for one in batch:
                    if not one.answer.done():  # its request may be gone
                        await self._answer([one])
            elif not batch[0].answer.done():
                batch[0].answer.set_exception(error)
            return
        for one, prediction in zip(batch, found):
            if not one.answer.done():
                one.answer.set_result(prediction)

    def _timed(self, task: str, rows: list[Row]) -> Sequence[Prediction]:
        """Runs in the thread."""
        began = time.perf_counter()
        found = self._predict(task, rows)
        if len(found) != len(rows):
            raise RuntimeError(f"{len(found)} predictions of {len(rows)} rows of {task}")
        self._told(task, len(rows), time.perf_counter() - began)
        return found
