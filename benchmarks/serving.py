"""Latency of `bertrio serve` under an open loop of requests for single sentences.

    python benchmarks/serving.py --data path/to/course-data --encoder path/to/encoder

Arrivals follow a Poisson process that is drawn beforehand, and each request is sent at its time whether or not earlier
ones have been answered (an open loop). Latency counts from that time, so it includes all delays of client and server.
Server and client share the machine's cores; every request has its own connection, on loopback. The model has untrained
heads, which take as long as trained ones.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from case import load
from common import (
    ROOT,
    TASKS,
    Case,
    Runs,
    add_model_options,
    add_runtime_options,
    environment,
    markdown,
    middle,
    parser_of,
    prepared,
    report,
)

START_WITHIN, STOP_WITHIN = 120.0, 40.0  # seconds
ANSWER_WITHIN = 10.0  # seconds; a request that takes longer is an error
IN_FLIGHT = 1000  # limit of concurrent requests; further requests are dropped
COLUMNS = ("p50_ms", "p90_ms", "p99_ms", "max_ms", "errors", "dropped", "rows_per_batch", "peak_memory_mb", "lag_ms")


class Outcome(NamedTuple):
    """Result of a request: the status of its response (None if there was none), and milliseconds since it was due."""

    status: int | None
    latency: float


# ---- the server


def write_model(work: Path, folder: Path) -> None:
    """Write a model folder with untrained heads, from the folder of `prepared`."""
    from argparse import Namespace

    from bertrio.model.config import ModelConfig
    from bertrio.model.multitask import build_model, save_model

    params, runtime = load(Namespace(work=work, set={}, seed=1, warmup=1, steps=1))
    model = build_model(params, work / "models/encoder", runtime)
    save_model(model, folder, ModelConfig.from_params(params), work / "models/tokenizer")


@contextmanager
def served(model: Path, args: Any) -> Iterator[str]:
    """Run the server in its own process, yield its URL once it is ready, and terminate it at the end."""
    command = [sys.executable, "-m", "bertrio.cli.main", "serve", "--model", str(model), "--port", "0"]
    command += ["--device", args.device, "--precision", args.precision]
    server = subprocess.Popen(command, cwd=ROOT, env=environment(args.threads), stderr=subprocess.PIPE, text=True)
    start_timeout = threading.Timer(START_WITHIN, server.kill)
    start_timeout.start()
    try:
        lines = []
        for line in server.stderr:
            lines.append(line)
            url = re.search(r"http://\S+:\d+", line)
            if url:
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


def metric(text: str, name: str) -> float:
    """Return one metric from the text of the server's /metrics."""
    return float(re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE).group(1))


# ---- the clients


def arrivals(rate: float, seconds: float, seed: int) -> np.ndarray:
    """Return the times of requests in seconds: a Poisson process, conditioned on `rate * seconds` arrivals."""
    return np.sort(np.random.default_rng(seed).uniform(0, seconds, round(rate * seconds)))


async def ask(port: int, head: bytes, body: bytes) -> int:
    """Send one request over its own connection, read the whole response, and return its status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head % len(body) + body)
        response = await reader.read()
    finally:
        writer.close()
    status = int(response.split(b" ", 2)[1])
    if status == 200:
        assert json.loads(response.partition(b"\r\n\r\n")[2])["predictions"]
    return status


async def bombard(port: int, task: str, texts: Sequence[str], due: np.ndarray) -> tuple[list[Outcome], int, float]:
    """Send a request for one row at each of the times `due`.

    Returns:
        Outcomes of the sent requests; the number of requests dropped because `IN_FLIGHT` were pending; and the largest
        delay of the client in milliseconds.
    """
    head = f"POST /predict/{task} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n".encode()
    head += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    loop, outcomes, running, dropped, lag = asyncio.get_running_loop(), [], set(), 0, 0.0
    began = loop.time()

    async def one(at: float, text: str) -> None:
        try:
            status = await asyncio.wait_for(ask(port, head, json.dumps({"rows": [text]}).encode()), ANSWER_WITHIN)
        except (TimeoutError, OSError, ValueError, IndexError, KeyError, AssertionError):
            status = None
        outcomes.append(Outcome(status, 1000 * (loop.time() - at)))

    for number, at in enumerate(due + began):
        await asyncio.sleep(max(0.0, at - loop.time()))
        lag = max(lag, loop.time() - at)
        if len(running) >= IN_FLIGHT:
            dropped += 1
            continue
        request = asyncio.ensure_future(one(at, texts[number % len(texts)]))
        running.add(request)
        request.add_done_callback(running.discard)
    await asyncio.gather(*running)
    return outcomes, dropped, 1000 * lag


def measure_rate(rate: float, model: Path, texts: Sequence[str], args: Any, seed: int) -> dict[str, float]:
    """Measure a new server under `rate` requests per second."""
    due = arrivals(rate, args.seconds, seed)
    with served(model, args) as url:
        began = time.perf_counter()
        outcomes, dropped, lag = asyncio.run(bombard(int(url.rpartition(":")[2]), args.task, texts, due))
        seconds = time.perf_counter() - began
        with urllib.request.urlopen(f"{url}/metrics", timeout=ANSWER_WITHIN) as response:
            metrics = response.read().decode()
    latencies = [outcome.latency for outcome in outcomes]
    middle_, high, highest = np.quantile(latencies, [0.5, 0.9, 0.99], method="higher")
    batches = metric(metrics, f'bertrio_batch_rows_count{{task="{args.task}"}}')
    return {
        "seconds": seconds,
        "rows": len(due),
        "p50_ms": float(middle_),
        "p90_ms": float(high),
        "p99_ms": float(highest),
        "max_ms": max(latencies),
        "errors": sum(outcome.status != 200 for outcome in outcomes),
        "dropped": dropped,
        "rows_per_batch": metric(metrics, f'bertrio_batch_rows_sum{{task="{args.task}"}}') / batches,
        "peak_memory_mb": metric(metrics, "process_resident_memory_bytes") / 2**20,
        "lag_ms": lag,
    }


def table(runs: Runs) -> str:
    """Return a table with latencies in milliseconds and counts."""
    digits = {key: int(key == "rows_per_batch") for key in COLUMNS}
    lines = [[name, *[f"{middle(runs, name, key):.{digits[key]}f}" for key in COLUMNS]] for name in runs]
    return markdown(["case", *[key.replace("_", " ") for key in COLUMNS]], lines)


def main(argv: Sequence[str]) -> None:
    parser = parser_of(__doc__, repeats=1)
    add_model_options(parser)
    add_runtime_options(parser, batch=False)
    parser.add_argument("--rates", type=float, nargs="+", default=[50.0], help="requests per second, one case each")
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of each case")
    parser.add_argument("--task", choices=[*TASKS], default="sst", help="a task of single sentences")
    args = parser.parse_args(argv)
    args.argv = list(argv)
    measures = f"one sentence each, {args.seconds:g} s"
    cases = {rate: Case(f"{rate:g} requests/s", ("serving.py",), measures) for rate in args.rates}
    runs: Runs = {case.name: [] for case in cases.values()}
    with prepared(args) as work:
        from bertrio.data.table import read_table

        texts = read_table(work / "data/splits" / args.task / "dev.parquet")["text"].tolist()
        write_model(work, work / "served")
        for turn in range(1, args.repeats + 1):
            for rate, case in cases.items():
                result = measure_rate(rate, work / "served", texts, args, turn)
                runs[case.name].append(result)
                print(f"turn {turn}, {case.name}: p99 {result['p99_ms']:.0f} ms", file=sys.stderr, flush=True)
    report("serving", args, list(cases.values()), runs, [table(runs)])


if __name__ == "__main__":
    main(sys.argv[1:])
