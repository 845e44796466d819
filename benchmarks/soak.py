"""Kill stages (-9) at random points, run them again, and compare bytes; finetune under random techniques.

    python -m benchmarks.soak --kills 40 --seed 0 --into docs/reliability.md

Prints each kill, then a table of stages, which `--into` puts between the two marks of a Markdown file. Fails if a
single byte differs.
"""

from __future__ import annotations

import argparse
import random
import re
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pandas as pd

from bertrio.config import merged
from bertrio.core.files import write_text
from tests.stopping import STAGES, Run, StoppedProject, differing

MARKS = ("<!-- soak: from here on written by make soak -->", "<!-- soak: up to here -->")
EVENTS = ("pass", "update", "sync", "rename", "renamed", "scored", "output", "moment")
SCHEDULES = ("sequential", "per_epoch", "round_robin", "annealed", "temperature")  # and joint
TECHNIQUES: dict[str, dict[str, Any]] = {  # with state between steps, or steps in pieces
    "smart": {"smart": {"lambda": 1.0, "steps": 1}},
    "bregman": {"bregman": {"mu": 1.0, "late_momentum": 0.999}},
    "pcgrad": {"surgery": {"method": "pcgrad", "log_conflicts": True}},
    "uncertainty": {"weighting": {"method": "uncertainty"}},
    "ema": {"finetune": {"ema": 0.9}},
    "accumulate": {"finetune": {"accumulate": 2}},
}
PIPELINE: dict[str, Any] = {  # every stage trains, with a checkpoint every few steps
    "data": {"sample": {"train_rows": 120, "dev_rows": 40, "test_rows": 20}},
    "encoder": {"tiny": {"vocab_size": 300}},
    "mlm": {"enabled": True, "rows": {"imdb": 30, "multinli": 30, "sick": 30}, "block_size": 32, "max_steps": 20},
    "prefinetune": {"epochs": 2},
}


def soak(folder: Path, kills: int, rng: random.Random) -> pd.DataFrame:
    """Kill runs of finetune, each under its own settings, in one project, and other stages in another.

    Args:
        folder: an empty folder.
        kills: number of kills.
        rng: draws settings and points.

    Returns:
        A row for each kill.
    """
    training, pipeline = StoppedProject(folder / "training"), StoppedProject(folder / "pipeline")
    pipeline.write_params(PIPELINE)
    uninterrupted = {stage: run_whole(pipeline, stage) for stage in STAGES}
    rows = []
    for stage, settings, event in plan(kills, rng):
        project, whole = pipeline, uninterrupted[stage]
        if stage == "finetune":
            training.write_params(settings)
            project, whole = training, run_whole(training, stage, fresh=True)
        event = event or rng.choice([name for name in EVENTS if whole.counts.get(name)])
        expected, count = project.outputs(stage), whole.counts["seconds" if event == "moment" else event]
        number = kill(project, stage, event, count, rng)
        resumed = completed(project.run(stage=stage))
        step = re.search(r"resumed after step (\d+)", resumed.output)
        rows.append([stage, event, f"{number:.3g} of {count:.3g}", step and step[1], settings])
        rows[-1].append(differing(project.outputs(stage), expected))
        print(len(rows), *rows[-1], sep=" | ", flush=True)
    training.close()
    pipeline.close()
    return pd.DataFrame(rows, columns=["stage", "event", "point", "step", "settings", "differing"])


def plan(kills: int, rng: random.Random) -> list[tuple[str, dict[str, Any], str | None]]:
    """Draw stage, settings and event of each kill.

    Every other kill is of finetune: each event comes as often as any other, with half of the techniques on, and joint
    steps come as often as all other schedules together. The rest are of the other stages in turn, at any event (None)
    and at a moment.
    """
    drawn: list[tuple[str, dict[str, Any], str | None]] = []
    others = [(stage, {}, event) for event in (None, "moment") for stage in STAGES if stage != "finetune"]
    for turn in range(-(-kills // 2)):
        names = [name for name in TECHNIQUES if rng.random() < 0.5]
        settings: dict[str, Any] = {"schedule": {"name": "joint" if "pcgrad" in names else rng.choice(SCHEDULES)}}
        for name in names:
            settings = merged(settings, TECHNIQUES[name])
        drawn += [("finetune", settings, EVENTS[turn % len(EVENTS)]), others[turn % len(others)]]
    return drawn[:kills]


def run_whole(project: StoppedProject, stage: str, fresh: bool = False) -> Run:
    """Run a stage from its beginning without stopping it."""
    project.start_over(stage)
    return completed(project.run(fresh=fresh, stage=stage))


def kill(project: StoppedProject, stage: str, event: str, count: float, rng: random.Random) -> float:
    """Kill a run from its beginning, and return the number of the event, or the seconds, at which it was killed."""
    while True:
        number = rng.uniform(0, count) if event == "moment" else rng.randint(1, int(count))
        project.start_over(stage)
        killed = project.run("kill", event, number, stage=stage)
        if killed.code == -signal.SIGKILL:
            return number
        if event != "moment":  # a faster run than the one before may end before its moment: draw again
            sys.exit(f"{stage}: expected a kill at {event} {number}, found exit code {killed.code}:\n{killed.output}")


def completed(run: Run) -> Run:
    """Return the run; exit if it failed."""
    if run.code:
        sys.exit(f"the stage failed with exit code {run.code}:\n{run.output}")
    return run


def markdown(kills: pd.DataFrame, seed: int, seconds: float) -> str:
    """Return a line and a table with a row for each stage."""
    columns = {
        "kills": ("stage", "size"),
        "killed at": ("event", lambda events: ", ".join(dict.fromkeys(events))),
        "went on from a checkpoint": ("step", "count"),
        "files that differ": ("differing", lambda files: sum(map(len, files))),
    }
    table = kills.groupby("stage", sort=False).agg(**columns)
    line = f"{len(kills)} kills (seed {seed}, {seconds:.0f} s): {kills.differing.map(bool).sum()} with a difference."
    return f"{line}\n\n{table.to_markdown(disable_numparse=True)}"


def insert(path: Path, text: str) -> None:
    """Replace the text between the marks in a file."""
    before, begin, rest = path.read_text(encoding="utf-8").partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not (begin and end):
        sys.exit(f"{path}: expected the lines {MARKS[0]} and {MARKS[1]}, with the result between them")
    write_text(path, f"{before}{begin}\n{text}\n{end}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0, help="seed of settings and points")
    parser.add_argument("--into", type=Path, help="a Markdown file with the two marks")
    args = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        kills = soak(Path(folder), args.kills, random.Random(args.seed))
    text = markdown(kills, args.seed, time.monotonic() - began)
    print(text)
    if args.into:
        insert(args.into, text)
    sys.exit(int(kills.differing.map(bool).any()))


if __name__ == "__main__":
    main()
