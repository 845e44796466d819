"""Growth of cost with work: the whole pipeline on 1, 2, 4, 8 times the rows, and with 1, 5, 10 members.

    python benchmarks/growth.py

Seconds come from the timing files of the stages. `off the line` is the relative distance of the median from the
straight line through the first and the last size; fixed costs are part of the line.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import ROOT, Case, Runs, environment, markdown, middle, parser_of, report

PREPARE = ("check", "download", "split", "pretrain_mlm", "prefinetune")
SERIES = {"rows": (1, 2, 4, 8), "members": (1, 5, 10)}


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
    args = parser.parse_args(argv)
    args.argv = list(argv)
    work = {f"rows x {size}": (size * args.rows, 1) for size in args.rows_sizes}
    work |= {f"members x {size}": (args.rows, size) for size in args.members_sizes}
    runs: Runs = {name: [] for name in work}
    for turn in range(1, args.repeats + 1):
        for name, (rows, members) in work.items():
            runs[name].append(run_pipeline(params_of(rows, members, args.epochs), members, args.threads))
            print(f"turn {turn}, {name}: {runs[name][-1]['seconds']:.1f} s", file=sys.stderr, flush=True)
    picked = [Case(name, (f"rows={r}", f"members={m}"), "the whole pipeline") for name, (r, m) in work.items()]
    tables = [
        table(runs, "rows", args.rows_sizes, args.rows),
        table(runs, "members", args.members_sizes, 1),
    ]
    report("growth", args, picked, runs, tables)


if __name__ == "__main__":
    main(sys.argv[1:])
