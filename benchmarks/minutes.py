"""Dev score against minutes of training, of recipes and of transformers' Trainer. Draws minutes.png.

    python benchmarks/minutes.py --rows plain-joint best --epochs 3 -S data.source=cs224n \\
        -S data.path=path/to/course-data -S encoder.name=path/to/encoder

Each row trains with the params of `bertrio recipes run`. Its members train one after the other; the score is that of
all members so far. Soups have no such score and are left out. Trainer (extra: peers) trains three models, one for each
task; its score after n epochs is that of all three. It takes batch sizes, learning rate, warm-up and decay from
params.yaml, the budget and -S, and no rows of data.extra_train. `--only` with names of rows leaves Trainer out.

Minutes include the stages before fine-tuning, without `download` and `split`, and exclude scoring on dev. Turn n has
seed n.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import common
from common import ROOT, TASKS, Case, Runs

TRAINER = "Trainer"
Points = list[tuple[float, float]]  # minutes and dev overall_normalized


def cases(work: Mapping[str, Path], epochs: int, budget: str) -> list[Case]:
    """Return the cases of the rows, then of Trainer on each task."""
    all_cases = [
        Case(row, ("ours.py", "curve", "--work", str(folder)), f"the recipe {row}, budget {budget}")
        for row, folder in work.items()
        if row != TRAINER
    ]
    for task in TASKS:
        peer = ("peers/hf_trainer.py", "--task", task, "--epochs", str(epochs), "--curve", "--work", str(work[TRAINER]))
        all_cases.append(Case(f"{TRAINER}: {task}", peer, f"{epochs} epochs of transformers' Trainer on {task}"))
    return all_cases


@contextmanager
def work_folders(args: argparse.Namespace) -> Iterator[dict[str, Path]]:
    """Yield the folder of each row but soups, with data and params of each turn, and of Trainer, with an encoder."""
    from bertrio.experiments.recipes.params import parse_settings
    from bertrio.experiments.recipes.resolving import resolve
    from bertrio.experiments.recipes.rows import Row, load_recipes
    from bertrio.model.tokenizer import load_tokenizer

    recipes = load_recipes(ROOT / "recipes")
    settings = parse_settings(args.S) | {"runtime.threads": args.threads}
    with tempfile.TemporaryDirectory(prefix="bertrio-benchmark-") as folder:
        folders = {name: Path(folder) / name for name in [*dict.fromkeys(args.rows), TRAINER]}
        for name, work in list(folders.items()):
            row = Row(name=TRAINER, title="params.yaml as it is") if name == TRAINER else recipes.row(name)
            seeds = range(1, args.repeats + 1)
            params_by_turn = {turn: resolve(recipes, row, args.budget, settings, turn) for turn in seeds}
            if name != TRAINER and params_by_turn[1]["ensemble"]["combine"].endswith("soup"):
                print(f"left out {name}: a soup has no score before its last member", file=sys.stderr)
                del folders[name]
                continue
            for turn, raw_params in params_by_turn.items():
                if name == TRAINER:
                    raw_params["data"]["extra_train"] = {}
                common.write_params(work, raw_params, f"params-{turn}.yaml")
            if args.only and not any(case.split(":")[0] == name for case in args.only):
                continue  # none of its cases runs
            params = prepare(work)
            if name == TRAINER:
                common.write_params(work, params_by_turn[1])
                common.write_encoder(params, len(load_tokenizer(work / "models/tokenizer")), work / "models/encoder")
        yield folders


def prepare(work: Path) -> Any:
    """Run the stages download and split, and return their params."""
    from bertrio.config import load_params
    from bertrio.data.download import download
    from bertrio.data.prepare import split_data

    params = load_params(work / "params-1.yaml")
    download(params, work / "data/raw", work / "data/rejects", work / "data/corpora")
    split_data(params, work / "data/raw", work / "data/splits", work / "models/tokenizer", work / "data.json")
    return params


def curves(runs: Runs) -> dict[str, list[Points]]:
    """Return the points of each turn, by row and for Trainer's three models together."""
    points = {name: [run["points"] for run in turns] for name, turns in runs.items() if not name.startswith(TRAINER)}
    peers = [runs.get(f"{TRAINER}: {task}") for task in TASKS]
    if all(peers):
        points[TRAINER] = [_combined([run["points"] for run in turn]) for turn in zip(*peers)]
    return {
        name: [[(seconds / 60, score) for seconds, score in turn] for turn in turns] for name, turns in points.items()
    }


def _combined(curves_by_task: Sequence[Sequence[Sequence[float]]]) -> Points:
    """Return total seconds and overall_normalized of single-task models by number of epochs."""
    from bertrio.evaluation.metrics import overall
    from bertrio.experiments.recipes.tables import MAIN_METRICS

    points = []
    for epoch in zip(*curves_by_task):
        scores = {task: (metric, score) for (task, metric), (_, score) in zip(MAIN_METRICS.items(), epoch)}
        points.append((sum(seconds for seconds, _ in epoch), float(overall(scores)["overall_normalized"])))
    return points


def table(curves_by_name: Mapping[str, list[Points]]) -> str:
    """Return a table with the end, the best score and the time to Trainer's last score of each curve, as medians."""
    header, lines = ["", "minutes", "dev overall_normalized at the end", "at its best"], []
    targets = [turn[-1][1] for turn in curves_by_name.get(TRAINER, ())]
    if targets:
        header.append("minutes to Trainer's end")
    for name, turns in curves_by_name.items():
        minutes, last_scores = zip(*[turn[-1] for turn in turns])
        best = median(max(score for _, score in turn) for turn in turns)
        lines.append([name, f"{median(minutes):.1f}", f"{median(last_scores):.4f}", f"{best:.4f}"])
        if targets:
            reaching = [[at for at, score in turn if score >= target] for turn, target in zip(turns, targets)]
            times = [passed[0] for passed in reaching if passed]
            note = f" ({len(times)} of {len(turns)} turns)" if len(times) < len(turns) else ""
            lines[-1].append(f"{median(times):.1f}{note}" if times else "never")
    return common.markdown(header, lines)


def draw(curves_by_name: Mapping[str, list[Points]], path: Path, subtitle: str) -> None:
    """Draw all curves: one colour per curve, one line per turn."""
    from bertrio.evaluation.canvas import distinct_colours, picture, titled

    with picture(path, (8, 4.6)) as figure:
        axes = figure.add_subplot()
        for (name, turns), colour in zip(curves_by_name.items(), distinct_colours(len(curves_by_name))):
            for number, points in enumerate(turns):
                label = name if number == 0 else None
                axes.plot(*zip(*points), "o-", color=colour, markersize=3.5, linewidth=1.2, label=label)
        axes.set(xlabel="minutes of training", ylabel="dev overall normalized")
        axes.set_xlim(left=0)
        axes.legend(loc="lower right", fontsize=8)
        titled(figure, "Dev score against minutes", subtitle)


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser_of(__doc__, repeats=1)
    parser.add_argument("--rows", nargs="+", metavar="ROW", default=["plain-joint"], help="names of recipes")
    parser.add_argument("--budget", default="paper", help="budget of the recipes, see recipes/budgets.yaml")
    parser.add_argument("--epochs", type=int, default=3, help="epochs of Trainer on each task")
    common.add_case_options(parser)
    parser.add_argument("-S", action="append", default=[], metavar="KEY=VALUE", help="set a param, as in recipes run")
    args = parser.parse_args(argv)
    with work_folders(args) as work:
        selected = common.chosen(cases(work, args.epochs, args.budget), args.only)
        runs = common.measure(selected, args)
    if not (curves_by_name := curves(runs)):
        sys.exit(f"--only: expected a row, or {TRAINER} on all of {', '.join(TASKS)}: there is no curve to draw")
    draw(curves_by_name, args.out / "minutes.png", f"budget {args.budget}, {args.threads} threads")
    common.report("minutes", args, selected, runs, [table(curves_by_name)])


if __name__ == "__main__":
    main()
