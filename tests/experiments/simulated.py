"""Simulated measured runs: rows of varying difficulty, variation over seeds, and a known skill."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertrio.evaluation.intervals import contributions
from bertrio.evaluation.metrics import overall
from bertrio.evaluation.predictions import Scored
from bertrio.experiments.recipes.measured import OVERALL, ByRow, Measured
from bertrio.experiments.recipes.rows import Budget, Paper, Recipes, Row, Table

MAIN_METRICS = {"sst": "accuracy", "qqp": "accuracy", "sts": "pearson"}


def simulate(row: str, seed: int = 1, skill: float = 0.5, rows: int = 300, data: int = 0, seeds_differ=0.1, **fields):
    """Return a run of `row`. Labels and difficulties depend only on `data` and `rows`.

    Args:
        row, seed: as in the file.
        skill: 0.5 gets 69 % right; 0.1 more is about three points.
        rows: number of dev rows of each task.
        data: seed of the rows.
        seeds_differ: standard deviation of the skill over seeds.
        fields: of `Measured`, instead of the defaults.
    """
    noise = np.random.default_rng([zlib.crc32(row.encode()), seed, data])
    metrics, by_row, intervals = {}, {}, {}
    for index, (task, metric) in enumerate(MAIN_METRICS.items()):
        truth = np.random.default_rng([data, rows, index])
        difficulty, ability = truth.normal(size=rows), skill + seeds_differ * noise.normal()
        if metric == "accuracy":
            right = (ability + 0.5 * noise.normal(size=rows) > difficulty).astype(np.float64)
            scored = Scored(np.ones(rows), right)
            value = right.mean()
        else:
            labels = truth.normal(size=rows)
            predictions = 2 * ability * labels + difficulty + 0.5 * noise.normal(size=rows)
            scored = Scored(labels, predictions)
            value = np.corrcoef(labels, predictions)[0, 1]
        metrics[task] = {metric: float(value)}
        intervals[task] = {metric: (float(value) - 0.05, float(value) + 0.05)}
        by_row[task] = ByRow(f"{task} {data} {rows}", contributions(scored, metric))
    overall_scores = overall({task: next(iter(scores.items())) for task, scores in metrics.items()})
    metrics |= {name: float(value) for name, value in overall_scores.items()}
    intervals |= {name: (metrics[name] - 0.02, metrics[name] + 0.02) for name in overall_scores}
    score = metrics["overall_normalized"]
    defaults = {
        "row": row, "budget": "quick", "seed": seed, "overrides": {}, "source": "cs224n",
        "rows": {task: {"train": 854, "dev": rows} for task in MAIN_METRICS}, "encoder": "small",
        "metrics": {"dev": metrics, "test": {}}, "intervals": {"dev": intervals, "test": {}}, "seconds": 60.0 + seed,
        "peak_memory_mb": 900.0, "precision": "float32", "threads": 2, "curve": [(100, score - 0.05), (200, score)],
        "by_row": by_row, "commit": "1a2b3c4", "version": "0.1.0", "name": f"{row}-quick-s{seed}",
    }  # fmt: skip
    return Measured(**defaults | fields)


def seeds(row: str, count: int = 3, **fields) -> list[Measured]:
    """Return several runs of one row."""
    return [simulate(row, seed, **fields) for seed in range(1, count + 1)]


def run(row: str, seed: int, sst: float, qqp: float, sts: float, **fields):
    """Return a run with these metrics on four dev rows of each task."""
    metrics = {"sst": {"accuracy": sst}, "qqp": {"accuracy": qqp}, "sts": {"pearson": sts}}
    metrics |= {"overall_mean": (sst + qqp + sts) / 3, "overall_normalized": (sst + qqp + (sts + 1) / 2) / 3}
    intervals = {task: {name: (x - 0.05, x + 0.05)} for task in MAIN_METRICS for name, x in metrics[task].items()}
    intervals |= {name: (metrics[name] - 0.02, metrics[name] + 0.02) for name in OVERALL}
    better = float(row == "p-better")
    by_row = {"sst": [1, 0, 1, better], "qqp": [0, 1, 1, better], "sts": [0.1, -0.1, 0.1 * better, -0.1 * better]}
    by_row = {task: ByRow("same rows", np.array(values)) for task, values in by_row.items()}
    return simulate(row, seed, rows=4, metrics={"dev": metrics}, intervals={"dev": intervals}, by_row=by_row, **fields)


def measured() -> list[Measured]:
    """Return two seeds of row p-base, the second on a faster machine, and one of p-better."""
    epochs = {"step": [100.0, 200.0], "loss_sst": [1.5, 1.0], "dev_sst": [0.3, 0.5], "train_sst": [0.5, 0.7]}
    return [
        run("p-base", 1, 0.5, 0.5, 0.1, history=epochs, best_epoch=2),
        run("p-base", 2, 0.35, 0.5, 0.2, history=epochs, best_epoch=1, device="cuda", precision="bf16", seconds=1.0),
        run("p-better", 1, 0.75, 0.75, 0.4),
    ]  # fmt: skip


def small_recipes() -> Recipes:
    """Return a paper with every kind of row, and one with a single row."""
    choices = ("by another model",)
    quoted = {"sst": 0.532, "qqp": 0.893, "sts": 0.876, "overall": 0.788}
    better = {"sst": 0.55, "qqp": 0.75, "sts": 0.3, "overall": 0.66}
    base = {"sst": 0.5, "qqp": 0.7, "sts": 0.2, "overall": 0.6, "minutes": 15, "best_epoch": 3}
    tested = {"sst": 0.54, "overall": 0.6, "ranking": 3}
    rows = [
        row("p-quoted", title="Literature", reported=quoted, literature=True, choices=choices),
        row("p-base", title="Baseline", reported=base, extensions=("Adj",)),
        row("p-better", title="Better", reported=better, reported_test=tested, extensions=("Adj", "Pre")),
        row("p-again", title="Again", same_as="p-better"),
        row("p-waits", title="Not measured yet", reported={"sst": 0.4}),
    ]
    papers = {"p": paper("p", rows, title="A Paper", overall="normalized")}
    papers["q"] = paper("q", [row("q-other", title="Other")], title="Another", overall=None)
    return Recipes(papers, {"quick": Budget(title="a tenth"), "paper": Budget(title="as is")})


def row(name: str, **fields: Any) -> Row:
    """Return a row of table t of the paper that its name begins with."""
    return Row(name=name, paper=name.split("-")[0], table="t", **fields)


def paper(name: str, rows: Sequence[Row], **fields: Any) -> Paper:
    """Return a paper of one table."""
    table = Table(title="Scores", title_test="Scores on test", rows={row.name: row for row in rows})
    return Paper(name=name, tables={"t": table}, **fields)
