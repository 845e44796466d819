"""Speed of training steps: rows per second, the cost of each technique, and peers.

    python benchmarks/training.py --peers --data path/to/course-data --encoder path/to/encoder
    python benchmarks/training.py --peers --hidden 768 --layers 12 --batch 32 --device cuda --peak-tflops 989

The first is the table for two cores. The second needs only the repository: a BERT-base of random weights on generated
texts, and adds the model FLOP utilisation of the card; `--only sst qqp sts joint` leaves out the slow cases.

Peers (extra: peers): transformers' Trainer, with its defaults and with batches grouped by length; smart-pytorch and
TorchJD's PCGrad in a plain training loop, on the same batches as ours. Pytorch-PCGrad is on no package index, so it is
left out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import median
from typing import Any

import common
from common import TASKS, Case, Runs, markdown, median_cells, middle, rate_cell, rates, ratio_cell

SMART = {"lambda": 1, "steps": 1, "radius": 1e-3}  # a radius above the resolution of bf16
TECHNIQUES = {  # the plain step they extend, and the params that turn them on
    "smart": ("sst", {"smart": SMART}),
    "smart, every 4": ("sst", {"smart": {**SMART, "every": 4}}),
    "bregman": ("sst", {"bregman": {"mu": 1}}),
    "joint smart": ("joint", {"smart": SMART}),
    "uncertainty": ("joint", {"weighting": {"method": "uncertainty"}}),
    "pcgrad": ("joint", {"surgery": {"method": "pcgrad"}}),
}
DENOMINATORS = {  # steps to divide by in the table of costs
    **{name: [base] for name, (base, _) in TECHNIQUES.items()},
    "pcgrad": ["joint", "joint, one pass"],
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


def trainer(task: str, *options: str) -> tuple[str, ...]:
    """Return the command of a case of transformers' Trainer."""
    return ("peers/hf_trainer.py", "--task", task, *options)


def cases(peers: bool) -> list[Case]:
    """Return all cases in the order of their runs."""
    separate, shared = ({"finetune": {"one_pass": one_pass}} for one_pass in (False, True))
    matched = {**shared, "schedule": {"match_lengths": True}}
    all_cases = [
        *[Case(task, ours(task, {}), f"our plain step on {task}") for task in TASKS],
        Case("joint", ours("joint", separate), "our step on a batch of each task, a pass for each"),
        Case("joint, one pass", ours("joint", shared), "the same in one pass, padded to one width"),
        Case("joint, one pass, matched", ours("joint", matched), "the same, short rows of all tasks together"),
        Case("mlm", ("ours.py", "mlm"), "our step of masked-language-model pretraining, rows being blocks"),
        *[Case(name, ours(base, params), f"{name} on top of {base}") for name, (base, params) in TECHNIQUES.items()],
    ]
    if not peers:
        return all_cases
    smart, grouped = loop("smart", "sst"), "transformers' Trainer on {} with batches of similar length"
    return [
        *all_cases,
        *[Case(f"Trainer: {task}", trainer(task), f"transformers' Trainer on {task}") for task in (*TASKS, "mlm")],
        *[Case(f"Trainer, grouped: {task}", trainer(task, "--grouped"), grouped.format(task)) for task in TASKS],
        Case("loop: sst", loop("plain", "sst"), "a plain step written by hand"),
        Case("loop: smart-pytorch", smart, "the same with SMARTLoss of smart-pytorch, one step", "smart_pytorch"),
        Case("loop: smart-pytorch, shuffled", (*smart, "--shuffled"), "the same on mixed lengths", "smart_pytorch"),
        Case("loop: joint", loop("plain", *TASKS), "a joint step written by hand, a pass a task"),
        Case("loop: TorchJD pcgrad", loop("pcgrad", *TASKS), "the same with mtl_backward and PCGrad of TorchJD"),
    ]


def speed_table(runs: Runs, peak_tflops: float | None) -> str:
    """Return a table with rows per second of ours and of both Trainers and, with a peak, model FLOP utilisation."""
    lines = []
    for name in [*TASKS, "joint", "mlm"]:
        if name not in runs:
            continue
        rate = median(rates(runs, name))
        line = [name, f"{rate:.1f}", f"{rate * middle(runs, name, 'tokens_per_row'):.0f}"]
        for peer in (f"Trainer: {name}", f"Trainer, grouped: {name}"):
            line += (
                [rate_cell(runs, peer), ratio_cell(rates(runs, name), rates(runs, peer))] if peer in runs else ["", ""]
            )
        for case in (name, f"Trainer: {name}"):
            line += median_cells(runs, case, peak_memory_mb=0) if case in runs else [""]
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
    joint = [len(TASKS) * 1000 / rate for rate in rates(runs, "joint")]
    in_turn = [sum(1000 / rate for rate in turn) for turn in zip(*[rates(runs, peer) for peer in peers])]
    cells = [f"{median(joint):.1f}", f"{median(in_turn):.1f}", ratio_cell(in_turn, joint)]
    header = ["1,000 rows of each task", "ours, joint, s", "Trainer, three in turn, s", "ratio"]
    return markdown(header, [["three-task epoch", *cells]])


def cost_table(runs: Runs) -> str:
    """Return a table with milliseconds per step, and the ratio to other steps."""
    times = {case: [1000 * run["seconds"] / run["steps"] for run in turns] for case, turns in runs.items()}
    lines = [
        [name, base, f"{median(times[name]):.1f}", ratio_cell(times[name], times[base])]
        + [cell for case in (name, base) for cell in median_cells(runs, case, peak_memory_mb=0)]
        for name, bases in DENOMINATORS.items()
        for base in bases
        if name in runs and base in runs
    ]
    return markdown(["step", "over", "ms", "ratio", "peak MB", "peak MB of the other"], lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser_of(__doc__)
    common.add_model_options(parser)
    common.add_runtime_options(parser)
    common.add_case_options(parser, peers=True)
    common.add_step_options(parser, steps=60, warmup=5)
    parser.add_argument("--peak-tflops", type=float, help="peak of the card in dense bf16; adds model FLOP utilisation")
    args = parser.parse_args(argv)

    def tables(runs: Runs) -> list[str]:
        return [speed_table(runs, args.peak_tflops), epoch_table(runs), cost_table(runs)]

    steps = ["--steps", str(args.steps), "--warmup", str(args.warmup)]
    common.run_benchmark("training", args, cases(args.peers), tables, steps)


if __name__ == "__main__":
    main()
