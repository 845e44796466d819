"""Where the time of a training step goes: milliseconds of each part, by torch's profiler.

    python benchmarks/profiled.py --data path/to/course-data --encoder path/to/encoder --task sst

Steps are timed without the profiler first, then as many run under it. It makes them longer, and the parts add up to
those longer steps; on a CPU much of what it adds can be counted as casts, as its own memory has freed blocks given back
to the system and fetched anew. `outside of operations` is what no operation of torch accounts for: Python and its
calls. Calls count an operation that makes another as two. On a GPU the parts are the time of the kernels that
operations start, and what is outside is the time in which it waits.
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

PARTS = {  # operations of torch, without `aten::`, by what their names begin with; the first part that fits has them
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
    """The part that an operation, such as `aten::addmm`, belongs to."""
    name = operation.removeprefix("aten::")
    return next((part for part, begins in PARTS.items() if name.startswith(begins)), OTHERS)


def case(args: argparse.Namespace) -> dict[str, Any]:
    """Trains as the stage `finetune` does, without scoring; what each operation took, a step: [ms, calls]."""
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
    """Milliseconds and calls a step of each operation, from the averages of torch's profiler.

    A kernel's time belongs to the operation that started it; among the events it stands once more, on its device.
    """
    from torch.autograd import DeviceType

    own = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    there = [of for of in events if of.device_type == DeviceType.CPU]
    return {of.key: (getattr(of, own) / 1000 / steps, of.count / steps) for of in there}


def parts_of(run: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Milliseconds and calls a step of each part; together the step under the profiler."""
    found = {part: (0.0, 0.0) for part in (*PARTS, OTHERS)}
    for operation, (ms, calls) in run["operations"].items():
        before = found[part_of(operation)]
        found[part_of(operation)] = before[0] + ms, before[1] + calls
    inside = sum(ms for ms, _ in found.values())
    return {**found, OUTSIDE: (1000 * run["profiled_seconds"] / run["steps"] - inside, 0.0)}


def table(runs: Runs) -> str:
    """Medians over the turns of each part, and of the step without the profiler and with it."""
    lines = []
    for name, turns in runs.items():
        found = [parts_of(run) for run in turns]
        for part in found[0]:
            ms, calls = (median(of[part][which] for of in found) for which in (0, 1))
            lines.append([name, part, f"{ms:.1f}", f"{calls:.0f}" if calls else ""])
        for told, key in (("a step under the profiler", "profiled_seconds"), ("a step without it", "seconds")):
            lines.append([name, told, f"{1000 * middle(runs, name, key) / turns[0]['steps']:.1f}", ""])
    return markdown(["step", "part", "ms", "calls"], lines)


def main(argv: Sequence[str]) -> None:
    """The benchmark; with `case` as its first argument, one case."""
    if list(argv[:1]) == ["case"]:
        args = case_parser(__doc__).parse_args(argv[1:])
        return write_result(args, case(args))
    parser = parser_of(__doc__, repeats=3)
    add_model_options(parser)
    add_runtime_options(parser)
    parser.add_argument("--task", default="sst", choices=[*TASKS, "joint"], help="joint: a batch of each, a pass each")
    add_step_options(parser, steps=40, warmup=40)
    args = parser.parse_args(argv)
    args.given = list(argv)
    tasks = list(TASKS) if args.task == "joint" else [args.task]
    asked = json.dumps({"schedule": {"tasks": tasks}, "finetune": {"one_pass": False}})
    command = ("profiled.py", "case", "--set", asked)
    picked = [Case(args.task, command, f"our plain step: {args.task}")]
    with prepared(args) as work:
        runs = measure(picked, args, ["--work", str(work), "--steps", str(args.steps), "--warmup", str(args.warmup)])
    report("profiled", args, picked, runs, [table(runs)])


if __name__ == "__main__":
    main(sys.argv[1:])
