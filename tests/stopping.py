"""What the tests of stopped runs and their long version (soak.py) share: small runs of finetune that are stopped."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertrio.config import merged
from tests.training.conftest import Workspace
from tests.warm_python import WarmPython

ROOT = Path(__file__).resolve().parents[1]
STAGE = ROOT / "tests/stopped_stage.py"
OUTPUTS = ("models/members", "predictions/members", "plots")
EVENTS = ("pass", "update", "sync", "rename", "renamed", "scored", "output", "moment")
EVERY = 3  # steps between two checkpoints
SCHEDULES = ("sequential", "per_epoch", "round_robin", "annealed", "temperature")  # and joint
TECHNIQUES: dict[str, dict[str, Any]] = {  # that have something to remember from step to step, or cut steps in pieces
    "smart": {"smart": {"lambda": 1.0, "steps": 1}},
    "bregman": {"bregman": {"mu": 1.0, "late_momentum": 0.999}},
    "pcgrad": {"surgery": {"method": "pcgrad", "log_conflicts": True}},
    "uncertainty": {"weighting": {"method": "uncertainty"}},
    "ema": {"finetune": {"ema": 0.9}},
    "accumulate": {"finetune": {"accumulate": 2}},
}


@dataclass
class Run:
    """How a run of finetune ended: its exit code (-9 if it was killed), what it said, and how often each event came."""

    code: int
    said: str
    counts: dict[str, float] = field(default_factory=dict)


class StoppedProject:
    """A copy of the code with small data, where finetune is run, stopped, and run again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self._warm = WarmPython(folder / "warm")
        self._workspace = Workspace(folder, ROOT / "params.yaml")
        for name in ("stages", "src"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))

    def write_params(self, settings: dict[str, Any]) -> None:
        """Writes params.yaml: small sizes, dropout, a checkpoint every few steps, and `settings`."""
        base = {"encoder": {"dropout": 0.1, "attention_dropout": 0.1}, "checkpoints": {"steps": EVERY}}
        self._workspace.params(**merged(base, settings))

    def start_over(self) -> None:
        """Forgets all runs: outputs and checkpoints."""
        for name in (*OUTPUTS, "checkpoints", "metrics"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def run(self, action: str = "none", event: str = "none", number: float = 0, fresh: bool = False) -> Run:
        """Runs finetune, and does `action` to it when `event` comes for the `number`th time (see stopped_stage.py).

        Args:
            action, event, number: as above.
            fresh: in a new interpreter, as users have it; else in a process forked from one that has imported the
                libraries already, which takes seconds less. Sets have another order in the two.
        """
        counts = self.folder / "counts.json"
        counts.unlink(missing_ok=True)
        python = sys.executable if fresh else self._warm.python
        arguments = [str(counts), action, event, str(number), "stages/finetune.py", "--member", "base"]
        environment = {"BERTRIO_CHECKPOINTS": str(self.checkpoints), "PYTHONPATH": str(self.folder / "src")}
        done = subprocess.run(
            [python, str(STAGE), *arguments],
            cwd=self.folder,
            env=_without_dvc() | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=1800,  # of a machine that does other things too
        )
        return Run(done.returncode, done.stdout, json.loads(counts.read_text()))

    def close(self) -> None:
        """End the process that runs are forked from."""
        self._warm.close()

    def outputs(self) -> dict[str, bytes]:
        """All files that finetune has written, by path."""
        files = [path for name in OUTPUTS for path in sorted((self.folder / name).rglob("*")) if path.is_file()]
        # what begins with a dot is the rest of a file that a killed process was writing: DVC removes it before it runs
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in files if path.name[0] != "."}

    def whole_checkpoints(self) -> list[str]:
        """Names of the checkpoints that are there."""
        return sorted(path.name for path in self.checkpoints.glob("*/step-*.safetensors") if path.name[0] != ".")


def differing(one: dict[str, bytes], other: dict[str, bytes]) -> list[str]:
    """Files that one of the two has alone, or that differ."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def plan(kills: int, rng: random.Random) -> list[tuple[dict[str, Any], str]]:
    """Settings and the event of the kill under them: each event comes as often as any other, with half of the
    techniques on, and so do joint steps and all other schedules together."""
    drawn: list[tuple[dict[str, Any], str]] = []
    for run in range(kills):
        names = [name for name in TECHNIQUES if rng.random() < 0.5]
        settings: dict[str, Any] = {"schedule": {"name": "joint" if "pcgrad" in names else rng.choice(SCHEDULES)}}
        for name in names:
            settings = merged(settings, TECHNIQUES[name])
        drawn.append((settings, EVENTS[run % len(EVENTS)]))
    return drawn


def techniques(settings: dict[str, Any]) -> list[str]:
    """Names of the techniques that are on."""
    return [name for name, on in TECHNIQUES.items() if merged(settings, on) == settings]


def _without_dvc() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("DVC_")}
