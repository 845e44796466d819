"""Latency of `bertrio serve` under an open loop of requests for single sentences.

    python benchmarks/serving.py --data path/to/course-data --encoder path/to/encoder --hostile

Arrivals follow a Poisson process that is drawn beforehand, and each request is sent at its time whether or not earlier
ones have been answered (an open loop). Latency counts from that time, so it includes all delays of client and server.
Server and client share the machine's cores. Each rate is measured twice on loopback: with a connection for each
request, and with connections that are kept. With --hostile, the clients of hostile.py attack the server all the while.
The model has untrained heads, which take as long as trained ones.
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
COLUMNS = (
    "p50_ms",
    "p90_ms",
    "p99_ms",
    "max_ms",
    "errors",
    "dropped",
    "rows_per_batch",
    "memory_mb",
    "growth_mb",
    "lag_ms",
)
GROWTH_FROM = 1 / 3  # of the time; memory at the end is compared with memory then


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


def memory(metrics: str) -> float:
    """Return the server's resident memory in MB."""
    return metric(metrics, "process_resident_memory_bytes") / 2**20


# ---- the clients


def arrivals(rate: float, seconds: float, seed: int) -> np.ndarray:
    """Return the times of requests in seconds: a Poisson process, conditioned on `rate * seconds` arrivals."""
    return np.sort(np.random.default_rng(seed).uniform(0, seconds, round(rate * seconds)))


async def ask(port: int, request: bytes, kept: list[Any] | None) -> int:
    """Send one request, read the whole response, and return its status.

    Args:
        port: port of the server.
        request: head and body.
        kept: idle connections, of which one is used if there is any, and to which the connection is added; None closes
            it after the response.
    """
    is_kept = bool(kept)
    reader, writer = kept.pop() if kept else await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
    except (OSError, asyncio.IncompleteReadError):
        writer.close()
        if is_kept:  # the server closed it while it was idle
            return await ask(port, request, kept)
        raise
    content = await reader.readexactly(int(re.search(rb"(?i)content-length: (\d+)", head).group(1)))
    writer.close() if kept is None else kept.append((reader, writer))
    status = int(head.split(b" ", 2)[1])
    if status == 200:
        assert json.loads(content)["predictions"]
    return status


async def bombard(
    port: int, task: str, texts: Sequence[str], due: np.ndarray, keep: bool
) -> tuple[list[Outcome], int, float]:
    """Send a request for one row at each of the times `due`; `keep` keeps connections for further requests.

    Returns:
        Outcomes of the sent requests; the number of requests dropped because `IN_FLIGHT` were pending; and the largest
        delay of the client in milliseconds.
    """
    head = f"POST /predict/{task} HTTP/1.1\r\nHost: 127.0.0.1\r\n".encode()
    head += b"" if keep else b"Connection: close\r\n"
    head += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    loop, outcomes, running, dropped, lag, kept = asyncio.get_running_loop(), [], set(), 0, 0.0, [] if keep else None
    began = loop.time()

    async def one(at: float, text: str) -> None:
        body = json.dumps({"rows": [text]}).encode()
        try:
            status = await asyncio.wait_for(ask(port, head % len(body) + body, kept), ANSWER_WITHIN)
        except (OSError, EOFError, TimeoutError, ValueError, LookupError, AttributeError, AssertionError):
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


@contextmanager
def attacked(port: int, args: Any) -> Iterator[None]:
    """Attack the server during the block, from a process of its own, if asked for by `--hostile`."""
    if not args.hostile:
        yield
        return
    process = subprocess.Popen([sys.executable, str(ROOT / "benchmarks/hostile.py"), str(port), args.task])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def metrics_of(url: str) -> str:
    """Return the text of the server's /metrics."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=START_WITHIN) as response:
        return response.read().decode()


def measure_rate(rate: float, keep: bool, model: Path, texts: Sequence[str], args: Any, seed: int) -> dict[str, float]:
    """Measure a new server under `rate` requests per second, on connections of their own or on kept ones."""
    due, early = arrivals(rate, args.seconds, seed), []
    with served(model, args) as url, attacked(port := int(url.rpartition(":")[2]), args):
        began = time.perf_counter()
        timer = threading.Timer(GROWTH_FROM * args.seconds, lambda: early.append(metrics_of(url)))
        timer.start()
        outcomes, dropped, lag = asyncio.run(bombard(port, args.task, texts, due, keep))
        seconds = time.perf_counter() - began
        timer.join()
        metrics = metrics_of(url)
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
        "memory_mb": memory(metrics),
        "growth_mb": memory(metrics) - memory(early[0]),
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
    parser.add_argument("--hostile", action="store_true", help="attack the server all the while, see hostile.py")
    args = parser.parse_args(argv)
    args.argv = list(argv)
    measures = f"one sentence each, {args.seconds:g} s{', under attack' if args.hostile else ''}"
    cases = {
        (rate, keep): Case(f"{rate:g} requests/s, {'kept' if keep else 'own'} connections", ("serving.py",), measures)
        for rate in args.rates
        for keep in (False, True)
    }
    runs: Runs = {case.name: [] for case in cases.values()}
    with prepared(args) as work:
        from bertrio.data.table import read_table

        texts = read_table(work / "data/splits" / args.task / "dev.parquet")["text"].tolist()
        write_model(work, work / "served")
        for turn in range(1, args.repeats + 1):
            for (rate, keep), case in cases.items():
                result = measure_rate(rate, keep, work / "served", texts, args, turn)
                runs[case.name].append(result)
                print(f"turn {turn}, {case.name}: p99 {result['p99_ms']:.0f} ms", file=sys.stderr, flush=True)
    report("serving", args, list(cases.values()), runs, [table(runs)])


if __name__ == "__main__":
    main(sys.argv[1:])
