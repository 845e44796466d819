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
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import common
import yaml
from common import PREPARE, ROOT, Case, Runs, markdown, median_cells, middle

from bertrio.core.files import read_json

BASE = 20_000  # pairs, whose batches and sampled baseline are in memory at any size
TOKENS = """
from bertrio.config import load_params
from bertrio.training.build import load_split
load_split(load_params(), "train", "data/splits", "models/tokenizer")
"""
PAIR_STAGES = {  # arguments of Python and format of the files, in this order
    "check": ("stages/check.py", "tsv"),
    "download, JSON Lines": ("stages/download.py", "jsonl"),
    "download, TSV": ("stages/download.py", "tsv"),
    "split": ("stages/split.py", "tsv"),
    "tokens": (TOKENS, "tsv"),
    "tokens, again": (TOKENS, "tsv"),
}


def run_pipeline(rows: int, members: int, epochs: int, threads: int) -> dict[str, Any]:
    """Run all stages in a temporary folder and return total seconds, peak memory, and the timing of each stage.

    Args:
        rows: training rows of each task.
        members: number of members, which differ in seed.
        epochs: epochs of fine-tuning.
        threads: CPU threads of torch.
    """
    from bertrio.config import merged, read_yaml

    sample = {"train_rows": rows, "dev_rows": max(1, rows // 4), "test_rows": max(1, rows // 4)}
    params = read_yaml(ROOT / "params.yaml")
    params["ensemble"]["members"] = {f"m{seed}": {"runtime": {"seed": seed}} for seed in range(1, members + 1)}
    data = {"source": "sample", "sample": sample}
    params = merged(params, {"data": data, "finetune": {"epochs": epochs}, "runtime": {"threads": threads}})
    finetune = [f"finetune --member {name}" for name in params["ensemble"]["members"]]
    with tempfile.TemporaryDirectory(prefix="bertrio-growth-") as folder:
        common.run_stages(Path(folder), params, *PREPARE, *finetune, "ensemble", "evaluate")
        timing = {path.stem: read_json(path) for path in sorted(Path(folder, "metrics/timing").glob("*.json"))}
    return {
        "seconds": sum(cost["seconds"] for cost in timing.values()),
        "peak_memory_mb": max(cost["peak_memory_mb"] for cost in timing.values()),
        "stages": timing,
    }


def generated_pairs(count: int, prefix: str) -> Iterator[tuple[str, str, str, int]]:
    """Yield pairs of 24 words, of which some are quoted, with ids and labels."""
    generator = random.Random(prefix)
    syllables = [a + b for a, b in product("bdfgklmnprst", "aeiou")]
    words = ["".join(parts) for parts in product(syllables, repeat=2)] + ['"quoted"']
    weights = [1 / (rank + 10) for rank in range(len(words))]
    for number in range(count):
        texts = generator.choices(words, weights, k=24)
        yield f"{prefix}-{number}", " ".join(texts[:12]) + "?", " ".join(texts[12:]) + "?", number % 2


def write_pairs(folder: Path, count: int) -> None:
    """Write train and dev (1 %) of a task with pairs, as TSV and as JSON Lines."""
    columns = ("id", "text_a", "text_b", "label")
    for split, rows in {"train": count, "dev": max(count // 100, 50)}.items():
        with open(folder / f"{split}.tsv", "w", newline="") as tsv, open(folder / f"{split}.jsonl", "w") as jsonl:
            writer = csv.writer(tsv, delimiter="\t", lineterminator="\n")
            writer.writerow(columns)
            for row in generated_pairs(rows, split):
                writer.writerow(row)
                jsonl.write(json.dumps(dict(zip(columns, row))) + "\n")


def run_pairs(count: int, threads: int) -> dict[str, dict[str, float]]:
    """Run the stages that read data, and the tokenising of training, and return seconds and peak memory of each."""
    params, costs = yaml.safe_load((ROOT / "params.yaml").read_text()), {}
    params["tasks"] = {"qqp": params["tasks"]["qqp"]}
    params["schedule"]["first"] = {}
    with tempfile.TemporaryDirectory(prefix="bertrio-growth-") as path:
        folder = Path(path)
        write_pairs(folder, count)
        for name, (script, suffix) in PAIR_STAGES.items():
            files = {split: str(folder / f"{split}.{suffix}") for split in ("train", "dev")}
            params["data"] |= {"source": "files", "path": None, "files": {"qqp": files}}
            common.write_params(folder, params)
            command = ["-c", script] if script == TOKENS else [str(ROOT / script)]
            costs[name] = common.run_command([sys.executable, *command], threads, folder)
    return costs


def pairs_table(runs: Runs, sizes: Sequence[int]) -> str:
    """Return a table of the stages on pairs: time, distance from the line, and memory."""
    lines = []
    for stage in PAIR_STAGES if sizes else ():
        names = [pair_case(stage, size) for size in (BASE, *sizes)]
        distances = off_the_line((BASE, *sizes), [middle(runs, name, "cpu_seconds") for name in names])
        for size, name, distance in list(zip((BASE, *sizes), names, distances))[1:]:
            growth = middle(runs, name, "peak_memory_mb") - middle(runs, names[0], "peak_memory_mb")
            seconds, peak = median_cells(runs, name, cpu_seconds=1, peak_memory_mb=0)
            per_row = f"{growth * 2**20 / (size - BASE):.0f}"
            lines.append([stage, f"{size:,}", seconds, f"{distance:+.0%}", peak, per_row])
    return markdown(["stage", "pairs", "CPU s", "off the line", "peak MB", "bytes a row"], lines)


def pair_case(stage: str, size: int) -> str:
    """Return the name of a measurement."""
    return f"{stage}, {size} pairs"


def off_the_line(sizes: Sequence[int], seconds: Sequence[float]) -> list[float]:
    """Return the relative distance of each point from the straight line through the first and the last one."""
    slope = (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0]) if len(sizes) > 1 else 0.0
    line = [seconds[0] + slope * (size - sizes[0]) for size in sizes]
    return [(measured - expected) / expected for measured, expected in zip(seconds, line)]


def pipeline_table(runs: Runs, series: str, sizes: Sequence[int], unit: int) -> str:
    """Return a table with seconds, time per unit of work, distance from the line, and peak memory."""
    names = [f"{series} x {size}" for size in sizes]
    seconds, peaks = ([middle(runs, name, key) for name in names] for key in ("seconds", "peak_memory_mb"))
    lines = [
        [name, f"{total:.1f}", f"{1000 * total / (size * unit):.2f}", f"{distance:+.1%}", f"{peak:.0f}"]
        for name, size, total, distance, peak in zip(names, sizes, seconds, off_the_line(sizes, seconds), peaks)
    ]
    unit_name = "ms a row of each task" if series == "rows" else "ms a member"
    return markdown(["work", "s", unit_name, "off the line", "peak MB"], lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser_of(__doc__, repeats=3)
    parser.add_argument("--rows", type=int, default=2000, help="training rows of each task at x 1")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--rows-sizes", nargs="*", type=int, default=[1, 2, 4, 8], help="multiples of --rows")
    parser.add_argument("--members-sizes", nargs="*", type=int, default=[1, 5, 10], help="numbers of members")
    parser.add_argument("--pairs", nargs="*", type=int, default=[10**5, 10**6], help="sizes of the files of pairs")
    args = parser.parse_args(argv)
    work = {f"rows x {size}": (size * args.rows, 1) for size in args.rows_sizes}
    work |= {f"members x {size}": (args.rows, size) for size in args.members_sizes}
    runs: Runs = {name: [] for name in work}
    for turn in range(1, args.repeats + 1):  # before torch is imported: a child's peak includes the parent's memory
        for size in (BASE, *args.pairs) if args.pairs else ():
            for stage, cost in run_pairs(size, args.threads).items():
                runs.setdefault(pair_case(stage, size), []).append(cost)
                print(f"turn {turn}, {pair_case(stage, size)}: {cost}", file=sys.stderr, flush=True)
    for turn in range(1, args.repeats + 1):
        for name, (rows, members) in work.items():
            runs[name].append(run_pipeline(rows, members, args.epochs, args.threads))
            print(f"turn {turn}, {name}: {runs[name][-1]['seconds']:.1f} s", file=sys.stderr, flush=True)
    cases = [Case(name, (f"rows={r}", f"members={m}"), "the whole pipeline") for name, (r, m) in work.items()]
    cases += [Case(name, (), "a stage") for name in runs if name not in work]
    tables = [
        pipeline_table(runs, "rows", args.rows_sizes, args.rows),
        pipeline_table(runs, "members", args.members_sizes, 1),
        pairs_table(runs, args.pairs),
    ]
    common.report("growth", args, cases, runs, tables)


if __name__ == "__main__":
    main()
