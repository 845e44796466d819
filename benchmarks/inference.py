"""Predictions for dev pairs of qqp: ours against `CrossEncoder.predict` of sentence-transformers.

    python benchmarks/inference.py --peers --data path/to/course-data --encoder path/to/encoder

Both start from texts, so the time includes tokenising, and both use the same encoder and batch size. The peer runs in
float32, as its documentation shows, and in bf16 in two ways: with autocast, as ours does, and with bf16 weights.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import common
from common import Case, Runs, median_cells, rate_cell, rates

BF16 = {"none": "float32", "autocast": "autocast", "weights": "bf16 weights"}  # values of the peer's option, by case


def cases(peers: bool, batch: int) -> list[Case]:
    """Return all cases in the order of their runs."""
    options = ("--set", json.dumps({"finetune": {"eval_batch_size": batch}}))
    all_cases = [Case("ours", ("ours.py", "infer", *options), "training.loop.infer on dev pairs, tokenising included")]
    for bf16, precision in BF16.items() if peers else ():
        command = ("peers/cross_encoder.py", *options, "--bf16", bf16)
        all_cases.append(Case(f"CrossEncoder, {precision}", command, f"predict, {precision}", "sentence_transformers"))
    return all_cases


def tables(runs: Runs) -> list[str]:
    """Return a table with rows per second and the ratio of ours to the peer's."""
    lines = []
    for name in runs:
        is_peer = name != "ours" and "ours" in runs
        ratio = common.ratio_cell(rates(runs, "ours"), rates(runs, name)) if is_peer else ""
        lines.append([name, rate_cell(runs, name, 0), *median_cells(runs, name, peak_memory_mb=0), ratio])
    return [common.markdown(["case", "rows/s", "peak MB", "ours over it"], lines)]


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser_of(__doc__)
    common.add_model_options(parser)
    common.add_runtime_options(parser)
    common.add_case_options(parser, peers=True)
    parser.set_defaults(batch=64)
    args = parser.parse_args(argv)
    common.run_benchmark("inference", args, cases(args.peers, args.batch), tables)


if __name__ == "__main__":
    main()
