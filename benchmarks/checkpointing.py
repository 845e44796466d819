"""Cost of checkpoints: seconds and megabytes of a save, and its share of training time.

    python benchmarks/checkpointing.py --data path/to/course-data --encoder path/to/all-MiniLM-L6-v2

Joint steps of all tasks run in blocks, and every other block begins with a save. `save, s` is the time for which
training stops. `with what follows, s` is the difference in time between blocks with and without a save: it includes the
effect of a save on the following steps, and the noise of the steps. The share is that of the larger of the two, for one
save every `checkpoints.minutes` of params.yaml. As in the stage, the state has weights, both moments of the optimizer,
and the weights of the best epoch so far. Its folder is that of the stage, unless --folder names another.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from statistics import mean
from typing import Any

from case import case_parser, trainer_of, wait_for, write_result
from common import (
    ROOT,
    Case,
    Runs,
    add_model_options,
    add_runtime_options,
    markdown,
    measure,
    middle,
    parser_of,
    prepared,
    report,
)

AIM = 0.02  # share of training time


class Blocks:
    """Step callback that saves at the beginning of every other block, and times blocks and saves.

    Args:
        checkpoints: writes the saves.
        warmup: steps before the first block, which has no save.
        length: steps of a block.
        device: synchronized before each reading of the time.
    """

    def __init__(self, checkpoints: Any, warmup: int, length: int, device: Any) -> None:
        self._checkpoints, self._warmup, self._length, self._device = checkpoints, warmup, length, device
        self._began: list[float] = []
        self.saves: list[float] = []

    def __call__(self, step: int) -> None:
        block, inside = divmod(step - self._warmup, self._length)
        if inside or block < 0:
            return
        wait_for(self._device)
        self._began.append(time.perf_counter())
        if block % 2:
            self._checkpoints.after_step(step, force=True)
            self.saves.append(time.perf_counter() - self._began[-1])

    def seconds(self) -> tuple[list[float], list[float]]:
        """Return the seconds of blocks without a save, and of blocks with one."""
        lengths = [end - begin for begin, end in zip(self._began, self._began[1:])]
        return lengths[::2], lengths[1::2]


def case(args: argparse.Namespace) -> dict[str, Any]:
    """Train as the stage `finetune` does, without scoring, with saves."""
    from bertrio.config.groups import CheckpointParams
    from bertrio.training.checkpoints import VARIABLE, Checkpoints
    from bertrio.training.evaluator import Selection

    args.steps = 2 * args.saves * args.block
    trainer, model, _, runtime = trainer_of(args)
    best = Selection("overall_normalized", "dev")
    best.weights = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
    os.environ |= {VARIABLE: args.folder} if args.folder else {}
    options = CheckpointParams(minutes=None, steps=None)
    opened = Checkpoints.open("benchmark", {"process": os.getpid()}, options, runtime)
    with opened as checkpoints, checkpoints.resumed({"trainer": trainer, "best": best}):
        trainer.checkpoint = blocks = Blocks(checkpoints, args.warmup, args.block, runtime.device)
        for _ in trainer.run("benchmark"):
            pass
        sizes = [path.stat().st_size for path in checkpoints.folder.glob("step-*.safetensors")]
        files = len(list(checkpoints.folder.glob("step-*.safetensors")))
        checkpoints.finish()
    if len(blocks.saves) != args.saves or not files:
        sys.exit(f"{checkpoints.folder}: {len(blocks.saves)} saves, {files} files, expected {args.saves}")
    plain, saved = map(mean, blocks.seconds())
    return {
        "seconds": mean(blocks.saves),
        "with_what_follows": saved - plain,
        "saves": blocks.saves,
        "ms_per_step": 1000 * plain / args.block,
        "megabytes": sum(sizes) / files / 2**20,
        "runtime": runtime.describe(),
    }


def table(runs: Runs, minutes: float) -> str:
    """Return a table with size, time and share of a save, and the epoch length for which its share is `AIM`."""
    lines = []
    for name in runs:
        save, after = (middle(runs, name, key) for key in ("seconds", "with_what_follows"))
        cost = max(save, after)
        cells = [f"{middle(runs, name, 'megabytes'):.0f}", f"{save:.2f}", f"{after:.2f}"]
        cells += [
            f"{middle(runs, name, 'ms_per_step'):.0f}",
            f"{cost / (60 * minutes + cost):.2%}",
            f"{cost / AIM:.0f}",
        ]
        lines.append([name, *cells])
    share = f"share, every {minutes:g} minutes"
    header = [
        "case",
        "MB",
        "save, s",
        "with what follows, s",
        "ms a step",
        share,
        f"s of an epoch for {AIM:.0%} at its end",
    ]
    return markdown(header, lines)


def main(argv: Sequence[str]) -> None:
    """Run the benchmark or, with `case` as its first argument, one case."""
    if list(argv[:1]) == ["case"]:
        parser = _with_options(case_parser(__doc__))
        args = parser.parse_args(argv[1:])
        return write_result(args, case(args))
    from bertrio.config import read_yaml

    parser = _with_options(parser_of(__doc__, repeats=3))
    add_model_options(parser)
    add_runtime_options(parser)
    args = parser.parse_args(argv)
    args.argv = list(argv)
    options = [
        "--saves",
        str(args.saves),
        "--block",
        str(args.block),
        *(["--folder", args.folder] if args.folder else []),
    ]
    picked = [
        Case("joint", ("checkpointing.py", "case", *options), "joint steps of all tasks, with a save now and then")
    ]
    with prepared(args) as work:
        runs = measure(picked, args, ["--work", str(work)])
    minutes = read_yaml(ROOT / "params.yaml")["checkpoints"]["minutes"]
    report("checkpointing", args, picked, runs, [table(runs, minutes)])


def _with_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("--saves", type=int, default=6, help="saves per turn")
    parser.add_argument("--block", type=int, default=20, help="steps from one save to the next block without one")
    parser.add_argument("--folder", help="folder of checkpoints; by default the user's cache folder")
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])
