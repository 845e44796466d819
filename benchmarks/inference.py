"""Predictions for dev pairs of qqp: ours, and `CrossEncoder.predict` of sentence-transformers beside it.

    python benchmarks/inference.py --peers --data path/to/course-data --encoder path/to/encoder

Both start from texts, so both tokenise on the clock, and both have the same encoder and batch size. The peer runs as
its documentation shows, in float32, and with bf16 in two ways, autocast as ours and a model wholly in bf16.
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
    """All cases, in the order in which they run."""
    size = ("--set", json.dumps({"finetune": {"eval_batch_size": batch}}))
    found = [Case("ours", ("ours.py", "infer", *size), "training.loop.infer on dev pairs, tokenising included")]
    if peers:
        found += [
            Case(
                f"CrossEncoder, {how}",
                ("peers/cross_encoder.py", *size, "--bf16", way),
                f"predict, {how}",
                "sentence_transformers",
            )
            for way, how in (("none", "float32"), ("autocast", "autocast"), ("weights", "bf16 weights"))
        ]
    return found


def table(runs: Runs) -> str:
    """Rows a second, and how many times the peer's."""
    lines = []
    for name in runs:
        own = name == "ours" or "ours" not in runs
        ratio = "" if own else ratio_cell(rates(runs, "ours"), rates(runs, name))
        lines.append([name, f"{median(rates(runs, name)):.0f}", f"{middle(runs, name, 'peak_memory_mb'):.0f}", ratio])
    return markdown(["case", "rows/s", "peak MB", "ours over it"], lines)


def main(argv: Sequence[str]) -> None:
    parser = parser_of(__doc__)
    add_model_options(parser)
    add_runtime_options(parser)
    add_case_options(parser, peers=True)
    parser.set_defaults(batch=64)
    args = parser.parse_args(argv)
    args.given = list(argv)
    picked = chosen(cases(args.peers, args.batch), args.only)
    with prepared(args) as work:
        runs = measure(picked, args, ["--work", str(work)])
    report("inference", args, picked, runs, [table(runs)])


if __name__ == "__main__":
    main(sys.argv[1:])
