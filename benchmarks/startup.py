"""Startup times: `bertrio --help`, the imports of each stage, and `dvc repro` of an up-to-date pipeline.

    python benchmarks/startup.py

Every case is a whole process, including the start of the interpreter. `dvc repro` runs in the repository itself, and is
skipped if the pipeline is out of date.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import common
from common import ROOT, Case, Runs, median_cells, run_command

IMPORTS = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='imported')"  # not __main__, so that nothing runs
LIMITS = {"bertrio --help": 0.5, "dvc repro": 3.0}  # seconds; 4 for the imports of a stage
BIN = Path(sys.executable).parent


def cases() -> list[Case]:
    """Return all cases. Commands are complete, and run in the repository."""
    stages = sorted((ROOT / "stages").glob("*.py"))
    bertrio = (str(BIN / "bertrio"),) if (BIN / "bertrio").exists() else (sys.executable, "-m", "bertrio.cli.main")
    return [
        Case("bertrio --help", (*bertrio, "--help"), "help of the command line"),
        *[Case(f"stages/{path.name}", (sys.executable, "-c", IMPORTS, str(path)), "imports") for path in stages],
        Case("dvc repro", (str(BIN / "dvc"), "repro"), "pipeline with nothing to do"),
    ]


def outdated() -> str | None:
    """Return why the pipeline is out of date, or None. The stage check, which always runs, does not count."""
    status = subprocess.run([str(BIN / "dvc"), "status", "--json"], cwd=ROOT, capture_output=True, text=True)
    if status.returncode:
        return f"dvc status failed: {status.stderr.strip()[-200:]}"
    stages = [name for name, changes in json.loads(status.stdout).items() if changes != ["always changed"]]
    return f"out of date: {', '.join(stages)}" if stages else None


def table(runs: Runs) -> str:
    """Return a table of seconds and their limits."""
    lines = [[name, *median_cells(runs, name, seconds=2), f"{LIMITS.get(name, 4.0):.1f}"] for name in runs]
    return common.markdown(["case", "s", "limit"], lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser_of(__doc__)
    common.add_case_options(parser)
    args = parser.parse_args(argv)
    selected = common.chosen(cases(), args.only)
    reason = outdated() if any(case.name == "dvc repro" for case in selected) else None
    if reason:
        selected = [case for case in selected if case.name != "dvc repro"]
    for case in selected:  # untimed warm-up: the first start reads files from the disk
        run_command(case.command, args.threads)
    runs: Runs = {case.name: [] for case in selected}
    for _ in range(args.repeats):
        for case in selected:
            runs[case.name].append(run_command(case.command, args.threads))
    common.report("startup", args, selected, runs, [table(runs), f"dvc repro: not run, {reason}\n" if reason else ""])


if __name__ == "__main__":
    main()
