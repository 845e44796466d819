"""A git and DVC repository with one quick stage, for tests of what DVC itself does with experiments."""

import subprocess
import sys
from pathlib import Path

import yaml


class Clone:
    """A git repository in `folder`, with DVC."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for key in ("user.name", "user.email"):
            self.git("config", key, "t@t")

    def commit(self) -> None:
        """Commits all files."""
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "state")

    def git(self, *arguments: str) -> str:
        """Runs git here; gives what it prints."""
        return run(self.folder, "git", *arguments)

    def dvc(self, *arguments: str) -> str:
        """Runs DVC here; gives what it prints."""
        return run(self.folder, sys.executable, "-m", "dvc", *arguments)


def toy_project(folder: Path, stage: str, params: str, **dvc: list) -> Clone:
    """Makes a project whose one stage runs a script and may read all of params.yaml; nothing is committed.

    Args:
        folder: where to make it.
        stage: the script.
        params: what params.yaml holds.
        **dvc: outs, metrics, plots and deps of the stage.
    """
    (folder / "stage.py").write_text(stage)
    (folder / "params.yaml").write_text(params)
    deps = ["stage.py", *dvc.pop("deps", [])]
    train = {"cmd": f"{sys.executable} stage.py", "deps": deps, "params": list(yaml.safe_load(params)), **dvc}
    (folder / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"train": train}}))
    run(folder, "git", "init", "-q", "-b", "main")
    project = Clone(folder)
    project.dvc("init", "-q")
    project.dvc("config", "core.analytics", "false")
    return project


def run(folder: Path, *command: str) -> str:
    """Runs a command, which has to succeed; gives what it prints."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout
