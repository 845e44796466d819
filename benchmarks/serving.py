"""Latency of `bertrio serve` under an open loop of requests for single sentences.

    python benchmarks/serving.py --data path/to/course-data --encoder path/to/encoder --hostile

Arrivals follow a Poisson process that is drawn beforehand, and each request is sent at its time whether or not earlier
ones have been answered (an open loop). Latency counts from that time, so it includes all delays of client and server.
Server and client share the machine's cores. Each rate is measured twice on loopback: with a connection for each
request, and with connections that are kept. With --hostile, the clients of hostile.py attack the server all the while.
The model has untrained heads, which take as long as trained ones.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import common
import numpy as np
from case import save_untrained
from common import HERE, ROOT, Case, Runs, median_cells

TASK = "sst"
START_WITHIN, STOP_WITHIN = 120.0, 40.0  # seconds
ANSWER_WITHIN = 10.0  # seconds; a request that takes longer is an error
IN_FLIGHT = 1000  # limit of concurrent requests; further requests are dropped
COLUMNS = {  # measurements and their decimals
    **{"p50_ms": 0, "p90_ms": 0, "p99_ms": 0, "max_ms": 0, "errors": 0, "dropped": 0},
    **{"rows_per_batch": 1, "memory_mb": 0, "lag_ms": 0},
}


class Outcome(NamedTuple):
    """Result of a request: the status of its response (None if there was none), and milliseconds since it was due."""

    status: int | None
    latency: float


# ---- the server


@contextmanager
def running_server(model: Path, args: argparse.Namespace) -> Iterator[str]:
    """Run the server in its own process, yield its URL once it is ready, and terminate it at the end."""
    command = [sys.executable, "-m", "bertrio.cli.main", "serve", "--model", str(model), "--port", "0"]
    command += ["--device", args.device, "--precision", args.precision]
    environment = common.environment(args.threads)
    server = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    start_timeout = threading.Timer(START_WITHIN, server.kill)
    start_timeout.start()
    try:
        lines = []
        for line in server.stderr:
            lines.append(line)
            if url := re.search(r"http://\S+:\d+", line):
                break
        else:
            sys.exit(f"the server did not start: {''.join(lines)[-2000:]}")
        start_timeout.cancel()
        threading.Thread(target=server.stderr.read, daemon=True).start()  # a full pipe would block the server
        yield url.group()
    finally:
        start_timeout.cancel()
        server.terminate()
        try:
            server.wait(STOP_WITHIN)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def read_metrics(url: str) -> dict[str, float]:
    """Return the metrics of the server's /metrics, by name and labels."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=START_WITHIN) as response:
        lines = response.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[:1] not in ("", "#"))}


# ---- the clients


def arrivals(rate: float, seconds: float, seed: int) -> np.ndarray:
    """Return the times of requests in seconds: a Poisson process, conditioned on `rate * seconds` arrivals."""
    return np.sort(np.random.default_rng(seed).uniform(0, seconds, round(rate * seconds)))


async def send_request(port: int, request: bytes, idle: list[Any] | None) -> int:
    """Send one request, read the whole response, and return its status.

    Args:
        port: port of the server.
        request: head and body.
        idle: idle connections, of which one is used if there is any, and to which the connection is added; None closes
            it after the response.
    """
    reused = bool(idle)
    reader, writer = idle.pop() if idle else await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
    except (OSError, asyncio.IncompleteReadError):
        writer.close()
        if reused:  # the server closed it while it was idle
            return await send_request(port, request, idle)
        raise
    content = await reader.readexactly(int(re.search(rb"(?i)content-length: (\d+)", head).group(1)))
    writer.close() if idle is None else idle.append((reader, writer))
    status = int(head.split(b" ", 2)[1])
    if status == 200:
        assert json.loads(content)["predictions"]
    return status


async def send_requests(
    port: int, texts: Sequence[str], due: np.ndarray, keep: bool
) -> tuple[list[Outcome], int, float]:
    """Send a request for one row at each of the times `due`; `keep` keeps connections for further requests.

    Returns:
        Outcomes of the sent requests; the number of requests dropped because `IN_FLIGHT` were pending; and the largest
        delay of the client in milliseconds.
    """
    head = f"POST /predict/{TASK} HTTP/1.1\r\nHost: 127.0.0.1\r\n".encode()
    head += b"" if keep else b"Connection: close\r\n"
    head += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    outcomes, pending, dropped, lag, idle = [], set(), 0, 0.0, [] if keep else None
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def send(due_at: float, text: str) -> None:
        body = json.dumps({"rows": [text]}).encode()
        try:
            status = await asyncio.wait_for(send_request(port, head % len(body) + body, idle), ANSWER_WITHIN)
        except (OSError, EOFError, TimeoutError, ValueError, LookupError, AttributeError, AssertionError):
            status = None
        outcomes.append(Outcome(status, 1000 * (loop.time() - due_at)))

    for number, due_at in enumerate(due + began):
        await asyncio.sleep(max(0.0, due_at - loop.time()))
        lag = max(lag, loop.time() - due_at)
        if len(pending) >= IN_FLIGHT:
            dropped += 1
            continue
        request = asyncio.ensure_future(send(due_at, texts[number % len(texts)]))
        pending.add(request)
        request.add_done_callback(pending.discard)
    await asyncio.gather(*pending)
    return outcomes, dropped, 1000 * lag


@contextmanager
def hostile_clients(port: int) -> Iterator[None]:
    """Attack the server during the block, from a process of its own."""
    process = subprocess.Popen([sys.executable, str(HERE / "hostile.py"), str(port), TASK])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def measure_rate(
    rate: float, keep: bool, model: Path, texts: Sequence[str], args: argparse.Namespace, seed: int
) -> dict[str, float]:
    """Measure a new server under `rate` requests per second, on connections of their own or on kept ones."""
    due = arrivals(rate, args.seconds, seed)
    with ExitStack() as stack:
        url = stack.enter_context(running_server(model, args))
        port = int(url.rpartition(":")[2])
        if args.hostile:
            stack.enter_context(hostile_clients(port))
        began = time.perf_counter()
        outcomes, dropped, lag = asyncio.run(send_requests(port, texts, due, keep))
        seconds = time.perf_counter() - began
        metrics = read_metrics(url)
    latencies = [outcome.latency for outcome in outcomes]
    p50, p90, p99 = np.quantile(latencies, [0.5, 0.9, 0.99], method="higher").tolist()
    batch_rows, batches = (metrics[f'bertrio_batch_rows_{key}{{task="{TASK}"}}'] for key in ("sum", "count"))
    return {
        "seconds": seconds,
        "rows": len(due),
        "p50_ms": p50,
        "p90_ms": p90,
        "p99_ms": p99,
        "max_ms": max(latencies),
        "errors": sum(outcome.status != 200 for outcome in outcomes),
        "dropped": dropped,
        "rows_per_batch": batch_rows / batches,
        "memory_mb": metrics["process_resident_memory_bytes"] / 2**20,
        "lag_ms": lag,
    }


def table(runs: Runs) -> str:
    """Return a table with latencies in milliseconds and counts."""
    lines = [[name, *median_cells(runs, name, **COLUMNS)] for name in runs]
    return common.markdown(["case", *[key.replace("_", " ") for key in COLUMNS]], lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser_of(__doc__, repeats=1)
    common.add_model_options(parser)
    common.add_runtime_options(parser, batch=False)
    parser.add_argument("--rates", type=float, nargs="+", default=[50.0], help="requests per second, one case each")
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of each case")
    parser.add_argument("--hostile", action="store_true", help="attack the server all the while, see hostile.py")
    args = parser.parse_args(argv)
    measures = f"one sentence each, {args.seconds:g} s{', under attack' if args.hostile else ''}"
    cases = {
        (rate, keep): Case(f"{rate:g} requests/s, {'kept' if keep else 'own'} connections", ("serving.py",), measures)
        for rate in args.rates
        for keep in (False, True)
    }
    runs: Runs = {case.name: [] for case in cases.values()}
    with common.prepared(args) as work:
        from bertrio.data.table import read_table

        texts = read_table(work / "data/splits" / TASK / "dev.parquet")["text"].tolist()
        save_untrained(argparse.Namespace(work=work, set={}, seed=1, warmup=1, steps=1), work / "served")
        for turn in range(1, args.repeats + 1):
            for (rate, keep), case in cases.items():
                result = measure_rate(rate, keep, work / "served", texts, args, turn)
                runs[case.name].append(result)
                print(f"turn {turn}, {case.name}: p99 {result['p99_ms']:.0f} ms", file=sys.stderr, flush=True)
    common.report("serving", args, list(cases.values()), runs, [table(runs)])


if __name__ == "__main__":
    main()
