"""Small runs of a stage that are stopped and resumed, for tests and for benchmarks/soak.py."""

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
from tests.toy_project import copy_code
from tests.training.conftest import Workspace
from tests.warm_python import WarmPython

ROOT = Path(__file__).resolve().parents[1]
STAGE = ROOT / "tests/stopped_stage.py"
STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
STATEFUL: dict[str, Any] = {  # techniques with state between steps, and gradient accumulation
    "surgery": {"method": "pcgrad", "log_conflicts": True},
    "weighting": {"method": "uncertainty"},
    "smart": {"lambda": 1.0},
    "bregman": {"mu": 1.0, "late_momentum": 0.999},
    "finetune": {"accumulate": 2, "ema": 0.9},
}
EVERY = 3  # steps between two checkpoints


@dataclass
class Run:
    """Exit code (-9 if killed), output and event counts of a run of a stage."""

    code: int
    output: str
    counts: dict[str, float] = field(default_factory=dict)


def outputs_of(stage: str) -> list[str]:
    """Return the paths of a stage's outputs in dvc.yaml, without timings."""
    block = STAGES[stage].get("do", STAGES[stage])
    listed = [out for kind in ("outs", "plots", "metrics") for out in block.get(kind, ())]
    paths = [(out if isinstance(out, str) else next(iter(out))).replace("${key}", "base") for out in listed]
    return [path for path in paths if not path.startswith("metrics/timing")]


class StoppedProject:
    """A copy of the code with small data, to run, stop and resume a stage in."""

    def __init__(self, folder: Path, warm: WarmPython | None = None) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self._warm = warm or WarmPython(folder / "warm")
        self._workspace = Workspace(folder, ROOT / "params.yaml")
        copy_code(ROOT, folder)

    def write_params(self, settings: dict[str, Any]) -> None:
        """Write params.yaml with small sizes, dropout, a checkpoint every few steps, and `settings`."""
        base = {"encoder": {"dropout": 0.1, "attention_dropout": 0.1}, "checkpoints": {"steps": EVERY}}
        self._workspace.params(**merged(base, settings))

    def start_over(self, stage: str = "finetune") -> None:
        """Remove outputs and checkpoints of a stage."""
        for path in (self.folder / name for name in (*outputs_of(stage), "checkpoints")):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def run(self, action="none", event="none", number=0.0, fresh=False, stage="finetune", rank=0, launcher=()) -> Run:
        """Run a stage, and trigger `action` at the `number`th `event` (see stopped_stage.py).

        Args:
            action, event, number: as above.
            rank: of the process that acts, if there are several.
            launcher: command that starts the processes, if the stage does not.
            fresh: use a new interpreter instead of a fork of one that has imported the libraries. The fork saves
                seconds; the order of sets differs between the two.
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
        result = subprocess.run(command, cwd=self.folder, env=environment, **pipes)
        return Run(result.returncode, result.stdout, json.loads(counts.read_text()) if counts.exists() else {})

    def processes(self) -> list[int]:
        """Return the ids of processes that run in the folder."""
        running = []
        for link in Path("/proc").glob("[0-9]*/cwd"):
            with suppress(OSError):  # ended, or of another user
                if link.readlink().is_relative_to(self.folder):
                    running.append(int(link.parent.name))
        return running

    def close(self) -> None:
        """End the process that runs are forked from."""
        self._warm.close()

    def outputs(self, stage: str = "finetune") -> dict[str, bytes]:
        """Return a stage's output files by path, with temporary files that a killed one left beside them."""
        outs = [self.folder / name for name in outputs_of(stage)]
        roots = [root for out in outs for root in (out, *out.parent.glob(f".{out.name}.*"))]
        files = [path for root in roots for path in (root, *root.rglob("*")) if path.is_file()]
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in files}

    def whole_checkpoints(self) -> list[str]:
        """Return the names of complete checkpoints."""
        return sorted(path.name for path in self.checkpoints.glob("*/step-*.safetensors") if path.name[0] != ".")


def differing(one: dict[str, bytes], other: dict[str, bytes]) -> list[str]:
    """Return the names of files that differ, or that only one of the two has."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
