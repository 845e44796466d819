"""Speed of `bertrio predict` and `bertrio mine`, without loading the model.

    python benchmarks/prediction.py --data path/to/course-data --encoder path/to/encoder --threads 1

`predict` reads dev rows from TSV and writes them with predictions of untrained heads; the time includes tokenising and
writing. `mine` is the search alone, on random vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

import common
from common import TASKS, Case, Runs, markdown, median_cells, rate_cell


def cases(sentences: int, width: int) -> list[Case]:
    """Return all cases in the order of their runs."""
    predictions = [
        Case(f"{task}, {precision}", ("ours.py", "predict", "--task", task, "--precision", precision), "predict_file")
        for task in TASKS
        for precision in ("bf16", "float32")
    ]
    search = ("ours.py", "mine", "--sentences", str(sentences), "--width", str(width))
    return [*predictions, Case(f"mine, {sentences:,} x {width}", search, "most_similar")]


def tables(runs: Runs) -> list[str]:
    """Return two tables: rows per second of predictions, and seconds of the search."""
    searches = [name for name in runs if name.startswith("mine")]
    predicted = [
        [name, rate_cell(runs, name, 0), *median_cells(runs, name, peak_memory_mb=0)]
        for name in runs
        if name not in searches
    ]
    mined = [[name, *median_cells(runs, name, seconds=1, cpu_seconds=1, peak_memory_mb=0)] for name in searches]
    header = ["search", "seconds", "CPU seconds", "peak MB"]
    return [markdown(["predict", "rows/s", "peak MB"], predicted), markdown(header, mined)]


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser_of(__doc__)
    common.add_model_options(parser)
    common.add_case_options(parser)
    parser.add_argument("--sentences", type=int, default=100_000, help="number of vectors that mine compares")
    parser.add_argument("--width", type=int, default=384, help="size of the vectors")
    args = parser.parse_args(argv)
    common.run_benchmark("prediction", args, cases(args.sentences, args.width), tables)


if __name__ == "__main__":
    main()
