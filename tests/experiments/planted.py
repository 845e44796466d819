"""A git and DVC repository whose experiments are planted by hand, with all of their files in git: no run is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from bertrio.config import build_tasks
from bertrio.config.loading import validate_params
from bertrio.evaluation.metrics import evaluate_predictions
from bertrio.evaluation.predictions import write_predictions
from bertrio.experiments.revision import find_experiments


class Planted:
    """A project in `folder`, with params.yaml and recipes/ of the real one at `root`."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder = folder
        (folder / "params.yaml").write_bytes((root / "params.yaml").read_bytes())
        (folder / "dvc.yaml").write_text("stages: {}\n")
        (folder / "recipes").symlink_to(root / "recipes")
        self._git("init", "-q", "-b", "main")
        subprocess.run([sys.executable, "-m", "dvc", "init", "-q"], cwd=folder, check=True)
        self._git("add", "-A")
        self._git("commit", "-q", "-m", "project")
        self._head = self._git("rev-parse", "HEAD")

    def experiment(
        self,
        name: str,
        settings: Mapping[str, Any],
        frame: pd.DataFrame | None = None,
        **figures: float,
    ) -> None:
        """Plants one, with predictions or with the `figures` alone: each task's first metric, and overall scores."""
        dev = figures
        if frame is not None:
            tasks = build_tasks(validate_params(dict(settings), "params.yaml"))
            dev = evaluate_predictions(frame, tasks)["dev"]
            write_predictions(frame, self.folder / ".git/predictions.parquet")
        files = {
            "params.yaml": yaml.safe_dump(dict(settings), sort_keys=False).encode(),
            "metrics/evaluation.json": json.dumps({"dev": dev, "intervals": {"dev": _around(dev)}}).encode(),
        }
        if frame is not None:
            files["predictions/ensemble.parquet"] = (self.folder / ".git/predictions.parquet").read_bytes()
        index = {"GIT_INDEX_FILE": str(self.folder / ".git/planted")}
        self._git("read-tree", self._head, **index)
        for path, content in files.items():
            blob = self._git("hash-object", "-w", "--stdin", content=content)
            self._git("update-index", "--add", "--cacheinfo", f"100644,{blob},{path}", **index)
        commit = self._git("commit-tree", self._git("write-tree", **index), "-p", self._head, "-m", name)
        self._git("update-ref", f"refs/exps/{self._head[:2]}/{self._head[2:]}/{name}", commit)

    def remove(self, name: str) -> None:
        """Removes an experiment."""
        self._git("update-ref", "-d", f"refs/exps/{self._head[:2]}/{self._head[2:]}/{name}")

    @property
    def names(self) -> list[str]:
        """All experiments."""
        return list(find_experiments(self.folder))

    def _git(self, *arguments: str, content: bytes = b"", **environment: str) -> str:
        who = {f"GIT_{role}_{what}": "t@t" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        done = subprocess.run(
            ["git", *arguments],
            cwd=self.folder,
            input=content,
            capture_output=True,
            env={**os.environ, **who, **environment},
            check=True,
        )
        return done.stdout.decode().strip()


def _around(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _around(of) if isinstance(of, Mapping) else [of - 0.02, of + 0.02] for name, of in figures.items()}
