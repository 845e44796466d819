"""Time of the parts of a training step, by torch's profiler.

    python benchmarks/profiled.py --data path/to/course-data --encoder path/to/encoder --task sst

Steps are timed without the profiler first, then as many under it. The profiler makes steps slower, and the parts sum to
those slower steps. On a CPU much of the overhead can count as casts, because the profiler's memory makes the allocator
return freed blocks to the system. `outside of operations` is time outside of all torch operations, such as Python. An
operation that calls another counts as two calls. On a GPU the parts are kernel times, and the time outside is idle.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import median
from typing import Any

import common
from common import TASKS, Case, Runs, middle

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


def parts_of(run: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Return milliseconds and calls per step of each part; they sum to the step under the profiler."""
    totals = {part: (0.0, 0.0) for part in (*PARTS, OTHERS)}
    for operation, (ms, calls) in run["operations"].items():
        total_ms, total_calls = totals[part_of(operation)]
        totals[part_of(operation)] = total_ms + ms, total_calls + calls
    inside = sum(ms for ms, _ in totals.values())
    return {**totals, OUTSIDE: (1000 * run["profiled_seconds"] / run["steps"] - inside, 0.0)}


def tables(runs: Runs) -> list[str]:
    """Return a table of medians over the turns: each part, and the steps with and without the profiler."""
    lines = []
    for name, turns in runs.items():
        parts_by_turn = [parts_of(run) for run in turns]
        for part in parts_by_turn[0]:
            ms, calls = (median(parts[part][column] for parts in parts_by_turn) for column in (0, 1))
            lines.append([name, part, f"{ms:.1f}", f"{calls:.0f}" if calls else ""])
        for label, key in (("a step under the profiler", "profiled_seconds"), ("a step without it", "seconds")):
            lines.append([name, label, f"{1000 * middle(runs, name, key) / turns[0]['steps']:.1f}", ""])
    return [common.markdown(["step", "part", "ms", "calls"], lines)]


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser_of(__doc__, repeats=3)
    common.add_model_options(parser)
    common.add_runtime_options(parser)
    common.add_step_options(parser, steps=40, warmup=40)
    parser.add_argument("--task", default="sst", choices=[*TASKS, "joint"], help="joint: a batch of each, a pass each")
    args = parser.parse_args(argv)
    tasks = list(TASKS) if args.task == "joint" else [args.task]
    overrides = json.dumps({"schedule": {"tasks": tasks}, "finetune": {"one_pass": False}})
    cases = [Case(args.task, ("ours.py", "profile", "--set", overrides), f"our plain step: {args.task}")]
    steps = ["--steps", str(args.steps), "--warmup", str(args.warmup)]
    common.run_benchmark("profiled", args, cases, tables, steps)


if __name__ == "__main__":
    main()
