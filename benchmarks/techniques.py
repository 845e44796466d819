"""Effect of each technique on real data, on against off, at one budget; techniques.yaml has the rows.

    python benchmarks/techniques.py run --data path/to/course-data --encoder path/to/encoder --seeds 1 2
    python benchmarks/techniques.py table

`run` trains every row with every seed, writes one small file per run to benchmarks/techniques/, and skips existing
ones. `table` prints them as Markdown. training.py measures what a technique costs.
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from common import HERE, PREPARE, ROOT, markdown, run_stages

from bertrio.config import build_tasks, load_params, merged, read_yaml
from bertrio.core.files import read_json, write_json
from bertrio.evaluation.metrics import evaluate_predictions
from bertrio.evaluation.predictions import read_predictions

RESULTS = HERE / "techniques"
SPEC = read_yaml(HERE / "techniques.yaml")
METRICS = {"sst": "accuracy", "qqp": "accuracy", "sts": "pearson"}


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
        run_stages(folder, base, *PREPARE)
        for test in folder.glob("data/splits/*/test.parquet"):  # the table shows dev alone
            pd.read_parquet(test).head(0).to_parquet(test)
        (folder / "ready").touch()
    return folder, base


def finetune(row: str, seed: int, folder: Path, prepared: Path, base: dict[str, Any]) -> dict[str, Any]:
    """Train one row in its own folder, and return its dev metrics and costs."""
    for name in ("data/splits", "models/tokenizer", "models/prefinetuned"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if not (folder / name).exists():
            (folder / name).symlink_to(prepared / name)
    params = merged(merged(base, {"runtime": {"seed": seed}}), SPEC["rows"][row])
    run_stages(folder, params, "finetune --member base")
    tasks = build_tasks(load_params(folder / "params.yaml"))
    predictions = read_predictions(folder / "predictions/members/base/predictions.parquet")
    conflicts = pd.read_csv(folder / "plots/conflicts/base.csv")
    result = {
        "row": row,
        "seed": seed,
        "dev": evaluate_predictions(predictions, tasks)["dev"],
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


def table(args: argparse.Namespace) -> None:
    """Print a Markdown table with means over seeds and differences from `plain`; then conflict rates."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(RESULTS.glob("*.json")):
        result = read_json(path)
        runs.setdefault(result["row"], []).append(result)

    def overall(row: str) -> float:
        return float(np.mean([result["dev"]["overall_normalized"] for result in runs[row]]))

    lines = []
    for row in (row for row in SPEC["rows"] if row in runs):
        tasks = SPEC["rows"][row].get("schedule", {}).get("tasks", METRICS)
        scores = [
            f"{np.mean([result['dev'][task][metric] for result in runs[row]]):.3f}" if task in tasks else ""
            for task, metric in METRICS.items()
        ]
        trains_all = len(tasks) == len(METRICS)
        overall_cells = [f"{overall(row):.4f}", f"{overall(row) - overall('plain'):+.4f}"] if trains_all else ["", ""]
        lines.append([row, str(len(runs[row])), *scores, *overall_cells])
    print(markdown(["row", "seeds", "SST", "QQP", "STS", "overall_normalized", "against plain"], lines))
    for row, results in runs.items():
        rates = pd.DataFrame([result["conflict_rate"] for result in results if "conflict_rate" in result])
        if len(rates):
            means = ", ".join(f"{pair} {rate:.2f}" for pair, rate in rates.mean().items())
            print(f"{row}: share of steps in conflict {means}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run_parser = commands.add_parser("run", help=run.__doc__)
    run_parser.add_argument("--data", required=True, help="folder of the course's data")
    run_parser.add_argument("--encoder", required=True, help="folder of the encoder")
    run_parser.add_argument("--rows", nargs="+", default=list(SPEC["rows"]), choices=list(SPEC["rows"]))
    run_parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    run_parser.add_argument("--threads", type=int, default=1)
    run_parser.add_argument("--workers", type=int, default=os.cpu_count())
    run_parser.add_argument("--work", default=".benchmarks/techniques", help="folder of the runs")
    run_parser.set_defaults(command=run)
    commands.add_parser("table", help=table.__doc__).set_defaults(command=table)
    args = parser.parse_args()
    args.command(args)


if __name__ == "__main__":
    main()
