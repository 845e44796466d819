"""Growth of cost with work: the whole pipeline on 1, 2, 4, 8 times the rows, and with 1, 5, 10 members; and the stages
that read data on large files of pairs.

    python benchmarks/growth.py
    python benchmarks/growth.py --rows-sizes --members-sizes --pairs 100000 1000000 5000000

Seconds of the pipeline come from the timing files of the stages, CPU seconds on pairs from each stage's whole process.
`off the line` is the relative distance of the median from the straight line through the first and the last size; fixed
costs are part of the line. Bytes a row are the peak resident memory above that of the same stage on `BASE` pairs.
"""

from __future__ import annotations

import csv
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from common import ROOT, Case, Runs, environment, markdown, middle, parser_of, report

PREPARE = ("check", "download", "split", "pretrain_mlm", "prefinetune")
SERIES = {"rows": (1, 2, 4, 8), "members": (1, 5, 10)}
BASE = 20_000  # pairs, whose batches and sampled baseline are in memory at any size
MANY = 10**7  # pairs, whose peak memory is told by the line
TOKENS = """
from bertrio.config import load_params
from bertrio.training.build import load_split
load_split(load_params(), "train", "data/splits", "models/tokenizer")
"""
PAIR_STAGES = {  # commands, in this order
    "check": ("stages/check.py",),
    "download, JSON Lines": ("stages/download.py", "jsonl"),
    "download, TSV": ("stages/download.py", "tsv"),
    "split": ("stages/split.py",),
    "tokens": ("-c", TOKENS),
    "tokens, again": ("-c", TOKENS),
}


def params_of(rows: int, members: int, epochs: int) -> dict[str, Any]:
    """Return params.yaml with this number of training rows of each task and of members, which differ in seed."""
    from bertrio.config import merged, read_yaml

    sample = {"train_rows": rows, "dev_rows": max(1, rows // 4), "test_rows": max(1, rows // 4)}
    base = read_yaml(ROOT / "params.yaml")
    base["ensemble"]["members"] = {f"m{seed}": {"runtime": {"seed": seed}} for seed in range(1, members + 1)}
    return merged(base, {"data": {"source": "sample", "sample": sample}, "finetune": {"epochs": epochs}})


def run_pipeline(params: dict[str, Any], members: int, threads: int) -> dict[str, Any]:
    """Run all stages in a temporary folder and return total seconds, peak memory, and the timing of each stage."""
    import yaml

    from bertrio.core.files import read_json

    params["runtime"]["threads"] = threads
    commands = [(name,) for name in PREPARE]
    commands += [("finetune", "--member", f"m{seed}") for seed in range(1, members + 1)]
    with tempfile.TemporaryDirectory(prefix="bertrio-growth-") as path:
        folder = Path(path)
        (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
        for name, *args in [*commands, ("ensemble",), ("evaluate",)]:
            command = [sys.executable, str(ROOT / "stages" / f"{name}.py"), *args]
            done = subprocess.run(command, cwd=folder, env=environment(threads), capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
        timing = {path.stem: read_json(path) for path in sorted((folder / "metrics/timing").glob("*.json"))}
    return {
        "seconds": sum(cost["seconds"] for cost in timing.values()),
        "peak_memory_mb": max(cost["peak_memory_mb"] for cost in timing.values()),
        "stages": timing,
    }


def made_up_pairs(count: int, prefix: str) -> Iterator[tuple[str, str, str, int]]:
    """Yield pairs of 24 words, of which some stand in quotes, with ids and labels."""
    draws = random.Random(prefix)
    syllables = [a + b for a, b in product("bdfgklmnprst", "aeiou")]
    words = ["".join(parts) for parts in product(syllables, repeat=2)] + ['"quoted"']
    weights = [1 / (rank + 10) for rank in range(len(words))]
    for number in range(count):
        texts = draws.choices(words, weights, k=24)
        yield f"{prefix}-{number}", " ".join(texts[:12]) + "?", " ".join(texts[12:]) + "?", number % 2


def write_pairs(folder: Path, count: int) -> None:
    """Write train and dev (1 %) of a task with pairs, as TSV and as JSON Lines."""
    columns = ("id", "text_a", "text_b", "label")
    for split, rows in {"train": count, "dev": max(count // 100, 50)}.items():
        with open(folder / f"{split}.tsv", "w", newline="") as tsv, open(folder / f"{split}.jsonl", "w") as jsonl:
            writer = csv.writer(tsv, delimiter="\t", lineterminator="\n")
            writer.writerow(columns)
            for row in made_up_pairs(rows, split):
                writer.writerow(row)
                jsonl.write(json.dumps(dict(zip(columns, row))) + "\n")


def run_pairs(count: int, threads: int) -> dict[str, dict[str, float]]:
    """Run the stages that read data, and the tokenising of training, and return seconds and peak memory of each."""
    import yaml

    params, costs = yaml.safe_load((ROOT / "params.yaml").read_text()), {}
    params["tasks"] = {"qqp": params["tasks"]["qqp"]}
    params["schedule"]["first"] = {}
    with tempfile.TemporaryDirectory(prefix="bertrio-growth-") as path:
        folder = Path(path)
        write_pairs(folder, count)
        for name, (script, *format_of) in PAIR_STAGES.items():
            ending = format_of[0] if script.endswith("download.py") else "tsv"
            files = {split: str(folder / f"{split}.{ending}") for split in ("train", "dev")}
            params["data"] |= {"source": "files", "path": None, "files": {"qqp": files}}
            (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
            command = [script, *format_of] if script == "-c" else [str(ROOT / script)]
            costs[name] = cost_of([sys.executable, *command], folder, threads)
    return costs


def cost_of(command: Sequence[str], folder: Path, threads: int) -> dict[str, float]:
    """Run a command and return its seconds and peak memory, those of its process alone."""
    began = time.perf_counter()
    with open(folder / "log", "w+") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment(threads), stdout=log, stderr=log)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            log.seek(0)
            sys.exit(f"{' '.join(command)} failed:\n{log.read()[-3000:]}")
    unit = 2**20 if sys.platform == "darwin" else 2**10  # macOS counts bytes, Linux KiB
    return {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "peak_memory_mb": used.ru_maxrss / unit,
    }


def pairs_table(runs: Runs, sizes: Sequence[int]) -> str:
    """Return a table of the stages on pairs: time, distance from the line, and memory."""
    lines = []
    for stage in PAIR_STAGES if sizes else ():
        seconds = [middle(runs, pair_case(stage, size), "cpu_seconds") for size in (BASE, *sizes)]
        peaks = [middle(runs, pair_case(stage, size), "peak_memory_mb") for size in (BASE, *sizes)]
        for size, total, off, peak in zip(sizes, seconds[1:], off_the_line((BASE, *sizes), seconds)[1:], peaks[1:]):
            each = (peak - peaks[0]) * 2**20 / (size - BASE)
            many = peaks[0] / 2**10 + each * MANY / 2**30
            cells = f"{total:.1f}", f"{off:+.0%}", f"{peak:.0f}", f"{each:.0f}", f"{many:.1f}"
            lines.append([stage, f"{size:,}", *cells])
    return markdown(["stage", "pairs", "CPU s", "off the line", "peak MB", "bytes a row", "GB at 10 M pairs"], lines)


def pair_case(stage: str, size: int) -> str:
    """Return the name of a measurement."""
    return f"{stage}, {size} pairs"


def off_the_line(sizes: Sequence[int], seconds: Sequence[float]) -> list[float]:
    """Return the relative distance of each point from the straight line through the first and the last one."""
    slope = (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0]) if len(sizes) > 1 else 0.0
    line = [seconds[0] + slope * (size - sizes[0]) for size in sizes]
    return [(one - other) / other for one, other in zip(seconds, line)]


def table(runs: Runs, series: str, sizes: Sequence[int], unit: int) -> str:
    """Return a table with seconds, time per unit of work, distance from the line, and peak memory."""
    names = [f"{series} x {size}" for size in sizes]
    seconds, memory = [[middle(runs, name, key) for name in names] for key in ("seconds", "peak_memory_mb")]
    lines = [
        [name, f"{total:.1f}", f"{1000 * total / (size * unit):.2f}", f"{off:+.1%}", f"{peak:.0f}"]
        for name, size, total, off, peak in zip(names, sizes, seconds, off_the_line(sizes, seconds), memory)
    ]
    each = "ms a row of each task" if series == "rows" else "ms a member"
    return markdown(["work", "s", each, "off the line", "peak MB"], lines)


def main(argv: Sequence[str]) -> None:
    parser = parser_of(__doc__, repeats=3)
    parser.add_argument("--rows", type=int, default=2000, help="training rows of each task at x 1")
    parser.add_argument("--epochs", type=int, default=1)
    for series, sizes in SERIES.items():
        parser.add_argument(f"--{series}-sizes", nargs="*", type=int, default=list(sizes))
    parser.add_argument("--pairs", nargs="*", type=int, default=[10**5, 10**6], help="sizes of the files of pairs")
    args = parser.parse_args(argv)
    args.argv = list(argv)
    work = {f"rows x {size}": (size * args.rows, 1) for size in args.rows_sizes}
    work |= {f"members x {size}": (args.rows, size) for size in args.members_sizes}
    runs: Runs = {name: [] for name in work}
    for turn in range(1, args.repeats + 1):  # first: the peak of a process counts what this one had when it began
        for size in (BASE, *args.pairs) if args.pairs else ():
            for stage, cost in run_pairs(size, args.threads).items():
                runs.setdefault(pair_case(stage, size), []).append(cost)
                print(f"turn {turn}, {pair_case(stage, size)}: {cost}", file=sys.stderr, flush=True)
    for turn in range(1, args.repeats + 1):
        for name, (rows, members) in work.items():
            runs[name].append(run_pipeline(params_of(rows, members, args.epochs), members, args.threads))
            print(f"turn {turn}, {name}: {runs[name][-1]['seconds']:.1f} s", file=sys.stderr, flush=True)
    picked = [Case(name, (f"rows={r}", f"members={m}"), "the whole pipeline") for name, (r, m) in work.items()]
    picked += [Case(name, (), "a stage") for name in runs if name not in work]
    tables = [
        table(runs, "rows", args.rows_sizes, args.rows),
        table(runs, "members", args.members_sizes, 1),
        pairs_table(runs, args.pairs),
    ]
    report("growth", args, picked, runs, tables)


if __name__ == "__main__":
    main(sys.argv[1:])
