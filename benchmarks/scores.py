"""Dev score and time of whole epochs on one task, for bertrio and transformers' Trainer.

    python benchmarks/scores.py --data path/to/course-data --encoder path/to/encoder --epochs 1 --repeats 3

Both train on all rows from the same encoder, with the same batch size, learning rate, warm-up and decay. The number of
a turn is its seed; scores are means over the seeds, times medians. Scores also differ by pooling: Trainer's model reads
the encoder's pooler, ours follows `encoder.pooling`, and `--pooling pooler` makes them the same. Trainer always runs
(extra: peers).
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
    """Return the cases of both sides on each task; `pooling` overrides that of ours."""
    all_cases, options = [], ("--epochs", str(epochs))
    encoder = {"encoder": {"pooling": pooling}} if pooling else {}
    for task in tasks:
        arguments = ("--task", task, *options, "--set", json.dumps({"schedule": {"tasks": [task]}, **encoder}))
        all_cases.append(Case(task, ("ours.py", "score", *arguments), f"{epochs} epochs of ours on {task}"))
        peer = ("peers/hf_trainer.py", "--task", task, *options)
        all_cases.append(Case(f"Trainer: {task}", peer, f"{epochs} epochs of transformers' Trainer on {task}"))
    return all_cases


def table(runs: Runs, tasks: Sequence[str]) -> str:
    """Return a table with scores, their difference, and times of all tasks that both sides ran."""
    lines = []
    for task in tasks:
        if not {task, f"Trainer: {task}"} <= set(runs):
            continue
        ours, peer = ([run["score"] for run in runs[name]] for name in (task, f"Trainer: {task}"))
        times = [[run["seconds"] for run in runs[name]] for name in (task, f"Trainer: {task}")]
        cells = [f"{mean(scores):.4f} ± {stdev(scores) if len(scores) > 1 else 0:.4f}" for scores in (ours, peer)]
        seconds = [f"{median(side):.0f}" for side in times]
        lines.append([task, *cells, f"{mean(ours) - mean(peer):+.4f}", *seconds, ratio_cell(times[1], times[0])])
    header = ["task", "ours, dev", "Trainer, dev", "difference", "ours, s", "Trainer, s", "times as fast"]
    return markdown(header, lines)


def main(argv: Sequence[str]) -> None:
    parser = parser_of(__doc__, repeats=3)
    add_model_options(parser)
    add_runtime_options(parser)
    add_case_options(parser)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--tasks", nargs="+", default=["sst", "sts"], help="tasks to train on and to score")
    parser.add_argument("--pooling", help="pooling of our encoder; pooler: as Trainer's model")
    args = parser.parse_args(argv)
    args.argv = list(argv)
    picked = chosen(cases(args.tasks, args.epochs, args.pooling), args.only)
    with prepared(args) as work:
        runs = measure(picked, args, ["--work", str(work)])
    report("scores", args, picked, runs, [table(runs, args.tasks)])


if __name__ == "__main__":
    main(sys.argv[1:])
