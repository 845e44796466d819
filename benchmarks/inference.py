"""Predictions for dev pairs of qqp: ours, and `CrossEncoder.predict` of sentence-transformers beside it.

    python benchmarks/inference.py --peers --data path/to/course-data --encoder path/to/encoder

Both start from texts, so the time includes tokenising, and both use the same encoder and batch size. The peer runs in
float32, as its documentation shows, and in bf16 in two ways: with autocast, as ours does, and with bf16 weights.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from statistics import median

from common import (
    Case,
    Runs,
    add_case_options,
    add_model_options,
    add_runtime_options,
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


def cases(peers: bool, batch: int) -> list[Case]:
    """Return all cases in the order of their runs."""
    size = ("--set", json.dumps({"finetune": {"eval_batch_size": batch}}))
    all_cases = [Case("ours", ("ours.py", "infer", *size), "training.loop.infer on dev pairs, tokenising included")]
    if peers:
        all_cases += [
            Case(
                f"CrossEncoder, {how}",
                ("peers/cross_encoder.py", *size, "--bf16", way),
                f"predict, {how}",
                "sentence_transformers",
            )
            for way, how in (("none", "float32"), ("autocast", "autocast"), ("weights", "bf16 weights"))
        ]
    return all_cases


def table(runs: Runs) -> str:
    """Return a table with rows per second and the ratio of ours to the peer's."""
    lines = []
    for name in runs:
        no_ratio = name == "ours" or "ours" not in runs
        ratio = "" if no_ratio else ratio_cell(rates(runs, "ours"), rates(runs, name))
        lines.append([name, f"{median(rates(runs, name)):.0f}", f"{middle(runs, name, 'peak_memory_mb'):.0f}", ratio])
    return markdown(["case", "rows/s", "peak MB", "ours over it"], lines)


def main(argv: Sequence[str]) -> None:
    parser = parser_of(__doc__)
    add_model_options(parser)
    add_runtime_options(parser)
    add_case_options(parser, peers=True)
    parser.set_defaults(batch=64)
    args = parser.parse_args(argv)
    args.argv = list(argv)
    picked = chosen(cases(args.peers, args.batch), args.only)
    with prepared(args) as work:
        runs = measure(picked, args, ["--work", str(work)])
    report("inference", args, picked, runs, [table(runs)])


if __name__ == "__main__":
    main(sys.argv[1:])
