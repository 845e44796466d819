"""Time of the parts of a training step, by torch's profiler.

    python benchmarks/profiled.py --data path/to/course-data --encoder path/to/encoder --task sst

Steps are timed without the profiler first, then as many under it. The profiler makes steps slower, and the parts sum to
those slower steps. On a CPU much of the overhead can count as casts, because the profiler's memory makes the allocator
return freed blocks to the system. `outside of operations` is time outside of all torch operations, such as Python. An
operation that calls another counts as two calls. On a GPU the parts are kernel times, and the time outside is idle.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from case import Clock, case_parser, trainer_of, write_result
from common import (
    TASKS,
    Case,
    Runs,
    add_model_options,
    add_runtime_options,
    add_step_options,
    markdown,
    measure,
    middle,
    parser_of,
    prepared,
    report,
)

PARTS = {  # prefixes of names of torch operations, without `aten::`; the first matching part counts
    "AdamW": ("_fused_adam",),
    "products of linear layers": ("addmm", "mm", "linear", "mkldnn_linear"),
    "products of attention": ("bmm", "baddbmm", "_scaled_dot_product", "_flash_attention", "_efficient_attention"),
    "softmax, GELU, LayerNorm": ("_softmax", "_log_softmax", "gelu", "native_layer_norm"),
    "random numbers": ("random_", "bernoulli", "uniform_", "normal_", "native_dropout"),
    "norms of gradients": ("linalg_vector_norm", "_foreach_norm"),
    "casts and copies": ("copy_", "_to_copy"),
    "sums and products by element, memory": (
        *("add", "mul", "sub", "div", "sum", "fill_", "zero_", "gt", "ge", "lt", "le"),
        *("empty", "index", "embedding", "_foreach", "cat", "where", "clamp", "bitwise", "resize_"),
    ),
}
OTHERS, OUTSIDE = "views, autograd, all others", "outside of operations"


def part_of(operation: str) -> str:
    """Return the part of an operation such as `aten::addmm`."""
    name = operation.removeprefix("aten::")
    return next((part for part, prefixes in PARTS.items() if name.startswith(prefixes)), OTHERS)


def case(args: argparse.Namespace) -> dict[str, Any]:
    """Train as the stage `finetune` does, without scoring, and return [ms, calls] per step of each operation."""
    import torch

    steps = args.steps
    args.steps = 2 * steps
    trainer, _, _, runtime = trainer_of(args)
    plain, profiled = (Clock(first, steps, runtime.device, lambda: 0) for first in (args.warmup, args.warmup + steps))
    on_gpu = runtime.device.type == "cuda"
    kinds = [torch.profiler.ProfilerActivity.CPU, *([torch.profiler.ProfilerActivity.CUDA] if on_gpu else [])]
    profiler = torch.profiler.profile(activities=kinds)

    def watch(step: int) -> None:
        plain(step)
        if step == plain.last:
            profiler.start()
        profiled(step)
        if step == profiled.last:
            profiler.stop()

    trainer.callbacks = [*trainer.callbacks, watch]
    for _ in trainer.run("benchmark"):
        pass
    return {
        "seconds": plain.measured()["seconds"],
        "profiled_seconds": profiled.measured()["seconds"],
        "steps": steps,
        "operations": operations_of(profiler.key_averages(), on_gpu, steps),
        "runtime": runtime.describe(),
    }


def operations_of(events: Iterable[Any], on_gpu: bool, steps: int) -> dict[str, tuple[float, float]]:
    """Return milliseconds and calls per step of each operation, from the averages of torch's profiler.

    The time of a kernel belongs to the operation that started it. The kernel's own event on the device is ignored.
    """
    from torch.autograd import DeviceType

    self_time = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    operations = [event for event in events if event.device_type == DeviceType.CPU]
    return {event.key: (getattr(event, self_time) / 1000 / steps, event.count / steps) for event in operations}


def parts_of(run: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Return milliseconds and calls per step of each part; they sum to the step under the profiler."""
    totals = {part: (0.0, 0.0) for part in (*PARTS, OTHERS)}
    for operation, (ms, calls) in run["operations"].items():
        total_ms, total_calls = totals[part_of(operation)]
        totals[part_of(operation)] = total_ms + ms, total_calls + calls
    inside = sum(ms for ms, _ in totals.values())
    return {**totals, OUTSIDE: (1000 * run["profiled_seconds"] / run["steps"] - inside, 0.0)}


def table(runs: Runs) -> str:
    """Return a table of medians over the turns: each part, and the steps with and without the profiler."""
    lines = []
    for name, turns in runs.items():
        parts_by_turn = [parts_of(run) for run in turns]
        for part in parts_by_turn[0]:
            ms, calls = (median(parts[part][column] for parts in parts_by_turn) for column in (0, 1))
            lines.append([name, part, f"{ms:.1f}", f"{calls:.0f}" if calls else ""])
        for label, key in (("a step under the profiler", "profiled_seconds"), ("a step without it", "seconds")):
            lines.append([name, label, f"{1000 * middle(runs, name, key) / turns[0]['steps']:.1f}", ""])
    return markdown(["step", "part", "ms", "calls"], lines)


def main(argv: Sequence[str]) -> None:
    """Run the benchmark or, with `case` as its first argument, one case."""
    if list(argv[:1]) == ["case"]:
        args = case_parser(__doc__).parse_args(argv[1:])
        return write_result(args, case(args))
    parser = parser_of(__doc__, repeats=3)
    add_model_options(parser)
    add_runtime_options(parser)
    parser.add_argument("--task", default="sst", choices=[*TASKS, "joint"], help="joint: a batch of each, a pass each")
    add_step_options(parser, steps=40, warmup=40)
    args = parser.parse_args(argv)
    args.argv = list(argv)
    tasks = list(TASKS) if args.task == "joint" else [args.task]
    overrides = json.dumps({"schedule": {"tasks": tasks}, "finetune": {"one_pass": False}})
    command = ("profiled.py", "case", "--set", overrides)
    picked = [Case(args.task, command, f"our plain step: {args.task}")]
    with prepared(args) as work:
        runs = measure(picked, args, ["--work", str(work), "--steps", str(args.steps), "--warmup", str(args.warmup)])
    report("profiled", args, picked, runs, [table(runs)])


if __name__ == "__main__":
    main(sys.argv[1:])
