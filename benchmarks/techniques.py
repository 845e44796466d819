"""Effect of each technique on real data, on against off, at one budget; techniques.yaml has the rows.

    python benchmarks/techniques.py run --data path/to/course-data --encoder path/to/encoder --seeds 1 2
    python benchmarks/techniques.py time --data path/to/course-data --encoder path/to/encoder
    python benchmarks/techniques.py table

`run` trains every row with every seed, writes one small file per run to benchmarks/techniques/, and skips existing
ones. `time` measures time per step and peak memory over a few steps of every row, alone on the machine. `table` prints
both as Markdown.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

import numpy as np
import pandas as pd
import yaml

from bertrio.config import build_tasks, load_params, merged, read_yaml
from bertrio.core.files import read_json, write_json
from bertrio.evaluation.metrics import evaluate_predictions
from bertrio.evaluation.predictions import read_predictions

RESULTS = ROOT / "benchmarks" / "techniques"
SPEC = read_yaml(ROOT / "benchmarks" / "techniques.yaml")
PREPARE = ("check", "download", "split", "pretrain_mlm", "prefinetune")
TIMED_BATCHES = 20


def stage(folder: Path, name: str, *args: str) -> None:
    """Run a stage script in `folder`, with a log file there."""
    log = folder / f"{name}.log"
    with open(log, "w") as file:
        command = [sys.executable, str(ROOT / "stages" / f"{name}.py"), *args]
        if subprocess.run(command, cwd=folder, stdout=file, stderr=subprocess.STDOUT).returncode:
            sys.exit(f"{name} failed: {log}:\n{log.read_text()[-2000:]}")


def write_params(folder: Path, params: dict[str, Any]) -> None:
    """Create `folder` and its params.yaml."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))


def prepare(args: argparse.Namespace) -> tuple[Path, dict[str, Any]]:
    """Run the stages before fine-tuning once for all rows, and return their folder and the base params."""
    overrides = {
        "data": {"source": "cs224n", "path": str(Path(args.data).resolve())},
        "encoder": {"name": str(Path(args.encoder).resolve())},
        "runtime": {"threads": args.threads},
    }
    base = merged(merged(read_yaml(ROOT / "params.yaml"), overrides), SPEC["budget"])
    folder = Path(args.work).resolve() / "prepared"
    if not (folder / "ready").exists():
        write_params(folder, base)
        for name in PREPARE:
            stage(folder, name)
        splits = folder / "data" / "splits"
        for test in splits.glob("*/test.parquet"):  # the table shows dev alone
            pd.read_parquet(test).head(0).to_parquet(test)
        shutil.copytree(splits, folder / "timed" / "splits")
        for dev in (folder / "timed" / "splits").glob("*/dev.parquet"):  # scoring is not timed
            pd.read_parquet(dev).head(32).to_parquet(dev)
        (folder / "ready").touch()
    return folder, base


def finetune(
    row: str, seed: int, folder: Path, prepared: Path, base: dict[str, Any], splits: str = "data/splits"
) -> dict[str, Any]:
    """Train one row in its own folder, and return its dev metrics and costs."""
    write_params(folder, merged(merged(base, {"runtime": {"seed": seed}}), SPEC["rows"][row]))
    for name in ("data", "models"):
        (folder / name).mkdir(exist_ok=True)
    links = {
        "data/splits": splits,
        "models/tokenizer": "models/tokenizer",
        "models/prefinetuned": "models/prefinetuned",
    }
    for name, target in links.items():
        if not (folder / name).exists():
            (folder / name).symlink_to(prepared / target)
    stage(folder, "finetune", "--member", "base")
    tasks = build_tasks(load_params(folder / "params.yaml"))
    table = read_predictions(folder / "predictions/members/base/predictions.parquet")
    conflicts = pd.read_csv(folder / "plots/conflicts/base.csv")
    result = {
        "row": row,
        "seed": seed,
        "dev": evaluate_predictions(table, tasks)["dev"],
        "cost": read_json(folder / "metrics/timing/finetune-base.json"),
    }
    if len(conflicts):
        result["conflict_rate"] = {
            f"{a}-{b}": float(np.mean(pair["cosine"] < 0)) for (a, b), pair in conflicts.groupby(["task_a", "task_b"])
        }
    return result


def run(args: argparse.Namespace) -> None:
    """Train all rows with all seeds, `--workers` at a time."""
    prepared, base = prepare(args)
    jobs = [(row, seed) for seed in args.seeds for row in args.rows if not (RESULTS / f"{row}-{seed}.json").exists()]

    def run_job(job: tuple[str, int]) -> None:
        row, seed = job
        result = finetune(row, seed, Path(args.work).resolve() / f"{row}-{seed}", prepared, base)
        result["cost"] = {"threads": args.threads, "workers": args.workers, **result["cost"]}
        write_json(RESULTS / f"{row}-{seed}.json", result, digits=6)
        print(f"{row} seed {seed}: {result['dev']['overall_normalized']:.4f}", flush=True)

    with ThreadPoolExecutor(args.workers) as pool:
        list(pool.map(run_job, jobs))


def time(args: argparse.Namespace) -> None:
    """Time a few steps of each row, one row at a time."""
    prepared, base = prepare(args)
    short = merged(base, {"schedule": {"max_batches": TIMED_BATCHES}})
    for row in args.rows:
        options = SPEC["rows"][row].get("schedule", {})
        timed = merged(short, {"schedule": {"steps": 3 * TIMED_BATCHES}}) if "steps" in options else short
        folder = Path(args.work).resolve() / f"time-{row}"
        cost = finetune(row, 1, folder, prepared, timed, "timed/splits")["cost"]
        write_json(RESULTS / "time" / f"{row}.json", {"row": row, "threads": args.threads, **cost}, digits=1)
        print(f"{row}: {cost['ms_per_step']:.0f} ms a step, {cost['peak_memory_mb']:.0f} MB", flush=True)


def table(args: argparse.Namespace) -> None:
    """Print a Markdown table with means over seeds, differences from `plain`, and costs; then conflict rates."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(RESULTS.glob("*.json")):
        result = read_json(path)
        runs.setdefault(result["row"], []).append(result)
    columns = [("sst", "accuracy"), ("qqp", "accuracy"), ("sts", "pearson")]
    print("| row | seeds | SST | QQP | STS | overall_normalized | against plain | ms a step | rows/s | peak MB |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    plain = np.mean([result["dev"]["overall_normalized"] for result in runs["plain"]])
    for row in [row for row in SPEC["rows"] if row in runs]:
        trains = SPEC["rows"][row].get("schedule", {}).get("tasks", [task for task, _ in columns])
        scores = [f"{np.mean([r['dev'][task][metric] for r in runs[row]]):.3f}" for task, metric in columns]
        scores = [score if task in trains else "" for score, (task, _) in zip(scores, columns)]
        overall = np.mean([r["dev"]["overall_normalized"] for r in runs[row]])
        overall_cells = [f"{overall:.4f}", f"{overall - plain:+.4f}"] if len(trains) == len(columns) else ["", ""]
        timing = RESULTS / "time" / f"{row}.json"
        cost = read_json(timing) if timing.exists() else {}
        cost_cells = [
            f"{cost[key]:.0f}" if key in cost else "" for key in ("ms_per_step", "rows_per_second", "peak_memory_mb")
        ]
        print(f"| {' | '.join([row, str(len(runs[row])), *scores, *overall_cells, *cost_cells])} |")
    for row, results in runs.items():
        rates = [result["conflict_rate"] for result in results if "conflict_rate" in result]
        if rates:
            means = {pair: np.mean([rate[pair] for rate in rates]) for pair in rates[0]}
            print(f"\n{row}: share of steps in conflict " + ", ".join(f"{p} {m:.2f}" for p, m in means.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (run, time):
        sub = commands.add_parser(command.__name__, help=command.__doc__)
        sub.add_argument("--data", required=True, help="folder of the course data")
        sub.add_argument("--encoder", required=True, help="a folder or hub id")
        sub.add_argument("--rows", nargs="+", default=list(SPEC["rows"]), choices=list(SPEC["rows"]))
        sub.add_argument("--seeds", nargs="+", type=int, default=[1])
        sub.add_argument("--threads", type=int, default=1 if command is run else os.cpu_count())
        sub.add_argument("--workers", type=int, default=os.cpu_count() if command is run else 1)
        sub.add_argument("--work", default=".benchmarks/techniques", help="folder of the runs")
        sub.set_defaults(command=command)
    commands.add_parser("table", help=table.__doc__).set_defaults(command=table)
    args = parser.parse_args()
    args.command(args)


if __name__ == "__main__":
    main()
