"""Hostile clients of a server on this machine, until they are killed: python benchmarks/hostile.py PORT TASK

Half-sent headers, slow bodies, oversized bodies, bytes that are no HTTP, and connections that send nothing.
"""

from __future__ import annotations

import asyncio
import random
import sys
from contextlib import suppress

HEAD = "POST /predict/{task} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n\r\n"
KINDS = {  # by kind of attack: concurrent clients, and the pause in seconds before a client's next attack
    "half-sent headers": (200, 0.1),
    "slow bodies": (50, 0.1),
    "oversized bodies": (2, 0.5),
    "garbage": (5, 0.1),
    "silent connections": (1200, 1.0),
}


async def attack(kind: str, port: int, task: str) -> None:
    """Attack once, until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    response = asyncio.ensure_future(reader.read())
    try:
        head = HEAD.format(task=task, length=3_000_000).encode()
        if kind == "half-sent headers":
            writer.write(head[:60])
        elif kind == "slow bodies":
            writer.write(head)
            while not response.done():
                writer.write(b"{")
                await asyncio.wait({response}, timeout=1)
        elif kind == "oversized bodies":
            writer.write(head + b" " * 3_000_000)
        elif kind == "garbage":
            writer.write(random.randbytes(1000))
        await response
    finally:
        writer.close()


async def run_client(kind: str, pause: float, port: int, task: str) -> None:
    """Attack again and again, first after a random delay."""
    await asyncio.sleep(random.uniform(0, 5))
    while True:
        with suppress(OSError):
            await attack(kind, port, task)
        await asyncio.sleep(pause)


async def run_clients(port: int, task: str) -> None:
    """Run all clients of all kinds."""
    clients = [run_client(kind, pause, port, task) for kind, (count, pause) in KINDS.items() for _ in range(count)]
    await asyncio.gather(*clients)


if __name__ == "__main__":
    asyncio.run(run_clients(int(sys.argv[1]), sys.argv[2]))
