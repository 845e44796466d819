"""A git and DVC repository with one quick stage, for tests of experiments."""

import shutil
import subprocess
import sys
from pathlib import Path

import yaml


class Clone:
    """A git repository in `folder`, with DVC run by `python`."""

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        self.folder, self._python = folder, python
        for key in ("user.name", "user.email"):
            self.git("config", key, "t@t")

    def commit(self) -> None:
        """Commit all files."""
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "state")

    def git(self, *arguments: str) -> str:
        """Run git here and return its output."""
        return run(self.folder, "git", *arguments)

    def dvc(self, *arguments: str) -> str:
        """Run DVC here and return its output."""
        return run(self.folder, self._python, "-m", "dvc", *arguments)


def toy_project(folder: Path, stage: str, params: str, python: str = sys.executable, **dvc: list) -> Clone:
    """Create a project whose one stage runs a script and tracks all of params.yaml; nothing is committed.

    Args:
        folder: of the project.
        stage: text of the script.
        params: text of params.yaml.
        python: runs DVC.
        **dvc: outs, metrics, plots and deps of the stage.
    """
    (folder / "stage.py").write_text(stage)
    (folder / "params.yaml").write_text(params)
    deps = ["stage.py", *dvc.pop("deps", [])]
    train = {"cmd": f"{sys.executable} stage.py", "deps": deps, "params": list(yaml.safe_load(params)), **dvc}
    (folder / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"train": train}}))
    run(folder, "git", "init", "-q", "-b", "main")
    project = Clone(folder, python)
    project.dvc("init", "-q")
    project.dvc("config", "core.analytics", "false")
    return project


def copy_code(root: Path, folder: Path) -> None:
    """Copy stages/ and src/ from one folder to another."""
    for name in ("stages", "src"):
        shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))


def run(folder: Path, *command: str) -> str:
    """Run a command that must succeed, and return its output."""
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{' '.join(command)}\n{result.stdout}{result.stderr}"
    return result.stdout
