"""Kills finetune (-9) at random points under random combinations of techniques, runs it again, and compares bytes.

    python -m tests.soak --kills 25 --seed 0 --into docs/architecture.md

Prints a table and, if asked, puts it into a Markdown file between the two marks. Fails if a single byte differs.
"""

from __future__ import annotations

import argparse
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from bertrio.core.files import write_text
from tests.stopping import Run, StoppedProject, differing, plan, techniques

MARKS = ("<!-- soak: from here on written by make soak -->", "<!-- soak: up to here -->")
HEADER = ("", "schedule", "on", "killed at", "the time", "went on after step", "updates again", "files that differ")


def soak(folder: Path, kills: int, rng: random.Random) -> list[list[Any]]:
    """Kills so many runs, each under settings of its own.

    Args:
        folder: an empty one.
        kills: how many.
        rng: draws settings and points.

    Returns:
        A row for each kill, as in HEADER, with the list of files in the last place.
    """
    project, rows = StoppedProject(folder), []
    for settings, event in plan(kills, rng):
        project.write_params(settings)
        project.start_over()
        whole = ended_well(project.run(fresh=True))
        expected, count = project.outputs(), whole.counts["seconds" if event == "moment" else event]
        number = killed_at(project, event, count, rng)
        again = ended_well(project.run())
        after = re.search(r"goes on after step (\d+)", again.said)
        files = differing(project.outputs(), expected)
        point = [event, f"{round(number, 2):g} of {round(count, 2):g}"]
        updates = f"{again.counts.get('update', 0)} of {whole.counts['update']}"
        named = [settings["schedule"]["name"], ", ".join(techniques(settings)) or "-"]
        rows.append([len(rows) + 1, *named, *point, after[1] if after else "-", updates, files])
        print(*rows[-1], sep=" | ", flush=True)
    project.close()
    return rows


def killed_at(project: StoppedProject, event: str, count: float, rng: random.Random) -> float:
    """Kills a run from its beginning, and gives the number of the event, or the seconds, at which it was killed."""
    while True:
        number = rng.uniform(0, count) if event == "moment" else rng.randint(1, count)
        project.start_over()
        killed = project.run("kill", event, number)
        if killed.code == -signal.SIGKILL:
            return number
        if event != "moment":  # which may be faster than the run before it, and be over by then
            sys.exit(f"finetune was to be killed at {event} {number} and ended with {killed.code}:\n{killed.said}")


def ended_well(run: Run) -> Run:
    """The run, if it ended well."""
    if run.code:
        sys.exit(f"finetune ended with {run.code}:\n{run.said}")
    return run


def markdown(rows: Sequence[Sequence[Any]], seed: int, seconds: float) -> str:
    """The result in Markdown: a line, and a table with a row for each kill."""
    bad = sum(bool(row[-1]) for row in rows)
    cells = pd.DataFrame([[*row[:-1], ", ".join(row[-1]) or 0] for row in rows], columns=HEADER)
    line = f"{len(rows)} kills (seed {seed}, {seconds:.0f} s): {bad} with a difference."
    return f"{line}\n\n{cells.to_markdown(index=False, disable_numparse=True)}"


def put_into(path: Path, text: str) -> None:
    """Puts `text` between the marks in a file."""
    before, begin, rest = path.read_text(encoding="utf-8").partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not (begin and end):
        sys.exit(f"{path}: found no lines {MARKS[0]} and {MARKS[1]}, expected both: the result stands between them")
    write_text(path, f"{before}{begin}\n{text}\n{end}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0, help="of settings and points")
    parser.add_argument("--into", type=Path, help="a Markdown file with the two marks")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        rows = soak(Path(folder), options.kills, random.Random(options.seed))
    text = markdown(rows, options.seed, time.monotonic() - began)
    print(text)
    if options.into:
        put_into(options.into, text)
    sys.exit(any(row[-1] for row in rows))


if __name__ == "__main__":
    main()
