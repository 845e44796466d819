"""Dev score against minutes of training: recipes, and transformers' Trainer on one task after the other.

    python benchmarks/minutes.py --rows plain-joint best --epochs 3 -S data.source=cs224n \\
        -S data.path=path/to/course-data -S encoder.name=path/to/encoder

Each row trains as `bertrio recipes run` has it, with all that comes before fine-tuning on the clock, but one member
alone; it is scored on dev after every epoch, off the clock. Trainer trains a model for each task on the data set's own
rows, and its score after n epochs is that of the three models. Besides the table a picture is drawn, minutes.png.
Trainer runs unless `--only` leaves it out (extra: peers).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median
from typing import Any

from common import ROOT, TASKS, Case, Runs, chosen, markdown, measure, parser_of, report

TRAINER = "Trainer"
METRICS = {"sst": "accuracy", "qqp": "accuracy", "sts": "pearson"}
Points = list[tuple[float, float]]  # minutes and dev overall_normalized


def cases(rows: Sequence[str], epochs: int, budget: str, work: Mapping[str, Path]) -> list[Case]:
    """The rows, then Trainer on each task, in the order in which they run."""
    found = [
        Case(row, ("ours.py", "curve", "--work", str(work[row])), f"the recipe {row}, budget {budget}") for row in rows
    ]
    for task in TASKS:
        peer = ("peers/hf_trainer.py", "--task", task, "--epochs", str(epochs), "--curve", "--work", str(work[TRAINER]))
        found.append(Case(f"{TRAINER}: {task}", peer, f"{epochs} epochs of transformers' Trainer on {task}"))
    return found


@contextmanager
def places(args: argparse.Namespace, base: Mapping[str, Any]) -> Iterator[dict[str, Path]]:
    """For each row a folder with its params.yaml, and one for Trainer with what `common.prepared` makes."""
    import yaml
    from common import write_encoder

    from bertrio.data.download import download
    from bertrio.data.prepare import split_data
    from bertrio.experiments.overrides import parse_settings
    from bertrio.experiments.recipes import load_recipes, resolve
    from bertrio.model.tokenizer import load_tokenizer
    from bertrio.params.loading import validate_params

    recipes, settings = load_recipes(ROOT / "recipes"), parse_settings(args.S)
    settings = {name: _absolute(value) for name, value in settings.items()} | {"runtime.threads": args.threads}
    own_rows = {name: value for name, value in settings.items() if not name.startswith("data.more")}
    made = {}
    with tempfile.TemporaryDirectory(prefix="bertrio-benchmark-") as folder:
        for name in [*args.rows, TRAINER]:
            row = recipes.row(args.rows[0] if name == TRAINER else name)
            raw = resolve(recipes, row, args.budget, own_rows if name == TRAINER else settings, base=base)
            made[name] = work = Path(folder) / name
            work.mkdir()
            (work / "params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))
            params = validate_params(raw, name)
            download(params, work / "data/raw", work / "data/rejects", work / "data/corpora")
            split_data(params, work / "data/raw", work / "data/splits", work / "models/tokenizer", work / "data.json")
            if name == TRAINER:
                write_encoder(params, len(load_tokenizer(work / "models/tokenizer")), work / "models/encoder")
        yield made


def _absolute(value: Any) -> Any:
    """A folder that is there as seen from anywhere; anything else as it is."""
    return str(Path(value).resolve()) if isinstance(value, str) and os.sep in value and Path(value).exists() else value


def curves(runs: Runs) -> dict[str, list[Points]]:
    """By row, and of Trainer's three models together, the points of each turn."""
    found = {name: [run["points"] for run in of] for name, of in runs.items() if not name.startswith(TRAINER)}
    peers = [runs.get(f"{TRAINER}: {task}") for task in TASKS]
    if all(peers):
        found[TRAINER] = [_together([run["points"] for run in turn]) for turn in zip(*peers)]
    return {name: [[(seconds / 60, score) for seconds, score in points] for points in of] for name, of in found.items()}


def _together(curves_of_tasks: Sequence[Sequence[Sequence[float]]]) -> Points:
    """Seconds and overall_normalized of single-task models after as many epochs each."""
    from bertrio.evaluation.metrics import overall

    points = []
    for of in zip(*curves_of_tasks):
        scores = {task: (metric, score) for (task, metric), (_, score) in zip(METRICS.items(), of)}
        points.append((sum(seconds for seconds, _ in of), float(overall(scores)["overall_normalized"])))
    return points


def table(found: Mapping[str, list[Points]]) -> str:
    """For each curve its end and its best, and when it first reached Trainer's end, means and medians over turns."""
    goal = mean(turn[-1][1] for turn in found[TRAINER]) if TRAINER in found else None
    lines = []
    for name, turns in found.items():
        ends, bests = [turn[-1] for turn in turns], [max(score for _, score in turn) for turn in turns]
        line = [
            name,
            f"{median(minutes for minutes, _ in ends):.1f}",
            f"{mean(s for _, s in ends):.4f}",
            f"{mean(bests):.4f}",
        ]
        if goal is not None:
            reached = [next((minutes for minutes, score in turn if score >= goal), None) for turn in turns]
            line.append("-" if None in reached else f"{median(reached):.1f}")
        lines.append(line)
    header = ["", "minutes", "dev overall_normalized at the end", "at its best"]
    return markdown(header if goal is None else [*header, f"minutes to {goal:.4f}, Trainer's end"], lines)


def draw(found: Mapping[str, list[Points]], path: Path, under: str) -> None:
    """A line a curve, a thin one for each turn."""
    from bertrio.evaluation.pictures import colours_of, picture, titled

    with picture(path, (8, 4.6)) as figure:
        axes = figure.add_subplot()
        for (name, turns), colour in zip(found.items(), colours_of(len(found))):
            for number, points in enumerate(turns):
                label = name if number == 0 else None
                axes.plot(*zip(*points), "o-", color=colour, markersize=3.5, linewidth=1.2, label=label)
        axes.set(xlabel="minutes of training", ylabel="dev overall normalized")
        axes.set_xlim(left=0)
        axes.legend(loc="lower right", fontsize=8)
        titled(figure, "Dev score against minutes", under)


def main(argv: Sequence[str]) -> None:
    parser = parser_of(__doc__, repeats=1)
    parser.add_argument("--rows", nargs="+", metavar="ROW", default=["plain-joint"], help="recipes")
    parser.add_argument("--budget", default="paper", help="of the recipes, see recipes/budgets.yaml")
    parser.add_argument("--epochs", type=int, default=3, help="of Trainer, on each task")
    parser.add_argument("--only", nargs="+", metavar="CASE", help="these cases alone")
    parser.add_argument("-S", action="append", default=[], metavar="KEY=VALUE", help="a param, as in recipes run")
    args = parser.parse_args(argv)
    args.given = list(argv)
    from bertrio.params import read_yaml

    with places(args, read_yaml(ROOT / "params.yaml")) as work:
        picked = chosen(cases(args.rows, args.epochs, args.budget, work), args.only)
        found = curves(runs := measure(picked, args))
    told = [f"{name.split('.')[-1]} {Path(str(value)).name}" for name, _, value in (of.partition("=") for of in args.S)]
    draw(found, args.out / "minutes.png", ", ".join([f"budget {args.budget}", f"{args.threads} threads", *told])[:120])
    report("minutes", args, picked, runs, [table(found)])


if __name__ == "__main__":
    main(sys.argv[1:])
