"""What the tests of stopped runs and their long version (benchmarks/soak.py) share: small runs of a stage, stopped."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bertrio.config import merged
from tests.training.conftest import Workspace
from tests.warm_python import WarmPython

ROOT = Path(__file__).resolve().parents[1]
STAGE = ROOT / "tests/stopped_stage.py"
STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
STATEFUL: dict[str, Any] = {  # what has something to remember from step to step, and what cuts steps in pieces
    "surgery": {"method": "pcgrad", "log_conflicts": True},
    "weighting": {"method": "uncertainty"},
    "smart": {"lambda": 1.0},
    "bregman": {"mu": 1.0, "late_momentum": 0.999},
    "finetune": {"accumulate": 2, "ema": 0.9},
}
EVERY = 3  # steps between two checkpoints


@dataclass
class Run:
    """How a run of a stage ended: its exit code (-9 if it was killed), what it said, and how often each event came."""

    code: int
    said: str
    counts: dict[str, float] = field(default_factory=dict)


def outputs_of(stage: str) -> list[str]:
    """Paths of what a stage writes by dvc.yaml, but for timings."""
    block = STAGES[stage].get("do", STAGES[stage])
    listed = [out for kind in ("outs", "plots", "metrics") for out in block.get(kind, ())]
    paths = [(out if isinstance(out, str) else next(iter(out))).replace("${key}", "base") for out in listed]
    return [path for path in paths if not path.startswith("metrics/timing")]


class StoppedProject:
    """A copy of the code with small data, where a stage (finetune) is run, stopped, and run again."""

    def __init__(self, folder: Path, warm: WarmPython | None = None) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self._warm = warm or WarmPython(folder / "warm")
        self._workspace = Workspace(folder, ROOT / "params.yaml")
        for name in ("stages", "src"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))

    def write_params(self, settings: dict[str, Any]) -> None:
        """Writes params.yaml: small sizes, dropout, a checkpoint every few steps, and `settings`."""
        base = {"encoder": {"dropout": 0.1, "attention_dropout": 0.1}, "checkpoints": {"steps": EVERY}}
        self._workspace.params(**merged(base, settings))

    def start_over(self, stage: str = "finetune") -> None:
        """Forgets all runs of a stage: outputs and checkpoints."""
        for path in (self.folder / name for name in (*outputs_of(stage), "checkpoints")):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def run(self, action="none", event="none", number=0.0, fresh=False, stage="finetune", rank=0, launcher=()) -> Run:
        """Runs a stage, and does `action` to it when `event` comes for the `number`th time (see stopped_stage.py).

        Args:
            action, event, number: as above.
            rank: the process that acts, if there are several.
            launcher: what starts them, if the stage does not.
            fresh: in a new interpreter, as users have it; else in a process forked from one that has imported the
                libraries already, which takes seconds less. Sets have another order in the two.
        """
        counts = self.folder / "counts.json"
        counts.unlink(missing_ok=True)
        python = sys.executable if fresh else self._warm.python
        arguments = [str(counts), action, event, str(number), f"stages/{stage}.py"]
        arguments += ["--member", "base"] if stage == "finetune" else []
        environment = {"BERTRIO_CHECKPOINTS": str(self.checkpoints), "PYTHONPATH": str(self.folder / "src")}
        environment |= {"ACTS": str(rank), "OMP_NUM_THREADS": "1"}
        environment |= {key: value for key, value in os.environ.items() if key[:4] != "DVC_" and key not in environment}
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "timeout": 1800}
        command = [python, *launcher, str(STAGE), *arguments]
        done = subprocess.run(command, cwd=self.folder, env=environment, **pipes)
        return Run(done.returncode, done.stdout, json.loads(counts.read_text()) if counts.exists() else {})

    def processes(self) -> list[int]:
        """The processes that run in the folder."""
        running = []
        for link in Path("/proc").glob("[0-9]*/cwd"):
            with suppress(OSError):  # it has ended, or is another user's
                if link.readlink().is_relative_to(self.folder):
                    running.append(int(link.parent.name))
        return running

    def close(self) -> None:
        """End the process that runs are forked from."""
        self._warm.close()

    def outputs(self, stage: str = "finetune") -> dict[str, bytes]:
        """All files that are where a stage writes, by path, with what a killed one has left beside its outputs."""
        outs = [self.folder / name for name in outputs_of(stage)]
        roots = [root for out in outs for root in (out, *out.parent.glob(f".{out.name}.*"))]
        files = [path for root in roots for path in (root, *root.rglob("*")) if path.is_file()]
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in files}

    def whole_checkpoints(self) -> list[str]:
        """Names of the checkpoints that are there."""
        return sorted(path.name for path in self.checkpoints.glob("*/step-*.safetensors") if path.name[0] != ".")


def differing(one: dict[str, bytes], other: dict[str, bytes]) -> list[str]:
    """Files that one of the two has alone, or that differ."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
