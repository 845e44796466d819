"""What checkpoints cost: seconds and megabytes of a save, and the share of training time that they take.

    python benchmarks/checkpointing.py --data path/to/course-data --encoder path/to/all-MiniLM-L6-v2

Joint steps of all tasks in blocks, every other block with a save at its beginning. `save, s` is the time in which
training stands still; `with what follows, s` is by how much longer a block with a save takes than one without, which
counts what a save leaves behind for the steps after it, and the noise of the steps. The share is that of the larger of
the two, once in every `checkpoints.minutes` of params.yaml. As in the stage, the state holds weights, both moments of
the optimizer, and the weights of the best epoch so far. It is written where the stage writes it, unless --folder names
another place.
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
    """Called after each step: saves at the beginning of every other block, and times blocks and saves.

    Args:
        resume: saves.
        warmup: steps before the first block, which is one without a save.
        length: steps of a block.
        device: waited for where a time is taken.
    """

    def __init__(self, resume: Any, warmup: int, length: int, device: Any) -> None:
        self._resume, self._warmup, self._length, self._device = resume, warmup, length, device
        self._began: list[float] = []
        self.saves: list[float] = []

    def __call__(self, step: int) -> None:
        block, inside = divmod(step - self._warmup, self._length)
        if inside or block < 0:
            return
        wait_for(self._device)
        self._began.append(time.perf_counter())
        if block % 2:
            self._resume.after_step(step, force=True)
            self.saves.append(time.perf_counter() - self._began[-1])

    def seconds(self) -> tuple[list[float], list[float]]:
        """Those of the blocks without a save, and of those with one."""
        lengths = [end - begin for begin, end in zip(self._began, self._began[1:])]
        return lengths[::2], lengths[1::2]


def case(args: argparse.Namespace) -> dict[str, Any]:
    """Trains as the stage `finetune` does, without scoring, and saves."""
    from bertrio.config.groups import CheckpointParams
    from bertrio.training.checkpoints import Checkpoints
    from bertrio.training.evaluator import Selection

    args.steps = 2 * args.saves * args.block
    trainer, kept, _, runtime = trainer_of(args)
    best = Selection("overall_normalized", "dev")
    best.weights = {name: value.detach().cpu().clone() for name, value in kept.state_dict().items()}
    where = CheckpointParams(minutes=None, steps=None, folder=args.folder)
    opened = Checkpoints.open("benchmark", {"process": os.getpid()}, where, runtime)
    with opened as checkpoints, checkpoints.resumed({"trainer": trainer, "best": best}):
        trainer.checkpoint = blocks = Blocks(checkpoints, args.warmup, args.block, runtime.device)
        for _ in trainer.run("benchmark"):
            pass
        sizes = [path.stat().st_size for path in checkpoints.folder.glob("step-*.safetensors")]
        kept_folders = len(list(checkpoints.folder.glob("step-*.safetensors")))
        checkpoints.finish()
    if len(blocks.saves) != args.saves or not kept_folders:
        sys.exit(
            f"{checkpoints.folder}: {len(blocks.saves)} saves, {kept_folders} of them there, expected {args.saves}"
        )
    plain, saved = map(mean, blocks.seconds())
    return {
        "seconds": mean(blocks.saves),
        "with_what_follows": saved - plain,
        "saves": blocks.saves,
        "ms_per_step": 1000 * plain / args.block,
        "megabytes": sum(sizes) / kept_folders / 2**20,
        "runtime": runtime.describe(),
    }


def table(runs: Runs, minutes: float) -> str:
    """A save's size and time, its share of training time, and how long epochs must be for a save at their ends."""
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
    each = f"share, every {minutes:g} minutes"
    header = [
        "case",
        "MB",
        "save, s",
        "with what follows, s",
        "ms a step",
        each,
        f"s of an epoch for {AIM:.0%} at its end",
    ]
    return markdown(header, lines)


def main(argv: Sequence[str]) -> None:
    """The benchmark; with `case` as its first argument, its one case."""
    if list(argv[:1]) == ["case"]:
        parser = _with_options(case_parser(__doc__))
        args = parser.parse_args(argv[1:])
        return write_result(args, case(args))
    from bertrio.config import read_yaml

    parser = _with_options(parser_of(__doc__, repeats=3))
    add_model_options(parser)
    add_runtime_options(parser)
    args = parser.parse_args(argv)
    args.given = list(argv)
    own = ["--saves", str(args.saves), "--block", str(args.block), *(["--folder", args.folder] if args.folder else [])]
    picked = [Case("joint", ("checkpointing.py", "case", *own), "joint steps of all tasks, with a save now and then")]
    with prepared(args) as work:
        runs = measure(picked, args, ["--work", str(work)])
    minutes = read_yaml(ROOT / "params.yaml")["checkpoints"]["minutes"]
    report("checkpointing", args, picked, runs, [table(runs, minutes)])


def _with_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("--saves", type=int, default=6, help="of each turn")
    parser.add_argument("--block", type=int, default=20, help="steps from one save to the next block without one")
    parser.add_argument("--folder", help="where they are written; without it, in the user's cache folder, as ever")
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])
