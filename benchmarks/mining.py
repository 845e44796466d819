"""Recall of `bertrio mine` on held-out duplicate questions, for one encoder trained with different losses.

    python benchmarks/mining.py --data path/to/course-data --epochs 3

Every row trains qqp alone (bi, head cosine) on the same batches. All questions of dev are searched. Recall at 1 is the
share of labelled duplicates, asked in both directions, whose nearest question is a labelled duplicate; `found` counts
true pairs among the first pairs of `bertrio mine`, as many as dev has. Intervals: paired bootstrap over the pairs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from common import PREPARE, ROOT, run_stages

from bertrio.config import merged, read_yaml
from bertrio.core.files import read_json, write_json
from bertrio.inference.mining import most_similar
from bertrio.inference.predictor import Predictor

LOSSES = ("bce", "multiple_negatives_ranking")
RESAMPLES = 10_000


def train(folder: Path, args: argparse.Namespace, loss: str) -> None:
    """Fine-tune qqp alone in `folder` with this loss, unless that is done."""
    if (folder / "models/members/base/bertrio.json").exists():
        return
    params = read_yaml(ROOT / "params.yaml")
    params["tasks"] = {"qqp": params["tasks"]["qqp"] | {"batch_size": args.batch, "loss": loss}}
    overrides = {
        "runtime": {"threads": args.threads, "seed": args.seed},
        "data": {"source": "cs224n", "path": str(Path(args.data).resolve()), "split": {"keep": {"test": 0}}},
        "sharing": {"tasks": []},
        "encoder": {"name": args.encoder if args.encoder == "tiny" else str(Path(args.encoder).resolve())},
        "finetune": {"epochs": args.epochs, "select": "last"},
        "schedule": {"until": "qqp"},
    }
    run_stages(folder, merged(params, overrides), *PREPARE, "finetune --member base")


def recall(predictor: Predictor, dev: pd.DataFrame) -> tuple[np.ndarray, int]:
    """Return the share of hits of each duplicate pair, of its two directions, and how many pairs `mine` finds."""
    texts = list(dict.fromkeys([*dev["text_a"], *dev["text_b"]]))
    row = {text: number for number, text in enumerate(texts)}
    duplicates = dev[(dev["label"] == 1) & (dev["text_a"] != dev["text_b"])]
    pairs = sorted({tuple(sorted((row[a], row[b]))) for a, b in zip(duplicates["text_a"], duplicates["text_b"])})
    vectors = predictor.encode(texts, "qqp")
    cosines = vectors @ vectors.T / np.outer(*[np.linalg.norm(vectors, axis=1)] * 2)
    np.fill_diagonal(cosines, -1)
    nearest = cosines.argmax(axis=1)
    known = set(pairs)
    hits = [np.mean([tuple(sorted((text, int(nearest[text])))) in known for text in pair]) for pair in pairs]
    mined_duplicates = {(a, b) for a, b, _ in most_similar(vectors, len(pairs))} & known
    return np.array(hits), len(mined_duplicates)


def interval(values: np.ndarray) -> list[float]:
    """Return the 95 % bootstrap interval of the mean."""
    resamples = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    return np.quantile(values[resamples].mean(axis=1), [0.025, 0.975]).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of the course's data")
    parser.add_argument("--encoder", default="tiny", help="a local folder, or tiny")
    parser.add_argument("--work", default="/tmp/bertrio-mining", help="folder of the runs; finished ones are kept")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    hits, lines = {}, {}
    for loss in LOSSES:
        folder = Path(args.work).resolve() / f"{loss}-{args.seed}"
        train(folder, args, loss)
        dev = pd.read_parquet(folder / "data/splits/qqp/dev.parquet")
        predictor = Predictor.load(folder / "models/members/base", precision="float32")
        hits[loss], found = recall(predictor, dev)
        timing = read_json(folder / "metrics/timing/finetune-base.json")
        lines[loss] = {
            "recall_at_1": float(hits[loss].mean()),
            "interval": interval(hits[loss]),
            "found": found,
            "pairs": len(hits[loss]),
            "seconds": timing["ms_per_step"] * timing["steps"] / 1000,
        }
        if loss != LOSSES[0]:
            difference = hits[loss] - hits[LOSSES[0]]
            lines[loss]["difference"] = [float(difference.mean()), *interval(difference)]
    write_json(Path(args.work) / f"mining-{args.seed}.json", lines, digits=4)
    print(pd.DataFrame(lines).T.to_markdown())


if __name__ == "__main__":
    main()
