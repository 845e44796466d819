"""Peer: `CrossEncoder.predict` of sentence-transformers on the dev pairs of one task.

It runs in float32, its default, or in bf16: `--bf16 autocast`, as ours, or `--bf16 weights`, the whole model.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from case import case_parser, load, wait_for, write_result


def predict(args: Any) -> dict[str, Any]:
    import torch
    from sentence_transformers import CrossEncoder

    from bertrio.core.stage import peak_memory_mb
    from bertrio.data.table import read_table
    from bertrio.model.tokenizer import load_tokenizer

    params, runtime = load(args)
    folder, batch = args.work / "models/encoder", params.finetune.eval_batch_size
    tokenizer = load_tokenizer(args.work / "models/tokenizer")
    tokenizer.save_pretrained(str(folder))  # CrossEncoder loads both from one folder
    whole = args.bf16 == "weights" and runtime.compute == torch.bfloat16
    model = CrossEncoder(
        str(folder),
        num_labels=1,
        max_length=params.encoder.max_length,
        device=str(runtime.device),
        model_kwargs={"dtype": torch.bfloat16 if whole else torch.float32},
        local_files_only=True,
    )
    frame = read_table(args.work / "data/splits" / args.task / "dev.parquet")
    pairs = list(zip(frame["text_a"], frame["text_b"]))
    with runtime.autocast() if args.bf16 == "autocast" else nullcontext():
        model.predict(pairs[: 4 * batch], batch_size=batch, show_progress_bar=False)
        began = time.perf_counter()
        model.predict(pairs, batch_size=batch, show_progress_bar=False)
        wait_for(runtime.device)
        seconds = time.perf_counter() - began
    return {
        "seconds": seconds,
        "rows": len(pairs),
        "peak_memory_mb": peak_memory_mb(),
        "runtime": runtime.describe(),
    }


def main(argv: Sequence[str]) -> None:
    parser = case_parser(__doc__)
    parser.add_argument("--task", default="qqp")
    parser.add_argument("--bf16", choices=["none", "autocast", "weights"], default="none")
    args = parser.parse_args(argv)
    write_result(args, predict(args))


if __name__ == "__main__":
    main(sys.argv[1:])
