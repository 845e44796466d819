"""Batches join concurrent requests for one task."""

import asyncio

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")

from fastapi import HTTPException

from bertrio.inference.serve.batching import Batcher
from bertrio.inference.serve.limits import Limits
from bertrio.inference.serve.metrics import Metrics


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 20))


def batcher(predictor, max_batch=4, max_wait=0.05):
    return Batcher(predictor.predict, Limits(max_batch=max_batch, max_wait=max_wait), Metrics())


async def settle():
    """Let all tasks run until they wait."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_concurrent_requests_are_joined_up_to_max_batch(predictor):
    async def ask():
        async with batcher(predictor) as queue:
            singles = [queue.predict("sst", ["x" * length]) for length in range(6)]
            pairs = [queue.predict("qqp", [(str(number), "b")]) for number in range(2)]
            return await asyncio.gather(*singles, *pairs, queue.predict("sts", [("a", "b")] * 10))

    assert run(ask())[:6] == [[predictor.answer("sst", "x" * length)] for length in range(6)]
    assert [(task, len(rows)) for task, rows in predictor.batches] == [("sst", 4), ("sst", 2), ("qqp", 2), ("sts", 10)]
    assert len(predictor.threads) == 1


def test_the_oldest_request_is_served_first(predictor):
    predictor.hold.clear()

    async def ask():
        async with batcher(predictor, max_wait=0) as queue:
            requests = [asyncio.ensure_future(queue.predict("sst", ["first"]))]
            while not predictor.batches:
                await asyncio.sleep(0.001)
            for task, row in (("qqp", ("a", "b")), ("sst", "second"), ("qqp", ("c", "d"))):
                requests.append(asyncio.ensure_future(queue.predict(task, [row])))
                await settle()
            predictor.hold.set()
            await asyncio.gather(*requests)

    run(ask())
    assert predictor.batches == [("sst", ["first"]), ("qqp", [("a", "b"), ("c", "d")]), ("sst", ["second"])]


def test_exit_finishes_queued_requests_and_refuses_new_ones(predictor):
    predictor.hold.clear()

    async def ask():
        queue = batcher(predictor, max_batch=1)
        with pytest.raises(HTTPException, match="503"):
            await queue.predict("sst", ["too early"])
        async with queue:
            requests = [asyncio.ensure_future(queue.predict("sst", [str(number)])) for number in range(3)]
            await settle()
            requests[2].cancel()
            end = asyncio.ensure_future(queue.__aexit__(None, None, None))
            await settle()
            with pytest.raises(HTTPException, match="503"):
                await queue.predict("sst", ["too late"])
            predictor.hold.set()
            await end
            return [task.result() for task in requests[:2]]

    assert run(ask()) == [[predictor.answer("sst", str(number))] for number in range(2)]
