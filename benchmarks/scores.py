"""Whole epochs on one task: the score on its dev rows and the time, ours and transformers' Trainer's.

    python benchmarks/scores.py --data path/to/course-data --encoder path/to/encoder --epochs 1 --repeats 3

Both train on all rows from the same encoder, with the same batch size, learning rate, warm-up and decay. A turn is a
seed; scores are means over the seeds, times medians. Speed that is bought with a worse model would show here, and so
would a better model: Trainer's reads the encoder's pooler, ours what `encoder.pooling` says, and `--pooling pooler`
makes the two alike. Trainer always runs (extra: peers).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from statistics import mean, median, stdev

from common import (
    Case,
    Runs,
    add_case_options,
    add_model_options,
    add_runtime_options,
    chosen,
    markdown,
    measure,
    parser_of,
    prepared,
    ratio_cell,
    report,
)


def cases(tasks: Sequence[str], epochs: int, pooling: str | None = None) -> list[Case]:
    """Ours, with its own pooling or another, and Trainer on each task, in the order in which they run."""
    found, asked = [], ("--epochs", str(epochs))
    encoder = {"encoder": {"pooling": pooling}} if pooling else {}
    for task in tasks:
        own = ("--task", task, *asked, "--set", json.dumps({"schedule": {"tasks": [task]}, **encoder}))
        found.append(Case(task, ("ours.py", "score", *own), f"{epochs} epochs of ours on {task}"))
        peer = ("peers/hf_trainer.py", "--task", task, *asked)
        found.append(Case(f"Trainer: {task}", peer, f"{epochs} epochs of transformers' Trainer on {task}"))
    return found


def table(runs: Runs, tasks: Sequence[str]) -> str:
    """Mean and standard deviation of the scores, their difference, and the times, of tasks that both sides ran."""
    lines = []
    for task in tasks:
        if not {task, f"Trainer: {task}"} <= set(runs):
            continue
        ours, peer = ([run["score"] for run in runs[name]] for name in (task, f"Trainer: {task}"))
        times = [[run["seconds"] for run in runs[name]] for name in (task, f"Trainer: {task}")]
        cells = [f"{mean(of):.4f} ± {stdev(of) if len(of) > 1 else 0:.4f}" for of in (ours, peer)]
        seconds = [f"{median(of):.0f}" for of in times]
        lines.append([task, *cells, f"{mean(ours) - mean(peer):+.4f}", *seconds, ratio_cell(times[1], times[0])])
    header = ["task", "ours, dev", "Trainer, dev", "difference", "ours, s", "Trainer, s", "times as fast"]
    return markdown(header, lines)


def main(argv: Sequence[str]) -> None:
    parser = parser_of(__doc__, repeats=3)
    add_model_options(parser)
    add_runtime_options(parser)
    add_case_options(parser)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--tasks", nargs="+", default=["sst", "sts"], help="whose rows to train on and to score")
    parser.add_argument("--pooling", help="of our encoder, in place of params.yaml's; pooler: as Trainer's model")
    args = parser.parse_args(argv)
    args.given = list(argv)
    picked = chosen(cases(args.tasks, args.epochs, args.pooling), args.only)
    with prepared(args) as work:
        runs = measure(picked, args, ["--work", str(work)])
    report("scores", args, picked, runs, [table(runs, args.tasks)])


if __name__ == "__main__":
    main(sys.argv[1:])
