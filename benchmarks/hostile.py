"""Hostile clients of a server on this machine, until they are killed: python benchmarks/hostile.py PORT TASK

Half-sent headers, slow bodies, oversized bodies, bytes that are no HTTP, and connections that send nothing.
"""

from __future__ import annotations

import asyncio
import random
import sys
from contextlib import suppress

HEAD = "POST /predict/{task} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n\r\n"
KINDS = {  # by kind: clients at a time, and seconds that one pauses before it comes again
    "half-sent headers": (200, 0.1),
    "slow bodies": (50, 0.1),
    "oversized bodies": (2, 0.5),
    "garbage": (5, 0.1),
    "silent connections": (1200, 1.0),
}


async def client(kind: str, port: int, task: str) -> None:
    """Attack once, until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = HEAD.format(task=task, length=3_000_000).encode()
        if kind == "half-sent headers":
            writer.write(head[:60])
        elif kind == "slow bodies":
            writer.write(head)
            answer = asyncio.ensure_future(reader.read())
            while not answer.done():
                writer.write(b"{")
                await asyncio.wait({answer}, timeout=1)
            await answer
            return
        elif kind == "oversized bodies":
            writer.write(head + b" " * 3_000_000)
        elif kind == "garbage":
            writer.write(random.randbytes(1000))
        await reader.read()
    finally:
        writer.close()


async def attack(port: int, task: str) -> None:
    """Keep all clients of all kinds at it."""

    async def again_and_again(kind: str, pause: float) -> None:
        await asyncio.sleep(random.uniform(0, 5))
        while True:
            with suppress(OSError):
                await client(kind, port, task)
            await asyncio.sleep(pause)

    await asyncio.gather(*[again_and_again(kind, pause) for kind, (n, pause) in KINDS.items() for _ in range(n)])


if __name__ == "__main__":
    asyncio.run(attack(int(sys.argv[1]), sys.argv[2]))
