"""Dev score and time of whole epochs on one task, for bertrio and transformers' Trainer.

    python benchmarks/scores.py --data path/to/course-data --encoder path/to/encoder --epochs 1 --repeats 3

Both train on all rows from the same encoder, with the same batch size, learning rate, warm-up and decay. The number of
a turn is its seed; scores are means over the seeds, times medians. Scores also differ by pooling: Trainer's model reads
the encoder's pooler, ours follows `encoder.pooling`, and `--pooling pooler` makes them the same. Trainer always runs
(extra: peers).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import mean, stdev

import common
from common import Case, Runs, median_cells


def cases(tasks: Sequence[str], epochs: int, pooling: str | None = None) -> list[Case]:
    """Return the cases of both sides on each task; `pooling` overrides that of ours."""
    all_cases, encoder = [], {"encoder": {"pooling": pooling}} if pooling else {}
    for task in tasks:
        options = ("--task", task, "--epochs", str(epochs))
        ours = ("ours.py", "score", *options, "--set", json.dumps({"schedule": {"tasks": [task]}, **encoder}))
        peer = ("peers/hf_trainer.py", *options)
        all_cases.append(Case(task, ours, f"{epochs} epochs of ours on {task}"))
        all_cases.append(Case(f"Trainer: {task}", peer, f"{epochs} epochs of transformers' Trainer on {task}"))
    return all_cases


def tables(runs: Runs) -> list[str]:
    """Return a table with scores, their difference, and times of all tasks that both sides ran."""
    lines = []
    for task in runs:
        if (peer := f"Trainer: {task}") not in runs:
            continue
        sides = [[run["score"] for run in runs[name]] for name in (task, peer)]
        seconds, peer_seconds = ([run["seconds"] for run in runs[name]] for name in (task, peer))
        cells = [f"{mean(scores):.4f} ± {stdev(scores) if len(scores) > 1 else 0:.4f}" for scores in sides]
        cells.append(f"{mean(sides[0]) - mean(sides[1]):+.4f}")
        cells += [*median_cells(runs, task, seconds=0), *median_cells(runs, peer, seconds=0)]
        lines.append([task, *cells, common.ratio_cell(peer_seconds, seconds)])
    header = ["task", "ours, dev", "Trainer, dev", "difference", "ours, s", "Trainer, s", "times as fast"]
    return [common.markdown(header, lines)]


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser_of(__doc__, repeats=3)
    common.add_model_options(parser)
    common.add_runtime_options(parser)
    common.add_case_options(parser)
    parser.add_argument("--epochs", type=common.at_least_one, default=1)
    parser.add_argument("--tasks", nargs="+", default=["sst", "sts"], help="tasks to train on and to score")
    parser.add_argument("--pooling", help="pooling of our encoder; pooler: as Trainer's model")
    args = parser.parse_args(argv)
    common.run_benchmark("scores", args, cases(args.tasks, args.epochs, args.pooling), tables)


if __name__ == "__main__":
    main()
