"""Speed of `bertrio predict` and `bertrio mine`, without loading the model.

    python benchmarks/prediction.py --data path/to/course-data --encoder path/to/encoder --threads 1

`predict` reads dev rows from TSV and writes them with predictions of untrained heads; the time includes tokenising and
writing. `mine` is the search alone, on random vectors.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import median

from common import (
    TASKS,
    Case,
    Runs,
    add_case_options,
    add_model_options,
    chosen,
    markdown,
    measure,
    middle,
    parser_of,
    prepared,
    rates,
)
from common import report as write_report

PRECISIONS = ("bf16", "float32")


def cases(sentences: int, width: int) -> list[Case]:
    """Return all cases in the order of their runs."""
    predictions = [
        Case(
            f"{task}, {precision}", ("answered.py", "predict", "--task", task, "--precision", precision), "predict_file"
        )
        for task in TASKS
        for precision in PRECISIONS
    ]
    size = ("--sentences", str(sentences), "--width", str(width))
    search = ("answered.py", "mine", *size)
    return [*predictions, Case(f"mine, {sentences:,} x {width}", search, "most_similar")]


def tables(runs: Runs) -> list[str]:
    """Return two tables: rows per second of predictions, and seconds of the search."""
    predictions = [
        [name, f"{median(rates(runs, name)):.0f}", f"{middle(runs, name, 'peak_memory_mb'):.0f}"]
        for name in runs
        if not name.startswith("mine")
    ]
    mined = [
        [
            name,
            *(f"{middle(runs, name, key):.1f}" for key in ("seconds", "cpu_seconds")),
            f"{middle(runs, name, 'peak_memory_mb'):.0f}",
        ]
        for name in runs
        if name.startswith("mine")
    ]
    header = ["search", "seconds", "CPU seconds", "peak MB"]
    return [markdown(["predict", "rows/s", "peak MB"], predictions), markdown(header, mined)]


def main(argv: Sequence[str]) -> None:
    parser = parser_of(__doc__)
    add_model_options(parser)
    add_case_options(parser)
    parser.add_argument("--sentences", type=int, default=100_000, help="number of vectors that mine compares")
    parser.add_argument("--width", type=int, default=384, help="size of the vectors")
    args = parser.parse_args(argv)
    args.argv = list(argv)
    picked = chosen(cases(args.sentences, args.width), args.only)
    with prepared(args) as work:
        runs = measure(picked, args, ["--work", str(work)])
    write_report("prediction", args, picked, runs, tables(runs))


if __name__ == "__main__":
    main(sys.argv[1:])
