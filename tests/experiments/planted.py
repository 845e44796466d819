"""A git and DVC repository with experiments written as git commits, without running anything."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from bertrio.config import build_tasks
from bertrio.config.loading import validate_params
from bertrio.core.files import write_json, write_text
from bertrio.evaluation.metrics import evaluate_predictions
from bertrio.evaluation.predictions import write_predictions
from bertrio.experiments.revision import PREDICTIONS, find_experiments
from tests.toy_project import Clone, run


class Planted(Clone):
    """A project in `folder` with params.yaml and recipes/ of the repository at `root`."""

    def __init__(self, folder: Path, root: Path, python: str = sys.executable) -> None:
        (folder / "params.yaml").write_bytes((root / "params.yaml").read_bytes())
        (folder / "recipes").symlink_to(root / "recipes")
        write_text(folder / "dvc.yaml", "stages: {}\n")
        write_text(folder / ".dvc/config", "[core]\n    analytics = false\n")
        write_text(folder / ".dvc/.gitignore", "/config.local\n/tmp\n/cache\n")
        run(folder, "git", "init", "-q", "-b", "main")
        super().__init__(folder, python)
        self.commit()
        self._head = self.git("rev-parse", "HEAD").strip()

    def experiment(self, name: str, settings: Mapping[str, Any], frame=None, **figures: float) -> None:
        """Add an experiment with predictions, or with only the `figures` (main metrics and overall scores).

        Resets tracked files of the workspace to the last commit.
        """
        dev = figures
        if frame is not None:
            tasks = build_tasks(validate_params(dict(settings), "params.yaml"))
            dev = evaluate_predictions(frame, tasks)["dev"]
            write_predictions(frame, self.folder / PREDICTIONS)
            self.git("add", PREDICTIONS)
        write_text(self.folder / "params.yaml", yaml.safe_dump(dict(settings), sort_keys=False))
        write_json(self.folder / "metrics/evaluation.json", {"dev": dev, "intervals": {"dev": _around(dev)}})
        self.git("add", "params.yaml", "metrics")
        commit = self.git("commit-tree", self.git("write-tree").strip(), "-p", self._head, "-m", name).strip()
        self.git("update-ref", self._ref(name), commit)
        self.git("reset", "-q", "--hard")

    def remove(self, name: str) -> None:
        """Remove an experiment."""
        self.git("update-ref", "-d", self._ref(name))

    @property
    def names(self) -> list[str]:
        """Names of all experiments."""
        return list(find_experiments(self.folder))

    def _ref(self, name: str) -> str:
        return f"refs/exps/{self._head[:2]}/{self._head[2:]}/{name}"


def _around(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return an interval around each figure."""
    return {key: _around(x) if isinstance(x, Mapping) else [x - 0.02, x + 0.02] for key, x in figures.items()}
