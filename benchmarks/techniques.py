"""Measures each technique on real data, on against off, at one budget: see techniques.yaml.

    python benchmarks/techniques.py run --data path/to/course-data --encoder path/to/encoder --seeds 1 2
    python benchmarks/techniques.py time --data path/to/course-data --encoder path/to/encoder
    python benchmarks/techniques.py table

`run` trains every row with every seed and keeps one small file a run in benchmarks/techniques/; runs that are there
already are not run again. `time` takes a few steps of every row, alone on the machine, for seconds a step and peak
memory. `table` prints both as Markdown.
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
    """Runs a stage script in `folder`; its output goes to a log there, which an error names."""
    log = folder / f"{name}.log"
    with open(log, "w") as file:
        command = [sys.executable, str(ROOT / "stages" / f"{name}.py"), *args]
        if subprocess.run(command, cwd=folder, stdout=file, stderr=subprocess.STDOUT).returncode:
            sys.exit(f"{name} failed: {log}:\n{log.read_text()[-2000:]}")


def write_params(folder: Path, params: dict[str, Any]) -> None:
    """Makes `folder` a place to run stages in."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))


def prepare(args: argparse.Namespace) -> tuple[Path, dict[str, Any]]:
    """Reads and splits the data once for all rows; returns the folder and the params that all rows start from."""
    own = {
        "data": {"source": "cs224n", "path": str(Path(args.data).resolve())},
        "encoder": {"name": str(Path(args.encoder).resolve())},
        "runtime": {"threads": args.threads},
    }
    base = merged(merged(read_yaml(ROOT / "params.yaml"), own), SPEC["budget"])
    folder = Path(args.work).resolve() / "prepared"
    if not (folder / "ready").exists():
        write_params(folder, base)
        for name in PREPARE:
            stage(folder, name)
        splits = folder / "data" / "splits"
        for test in splits.glob("*/test.parquet"):  # dev is what the table shows
            pd.read_parquet(test).head(0).to_parquet(test)
        shutil.copytree(splits, folder / "timed" / "splits")
        for dev in (folder / "timed" / "splits").glob("*/dev.parquet"):  # steps are what is timed
            pd.read_parquet(dev).head(32).to_parquet(dev)
        (folder / "ready").touch()
    return folder, base


def finetune(
    row: str, seed: int, place: Path, prepared: Path, base: dict[str, Any], splits: str = "data/splits"
) -> dict[str, Any]:
    """Trains one row in a folder of its own; returns its dev metrics and costs."""
    write_params(place, merged(merged(base, {"runtime": {"seed": seed}}), SPEC["rows"][row]))
    for name in ("data", "models"):
        (place / name).mkdir(exist_ok=True)
    links = {
        "data/splits": splits,
        "models/tokenizer": "models/tokenizer",
        "models/prefinetuned": "models/prefinetuned",
    }
    for name, to in links.items():
        if not (place / name).exists():
            (place / name).symlink_to(prepared / to)
    stage(place, "finetune", "--member", "base")
    tasks = build_tasks(load_params(place / "params.yaml"))
    table = read_predictions(place / "predictions/members/base/predictions.parquet")
    conflicts = pd.read_csv(place / "plots/conflicts/base.csv")
    result = {
        "row": row,
        "seed": seed,
        "dev": evaluate_predictions(table, tasks)["dev"],
        "cost": read_json(place / "metrics/timing/finetune-base.json"),
    }
    if len(conflicts):
        result["conflict_rate"] = {
            f"{a}-{b}": float(np.mean(pair["cosine"] < 0)) for (a, b), pair in conflicts.groupby(["task_a", "task_b"])
        }
    return result


def run(args: argparse.Namespace) -> None:
    """All rows with all seeds, `--workers` at a time."""
    prepared, base = prepare(args)
    jobs = [(row, seed) for seed in args.seeds for row in args.rows if not (RESULTS / f"{row}-{seed}.json").exists()]

    def job(of: tuple[str, int]) -> None:
        row, seed = of
        result = finetune(row, seed, Path(args.work).resolve() / f"{row}-{seed}", prepared, base)
        result["cost"] = {"threads": args.threads, "workers": args.workers, **result["cost"]}
        write_json(RESULTS / f"{row}-{seed}.json", result, digits=6)
        print(f"{row} seed {seed}: {result['dev']['overall_normalized']:.4f}", flush=True)

    with ThreadPoolExecutor(args.workers) as pool:
        list(pool.map(job, jobs))


def time(args: argparse.Namespace) -> None:
    """A few steps of each row, one after the other."""
    prepared, base = prepare(args)
    short = merged(base, {"schedule": {"max_batches": TIMED_BATCHES}})
    for row in args.rows:
        options = SPEC["rows"][row].get("schedule", {})
        now = merged(short, {"schedule": {"steps": 3 * TIMED_BATCHES}}) if "steps" in options else short
        place = Path(args.work).resolve() / f"time-{row}"
        cost = finetune(row, 1, place, prepared, now, "timed/splits")["cost"]
        write_json(RESULTS / "time" / f"{row}.json", {"row": row, "threads": args.threads, **cost}, digits=1)
        print(f"{row}: {cost['ms_per_step']:.0f} ms a step, {cost['peak_memory_mb']:.0f} MB", flush=True)


def table(args: argparse.Namespace) -> None:
    """The results as a Markdown table: means over seeds, differences to `plain`, the spread of its seeds below."""
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
        told_overall = [f"{overall:.4f}", f"{overall - plain:+.4f}"] if len(trains) == len(columns) else ["", ""]
        timing = RESULTS / "time" / f"{row}.json"
        cost = read_json(timing) if timing.exists() else {}
        told = [
            f"{cost[key]:.0f}" if key in cost else "" for key in ("ms_per_step", "rows_per_second", "peak_memory_mb")
        ]
        print(f"| {' | '.join([row, str(len(runs[row])), *scores, *told_overall, *told])} |")
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
        sub.add_argument("--data", required=True, help="the course's folder")
        sub.add_argument("--encoder", required=True, help="a folder or hub id")
        sub.add_argument("--rows", nargs="+", default=list(SPEC["rows"]), choices=list(SPEC["rows"]))
        sub.add_argument("--seeds", nargs="+", type=int, default=[1])
        sub.add_argument("--threads", type=int, default=1 if command is run else os.cpu_count())
        sub.add_argument("--workers", type=int, default=os.cpu_count() if command is run else 1)
        sub.add_argument("--work", default=".benchmarks/techniques", help="where the runs are kept")
        sub.set_defaults(command=command)
    commands.add_parser("table", help=table.__doc__).set_defaults(command=table)
    args = parser.parse_args()
    args.command(args)


if __name__ == "__main__":
    main()
