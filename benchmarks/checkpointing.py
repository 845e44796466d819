"""Cost of checkpoints: seconds and megabytes of a save, and its share of training time.

    python benchmarks/checkpointing.py --data path/to/course-data --encoder path/to/all-MiniLM-L6-v2

Joint steps of all tasks run in blocks, and every other block begins with a save. `save, s` is the time for which
training stops. `with what follows, s` is the difference in time between blocks with and without a save: it includes the
effect of a save on the following steps, and the noise of the steps. The share is that of the larger of the two, for one
save every `checkpoints.minutes` of params.yaml. As in the stage, the state has weights, both moments of the optimizer,
and the weights of the best epoch so far. Its folder is that of the stage, unless BERTRIO_CHECKPOINTS names another.
"""

from __future__ import annotations

from collections.abc import Sequence

import common
from common import ROOT, Case, Runs, median_cells, middle

from bertrio.config import read_yaml


def tables(runs: Runs) -> list[str]:
    """Return a table with size, time and share of a save."""
    minutes = read_yaml(ROOT / "params.yaml")["checkpoints"]["minutes"]
    lines = []
    for name in runs:
        cost = max(middle(runs, name, "seconds"), middle(runs, name, "with_what_follows"))
        cells = median_cells(runs, name, megabytes=0, seconds=2, with_what_follows=2, ms_per_step=0)
        lines.append([name, *cells, f"{cost / (60 * minutes + cost):.2%}"])
    header = ["case", "MB", "save, s", "with what follows, s", "ms a step", f"share, every {minutes:g} minutes"]
    return [common.markdown(header, lines)]


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser_of(__doc__, repeats=3)
    common.add_model_options(parser)
    common.add_runtime_options(parser)
    parser.add_argument("--saves", type=int, default=6, help="saves per turn")
    parser.add_argument("--block", type=int, default=20, help="steps from one save to the next block without one")
    args = parser.parse_args(argv)
    command = ("ours.py", "checkpoint", "--saves", str(args.saves), "--block", str(args.block))
    cases = [Case("joint", command, "joint steps of all tasks, with a save in every other block")]
    common.run_benchmark("checkpointing", args, cases, tables)


if __name__ == "__main__":
    main()
