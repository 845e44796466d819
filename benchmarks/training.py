"""Speed of training steps: rows per second, the cost of each technique, and peers.

    python benchmarks/training.py --peers --data path/to/course-data --encoder path/to/encoder
    python benchmarks/training.py --peers --hidden 768 --layers 12 --batch 128 --fill --device cuda --peak-tflops 989

The first is the table for two cores. The second needs only the repository: a BERT-base of random weights on made-up
texts, each filled up to the length limit, and adds the model FLOP utilisation of the card; `--only sst qqp sts joint`
leaves out the slow cases.

Peers (extra: peers): transformers' Trainer, with its defaults and with batches grouped by length; smart-pytorch and
TorchJD's PCGrad in a plain training loop, on the same batches as ours. Pytorch-PCGrad is on no package index, so it is
left out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from statistics import median
from typing import Any

from common import (
    TASKS,
    Case,
    Runs,
    add_case_options,
    add_model_options,
    add_runtime_options,
    add_step_options,
    chosen,
    markdown,
    measure,
    middle,
    parser_of,
    prepared,
    rates,
    ratio_cell,
    report,
)

SURGERIES = ("pcgrad", "mgda", "upgrad", "imtl_g", "aligned_mtl", "cagrad")
TECHNIQUES = {  # the plain step they extend, and the params that turn them on
    "smart": ("sst", {"smart": {"lambda": 1, "steps": 1, "radius": 1e-3}}),  # a radius above the resolution of bf16
    "smart, every 4": ("sst", {"smart": {"lambda": 1, "steps": 1, "radius": 1e-3, "every": 4}}),
    "bregman": ("sst", {"bregman": {"mu": 1}}),
    "r_drop": ("sst", {"r_drop": {"alpha": 1}}),
    "joint smart": ("joint", {"smart": {"lambda": 1, "steps": 1, "radius": 1e-3}}),
    "uncertainty": ("joint", {"weighting": {"method": "uncertainty"}}),
    **{method: ("joint", {"surgery": {"method": method}}) for method in SURGERIES},
}
OVER = {  # steps to divide by in the table of costs
    **{name: [base] for name, (base, _) in TECHNIQUES.items()},
    **{method: ["joint", "joint, one pass"] for method in SURGERIES},
    "joint, one pass": ["joint"],
    "joint, one pass, matched": ["joint"],
    "loop: sst": ["sst"],
    "loop: joint": ["joint"],
    "loop: smart-pytorch": ["loop: sst", "smart"],
    "loop: smart-pytorch, shuffled": ["smart"],
    "loop: TorchJD pcgrad": ["loop: joint", "pcgrad"],
}


def ours(base: str, params: dict[str, Any]) -> tuple[str, ...]:
    """Return the command of a case of ours on one task, or on all tasks jointly."""
    tasks = list(TASKS) if base == "joint" else [base]
    schedule = {**params.get("schedule", {}), "tasks": tasks}
    return ("ours.py", "train", "--set", json.dumps({**params, "schedule": schedule}))


def loop(method: str, *tasks: str) -> tuple[str, ...]:
    """Return the command of a case of the plain training loop."""
    return ("peers/plain_loop.py", "--method", method, "--set", json.dumps({"schedule": {"tasks": tasks}}))


def cases(peers: bool) -> list[Case]:
    """Return all cases in the order of their runs."""
    all_cases = [Case(task, ours(task, {}), f"our plain step on {task}") for task in TASKS]
    separate, merged = ({"finetune": {"one_pass": merge}} for merge in (False, True))
    all_cases.append(Case("joint", ours("joint", separate), "our step on a batch of each task, a pass for each"))
    all_cases.append(Case("joint, one pass", ours("joint", merged), "the same in one pass, padded to one width"))
    matched = {**merged, "schedule": {"match_lengths": True}}
    all_cases.append(
        Case("joint, one pass, matched", ours("joint", matched), "the same, short rows of all tasks together")
    )
    all_cases.append(
        Case("mlm", ("ours.py", "mlm"), "our step of masked-language-model pretraining, rows being blocks")
    )
    all_cases += [
        Case(name, ours(base, params), f"{name} on top of {base}") for name, (base, params) in TECHNIQUES.items()
    ]
    if peers:
        all_cases += [
            Case(f"Trainer: {task}", ("peers/hf_trainer.py", "--task", task), f"transformers' Trainer on {task}")
            for task in (*TASKS, "mlm")
        ]
        all_cases += [
            Case(
                f"Trainer, grouped: {task}",
                ("peers/hf_trainer.py", "--task", task, "--grouped"),
                f"the same on {task} with batches of similar length",
            )
            for task in TASKS
        ]
        all_cases += [
            Case("loop: sst", loop("plain", "sst"), "a plain step written by hand"),
            Case(
                "loop: smart-pytorch",
                loop("smart", "sst"),
                "the same with SMARTLoss of smart-pytorch, one step",
                "smart_pytorch",
            ),
            Case(
                "loop: smart-pytorch, shuffled",
                (*loop("smart", "sst"), "--shuffled"),
                "the same on batches of rows of any length, as its users have it",
                "smart_pytorch",
            ),
            Case("loop: joint", loop("plain", *TASKS), "a joint step written by hand, a pass a task"),
            Case("loop: TorchJD pcgrad", loop("pcgrad", *TASKS), "the same with mtl_backward and PCGrad of TorchJD"),
        ]
    return all_cases


def speed_table(runs: Runs, peak_tflops: float | None) -> str:
    """Return a table with rows per second of ours and of both Trainers and, with a peak, model FLOP utilisation."""
    lines = []
    for name in [*TASKS, "joint", "mlm"]:
        if name not in runs:
            continue
        peer, rate = f"Trainer: {name}", median(rates(runs, name))
        tokens = rate * middle(runs, name, "tokens_per_row")
        memory = f"{middle(runs, name, 'peak_memory_mb'):.0f}"
        line = [name, f"{rate:.1f}", f"{tokens:.0f}", "", "", "", "", memory, ""]
        if peer in runs:
            line[3:5] = f"{median(rates(runs, peer)):.1f}", ratio_cell(rates(runs, name), rates(runs, peer))
            line[8] = f"{middle(runs, peer, 'peak_memory_mb'):.0f}"
        if (grouped := f"Trainer, grouped: {name}") in runs:
            line[5:7] = f"{median(rates(runs, grouped)):.1f}", ratio_cell(rates(runs, name), rates(runs, grouped))
        if peak_tflops:
            line.append(f"{rate * middle(runs, name, 'flop_per_row') / (1e12 * peak_tflops):.1%}")
        lines.append(line)
    header = ["case", "rows/s", "tokens/s", "Trainer rows/s", "ratio", "grouped rows/s", "ratio", "peak MB"]
    header.append("Trainer peak MB")
    return markdown([*header, "MFU"] if peak_tflops else header, lines)


def epoch_table(runs: Runs) -> str:
    """Return a table of an epoch over equal numbers of rows: our joint steps, and Trainer on one task at a time."""
    peers = [f"Trainer: {task}" for task in TASKS]
    if not {"joint", *peers} <= set(runs):
        return ""
    one = [len(TASKS) * 1000 / rate for rate in rates(runs, "joint")]
    three = [sum(1000 / rate for rate in turn) for turn in zip(*[rates(runs, peer) for peer in peers])]
    cells = [f"{median(seconds):.1f}" for seconds in (one, three)]
    header = ["1,000 rows of each task", "ours, joint, s", "Trainer, three in turn, s", "ratio"]
    return markdown(header, [["three-task epoch", *cells, ratio_cell(three, one)]])


def cost_table(runs: Runs) -> str:
    """Return a table with milliseconds per step, and the ratio to other steps."""
    times = {case: [1000 * run["seconds"] / run["steps"] for run in turns] for case, turns in runs.items()}
    lines = []
    for name, bases in OVER.items():
        for base in bases:
            if name in runs and base in runs:
                memory = [f"{middle(runs, case, 'peak_memory_mb'):.0f}" for case in (name, base)]
                step = f"{median(times[name]):.1f}"
                lines.append([name, base, step, ratio_cell(times[name], times[base]), *memory])
    return markdown(["step", "over", "ms", "ratio", "peak MB", "peak MB of the other"], lines)


def main(argv: Sequence[str]) -> None:
    parser = parser_of(__doc__)
    add_model_options(parser)
    add_runtime_options(parser)
    add_case_options(parser, peers=True)
    add_step_options(parser, steps=60, warmup=5)
    parser.add_argument("--peak-tflops", type=float, help="peak of the card in dense bf16; adds model FLOP utilisation")
    args = parser.parse_args(argv)
    args.argv = list(argv)
    picked = chosen(cases(args.peers), args.only)
    with prepared(args) as work:
        common = ["--work", str(work), "--steps", str(args.steps), "--warmup", str(args.warmup)]
        runs = measure(picked, args, common)
    tables = [speed_table(runs, args.peak_tflops), epoch_table(runs), cost_table(runs)]
    report("training", args, picked, runs, tables)


if __name__ == "__main__":
    main(sys.argv[1:])
