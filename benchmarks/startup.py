"""Startup times: `bertrio --help`, the imports of each stage, and `dvc repro` of an up-to-date pipeline.

    python benchmarks/startup.py

Every case is a whole process, including the start of the interpreter. `dvc repro` runs in the repository itself, and is
skipped if the pipeline is out of date.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from common import ROOT, Case, Runs, add_case_options, chosen, environment, markdown, middle, parser_of, report

IMPORTS = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='imported')"  # not __main__, so that nothing runs
LIMITS = {"bertrio --help": 0.5, "dvc repro": 3.0}  # seconds; 4 for the imports of a stage
BIN = Path(sys.executable).parent


def cases() -> list[Case]:
    """Return all cases. Commands are complete, and run in the repository."""
    stages = sorted((ROOT / "stages").glob("*.py"))
    help_ = (sys.executable, "-m", "bertrio.cli.main", "--help")
    installed = (str(BIN / "bertrio"), "--help")
    return [
        Case("bertrio --help", installed if (BIN / "bertrio").exists() else help_, "the command line's help"),
        *[Case(f"stages/{path.name}", (sys.executable, "-c", IMPORTS, str(path)), "its imports") for path in stages],
        Case("dvc repro", (str(BIN / "dvc"), "repro"), "a pipeline with nothing to do"),
    ]


def outdated() -> str | None:
    """Return why the pipeline is out of date, or None. The stage check, which always runs, does not count."""
    done = subprocess.run([str(BIN / "dvc"), "status", "--json"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        return f"dvc status failed: {done.stderr.strip()[-200:]}"
    stages = [name for name, why in json.loads(done.stdout).items() if why != ["always changed"]]
    return f"out of date: {', '.join(stages)}" if stages else None


def start(case: Case, threads: int) -> dict[str, float]:
    """Return the seconds from start to end of the case's process."""
    began = time.perf_counter()
    done = subprocess.run(case.command, cwd=ROOT, env=environment(threads), capture_output=True, text=True)
    seconds = time.perf_counter() - began
    if done.returncode:
        sys.exit(f"case {case.name} failed: {' '.join(case.command)}\n{done.stderr[-2000:]}")
    return {"seconds": seconds}


def table(runs: Runs) -> str:
    """Return a table of seconds and their limits."""
    lines = [
        [name, f"{middle(runs, name, 'seconds'):.2f}", f"{LIMITS.get(name, 4.0):.1f}"] for name in runs if runs[name]
    ]
    return markdown(["case", "s", "limit"], lines)


def main(argv: Sequence[str]) -> None:
    parser = parser_of(__doc__)
    add_case_options(parser)
    args = parser.parse_args(argv)
    args.argv = list(argv)
    picked = chosen(cases(), args.only)
    why = outdated() if any(case.name == "dvc repro" for case in picked) else None
    if why:
        picked = [case for case in picked if case.name != "dvc repro"]
    runs: Runs = {case.name: [] for case in picked}
    for case in picked:  # untimed warm-up: the first start reads files from the disk
        start(case, args.threads)
    for _ in range(args.repeats):
        for case in picked:
            runs[case.name].append(start(case, args.threads))
    report("startup", args, picked, runs, [table(runs), f"dvc repro: not run, {why}\n" if why else ""])


if __name__ == "__main__":
    main(sys.argv[1:])
