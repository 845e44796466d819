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

from bertrio.params import merged
from tests.training.conftest import Workspace

ROOT = Path(__file__).resolve().parents[1]
OUTPUTS = ("models/members", "predictions/members", "plots")
EVENTS = ("pass", "update", "sync", "rename", "renamed", "scored", "output", "moment")
EVERY = 3  # steps between two checkpoints
SCHEDULES = ("sequential", "per_epoch", "round_robin", "annealed", "temperature")


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

    def run(self, action: str = "none", event: str = "none", number: float = 0) -> Run:
        """Runs finetune, and does `action` to it when `event` comes for the `number`th time (see stopped_stage.py)."""
        counts = self.folder / "counts.json"
        counts.unlink(missing_ok=True)
        told = [str(counts), action, event, str(number), "stages/finetune.py", "--member", "base"]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("DVC_")}
        environment |= {"BERTRIO_CHECKPOINTS": str(self.checkpoints), "PYTHONPATH": str(self.folder / "src")}
        done = subprocess.run(
            [sys.executable, str(ROOT / "tests/stopped_stage.py"), *told],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=1800,  # of a machine that does other things too
        )
        return Run(done.returncode, done.stdout + done.stderr, json.loads(counts.read_text()))

    def outputs(self) -> dict[str, bytes]:
        """All files that finetune has written, by path."""
        files = [path for name in OUTPUTS for path in sorted((self.folder / name).rglob("*")) if path.is_file()]
        # what begins with a dot is the rest of a file that a killed process was writing: DVC removes it before it runs
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in files if path.name[0] != "."}

    def whole_checkpoints(self) -> list[str]:
        """Names of the checkpoints that are there."""
        return sorted(path.name for path in self.checkpoints.glob("*/*-step-*") if path.name[0] != ".")


def differing(one: dict[str, bytes], other: dict[str, bytes]) -> list[str]:
    """Files that one of the two has alone, or that differ."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def drawn_settings(rng: random.Random) -> dict[str, Any]:
    """A combination of techniques that have something to remember from step to step."""
    on = lambda: rng.random() < 0.5  # noqa: E731
    name = "joint" if on() else rng.choice(SCHEDULES)  # the one that surgery goes with
    settings: dict[str, Any] = {"schedule": {"name": name}, "finetune": {"accumulate": rng.choice((1, 2))}}
    if on():
        settings["smart"] = {"lambda": 1.0, "steps": 1}
    if on():
        settings["bregman"] = {"mu": 1.0, "late_momentum": 0.999}
    if name == "joint" and rng.random() < 0.8:
        settings["surgery"] = {"method": "pcgrad", "log_conflicts": True}
    if on():
        settings["weighting"] = {"method": "uncertainty"}
    if on():
        settings["finetune"]["ema"] = 0.9
    return settings


def named(settings: dict[str, Any]) -> str:
    """Settings in words: the schedule, and what is on."""
    words = [settings["schedule"]["name"]]
    words += [name for name in ("smart", "bregman") if name in settings]
    words += [settings[name]["method"] for name in ("surgery", "weighting") if name in settings]
    words += ["ema"] if "ema" in settings["finetune"] else []
    words += ["accumulate 2"] if settings["finetune"]["accumulate"] == 2 else []
    return ", ".join(words)
