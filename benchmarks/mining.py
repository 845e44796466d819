"""Recall of `bertrio mine` on held-out duplicate questions, for one encoder trained with different losses.

    python benchmarks/mining.py --data path/to/course-data --epochs 3
    python benchmarks/mining.py --data path/to/course-data --encoder path/to/encoder --steps 200

Every row trains qqp alone (bi, head cosine) on the same batches. The pool are all questions of dev. Recall at 1 is the
share of labelled duplicates, asked in both directions, whose nearest question is a labelled duplicate; `found` counts
true pairs among the first pairs of `bertrio mine`, as many as dev has. Intervals: paired bootstrap over the pairs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

import numpy as np
import pandas as pd
from techniques import PREPARE, stage, write_params

from bertrio.config import merged, read_yaml
from bertrio.core.files import read_json, write_json
from bertrio.inference.mining import most_similar
from bertrio.inference.predictor import Predictor

LOSSES: dict[str, Any] = {
    "bce": {"loss": "bce"},
    "multiple_negatives_ranking": {"loss": "multiple_negatives_ranking"},
}
RESAMPLES = 10_000


def train(folder: Path, args: argparse.Namespace, loss: dict[str, Any]) -> None:
    """Fine-tune qqp alone in `folder` with this loss, unless that is done."""
    if (folder / "models/members/base/bertrio.json").exists():
        return
    params = read_yaml(ROOT / "params.yaml")
    params["tasks"] = {"qqp": params["tasks"]["qqp"] | {"batch_size": args.batch} | loss}
    overrides = {
        "runtime": {"threads": args.threads, "seed": args.seed},
        "data": {"source": "cs224n", "path": str(Path(args.data).resolve()), "split": {"keep": {"test": 0}}},
        "sharing": {"tasks": []},
        "encoder": {"name": args.encoder if args.encoder == "tiny" else str(Path(args.encoder).resolve())},
        "finetune": {"epochs": args.epochs, "max_steps": args.steps, "select": "last"},
        "schedule": {"until": "qqp"},
    }
    write_params(folder, merged(params, overrides))
    for name in PREPARE:
        stage(folder, name)
    stage(folder, "finetune", "--member", "base")


def mined(predictor: Predictor, dev: pd.DataFrame) -> tuple[np.ndarray, int]:
    """Return the share of hits of each duplicate pair, of its two directions, and how many pairs `mine` finds."""
    texts = list(dict.fromkeys([*dev["text_a"], *dev["text_b"]]))
    row = {text: number for number, text in enumerate(texts)}
    true = dev[(dev["label"] == 1) & (dev["text_a"] != dev["text_b"])]
    pairs = sorted({tuple(sorted((row[a], row[b]))) for a, b in zip(true["text_a"], true["text_b"])})
    vectors = predictor.encode(texts, "qqp")
    cosines = vectors @ vectors.T / np.outer(*[np.linalg.norm(vectors, axis=1)] * 2)
    np.fill_diagonal(cosines, -1)
    nearest = cosines.argmax(axis=1)
    hits = [np.mean([tuple(sorted((one, int(nearest[one])))) in set(pairs) for one in pair]) for pair in pairs]
    found = {(a, b) for a, b, _ in most_similar(vectors, len(pairs))} & set(pairs)
    return np.array(hits), len(found)


def interval(values: np.ndarray) -> list[float]:
    """Return the 95 % bootstrap interval of the mean."""
    draws = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    return np.quantile(values[draws].mean(axis=1), [0.025, 0.975]).tolist()


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="the folder of the course's files")
    parser.add_argument("--encoder", default="tiny", help="a local folder, or tiny")
    parser.add_argument("--work", default="/tmp/bertrio-mining", help="where runs go; finished ones are kept")
    parser.add_argument("--only", nargs="+", choices=LOSSES, default=list(LOSSES), help="rows to train")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, help="stop early")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(argv)
    hits, lines = {}, {}
    for name in args.only:
        folder = Path(args.work).resolve() / f"{name}-{args.seed}"
        train(folder, args, LOSSES[name])
        dev = pd.read_parquet(folder / "data/splits/qqp/dev.parquet")
        predictor = Predictor.load(folder / "models/members/base", precision="float32")
        hits[name], found = mined(predictor, dev)
        timing = read_json(folder / "metrics/timing/finetune-base.json")
        seconds = timing["ms_per_step"] * timing["steps"] / 1000
        lines[name] = {"recall_at_1": float(hits[name].mean()), "interval": interval(hits[name]), "found": found}
        lines[name] |= {"pairs": len(hits[name]), "seconds": seconds}
        if name != args.only[0]:
            difference = hits[name] - hits[args.only[0]]
            lines[name]["difference"] = [float(difference.mean()), *interval(difference)]
    write_json(Path(args.work) / f"mining-{args.seed}.json", lines, digits=4)
    print(pd.DataFrame(lines).T.to_markdown())


if __name__ == "__main__":
    main(sys.argv[1:])
