"""Peer: `CrossEncoder.predict` of sentence-transformers on the dev pairs of one task.

It runs in float32, its default, or in bf16: `--bf16 autocast`, as ours, or `--bf16 weights`, the whole model.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import torch
from case import case_parser, load, synchronize, write_result
from sentence_transformers import CrossEncoder

from bertrio.data.table import read_table
from bertrio.model.tokenizer import load_tokenizer


def predict(args: Any) -> dict[str, Any]:
    """Predict the dev pairs of `--task`, after a warm-up on a few of them."""
    params, runtime = load(args)
    folder, batch = args.work / "models/encoder", params.finetune.eval_batch_size
    load_tokenizer(args.work / "models/tokenizer").save_pretrained(str(folder))  # CrossEncoder loads both from there
    bf16_weights = args.bf16 == "weights" and runtime.compute == torch.bfloat16
    model = CrossEncoder(
        str(folder),
        num_labels=1,
        max_length=params.encoder.max_length,
        device=str(runtime.device),
        model_kwargs={"dtype": torch.bfloat16 if bf16_weights else torch.float32},
        local_files_only=True,
    )
    frame = read_table(args.work / "data/splits" / args.task / "dev.parquet")
    pairs = list(zip(frame["text_a"], frame["text_b"]))
    with runtime.autocast() if args.bf16 == "autocast" else nullcontext():
        model.predict(pairs[: 4 * batch], batch_size=batch, show_progress_bar=False)
        began = time.perf_counter()
        model.predict(pairs, batch_size=batch, show_progress_bar=False)
        synchronize(runtime.device)
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "rows": len(pairs), "runtime": runtime.describe()}


def main() -> None:
    parser = case_parser(__doc__)
    parser.add_argument("--task", default="qqp")
    parser.add_argument("--bf16", choices=["none", "autocast", "weights"], default="none")
    args = parser.parse_args()
    write_result(args, predict(args))


if __name__ == "__main__":
    main()
