"""One case of prediction.py: predictions for dev rows as by `bertrio predict`, or the search of `bertrio mine`."""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from case import case_parser, load, write_result

from bertrio.core.stage import peak_memory_mb


def predict(args: argparse.Namespace) -> dict[str, Any]:
    """Predict the dev rows of `--task`, after a warm-up on a few of them."""
    from bertrio.data.table import read_table
    from bertrio.inference.batch_predict import predict_file
    from bertrio.inference.predictor import Predictor

    frame = read_table(args.work / "data/splits" / args.task / "dev.parquet")
    with tempfile.TemporaryDirectory() as folder:
        write_model(args, Path(folder) / "model")
        predictor = Predictor.load(Path(folder) / "model", precision=args.precision)

    def run(rows: Any) -> None:
        source = io.BytesIO(rows.to_csv(sep="\t", index=False).encode())
        predict_file(predictor, args.task, "tsv", source, io.BytesIO())

    run(frame.head(256))
    began = time.perf_counter()
    run(frame)
    return {"seconds": time.perf_counter() - began, "rows": len(frame), "peak_memory_mb": peak_memory_mb()}


def write_model(args: argparse.Namespace, folder: Path) -> None:
    """Write a model folder with untrained heads."""
    from bertrio.model.config import ModelConfig
    from bertrio.model.multitask import build_model, save_model

    params, runtime = load(args)
    model = build_model(params, args.work / "models/encoder", runtime)
    save_model(model, folder, ModelConfig.from_params(params), args.work / "models/tokenizer")


def mine(args: argparse.Namespace) -> dict[str, Any]:
    """Search the `--top` most similar pairs of random vectors, about 20 around each centre."""
    import numpy as np

    from bertrio.inference.mining import most_similar

    draws = np.random.default_rng(args.seed)
    centres = draws.normal(size=(max(1, args.sentences // 20), args.width))
    vectors = centres[draws.integers(0, len(centres), args.sentences)] + 0.7 * draws.normal(
        size=(args.sentences, args.width)
    )
    vectors = vectors.astype(np.float32)
    began, used = time.perf_counter(), time.process_time()
    most_similar(vectors, args.top)
    return {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - used,
        "rows": len(vectors),
        "peak_memory_mb": peak_memory_mb(),
    }


def main(argv: Sequence[str]) -> None:
    parser = case_parser(__doc__)
    parser.add_argument("what", choices=["predict", "mine"])
    parser.add_argument("--task", default="sst")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--sentences", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--top", type=int, default=100)
    args = parser.parse_args(argv)
    write_result(args, {"predict": predict, "mine": mine}[args.what](args))


if __name__ == "__main__":
    main(sys.argv[1:])
