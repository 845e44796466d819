"""Revisions of the repository, read without checkout: DVC experiments, commits, tags, branches or `workspace`."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from bertrio.config.reading import read_yaml
from bertrio.core.errors import UserError, did_you_mean
from bertrio.core.files import read_parquet
from bertrio.core.tasks import Task, build_target
from bertrio.evaluation.predictions import check_tasks, read_predictions
from bertrio.experiments.recipes.params import changes, set_param

WORKSPACE = "workspace"
PREDICTIONS = "predictions/ensemble.parquet"
REFERENCE = re.compile(r"refs/exps/(?P<a>[0-9a-f]{2})/(?P<b>[0-9a-f]{38})/(?P<name>\S+) (?P<commit>[0-9a-f]+)")


class Experiment(NamedTuple):
    """Finished experiment: its name, its commit, and the commit that it started from."""

    name: str
    commit: str
    baseline: str


def find_experiments(root: str | Path = ".") -> dict[str, Experiment]:
    """Return all experiments by name, the oldest first; of experiments with the same name, the newest.

    DVC stores an experiment as the git reference `refs/exps/<baseline, 2 digits>/<38 digits>/<name>`.

    Raises:
        UserError: if `root` is no DVC repository.
    """
    result = _git(root, "for-each-ref", "--sort=committerdate", "--format=%(refname) %(objectname)", "refs/exps")
    if result.returncode or not (Path(root) / "dvc.yaml").exists():
        raise UserError(
            f"{Path(root).resolve()} is no git clone with dvc.yaml; run this from the folder that holds dvc.yaml"
        )
    matches = (REFERENCE.fullmatch(line) for line in result.stdout.decode().splitlines())
    return {ref["name"]: Experiment(ref["name"], ref["commit"], ref["a"] + ref["b"]) for ref in matches if ref}


class Revision:
    """Read access to the files of one revision, stored in git or in DVC's cache.

    Args:
        name: name given by the user.
        commit: hash of the commit; None for the workspace.
        root: folder with dvc.yaml, the root of the git repository.
    """

    def __init__(self, name: str, commit: str | None = None, root: str | Path = ".") -> None:
        self.name, self.commit, self._root = name, commit, Path(root)

    @classmethod
    def open(cls, name: str, root: str | Path = ".") -> Revision:
        """Return the revision called `name`: `workspace`, a commit, tag or branch, or an experiment.

        Raises:
            UserError: if there is no such revision, or no repository.
        """
        if name == WORKSPACE:
            return cls(name, root=root)
        commit = _git(root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").stdout.decode().strip()
        if not commit:
            experiments = find_experiments(root)
            if name not in experiments:
                raise UserError(
                    f"{name}: there is no such revision; expected {WORKSPACE}, a commit, tag or branch, or an "
                    f"experiment that dvc exp list -A shows{did_you_mean(name, experiments) or '.'} An experiment gets "
                    "its name when it ends: if it was stopped, the same dvc exp run goes on from its checkpoint"
                )
            commit = experiments[name].commit
        return cls(name, commit, root)

    @property
    def title(self) -> str:
        """Name of the revision, with the start of the commit hash unless the name is the hash."""
        if self.commit is None or self.commit.startswith(self.name):
            return self.name
        return f"{self.name} ({self.commit[:7]})"

    @property
    def date(self) -> str:
        """Day on which dvc.lock was committed, or written if it is newer than the last commit; empty without it."""
        file = self._root / "dvc.lock"
        if self.commit is None and file.exists() and _git(self._root, "status", "--porcelain", "dvc.lock").stdout:
            return f"{datetime.fromtimestamp(file.stat().st_mtime, UTC):%Y-%m-%d}"
        committed = _git(self._root, "log", "-1", "--format=%cs", self.commit or "HEAD", "--", "dvc.lock")
        return committed.stdout.decode().strip()

    def exists(self, path: str) -> bool:
        """Return whether the revision has the file or folder; its content may still be missing from DVC's cache."""
        if self.commit is None:
            return (self._root / path).exists()
        return not _git(self._root, "cat-file", "-e", f"{self.commit}:{path}").returncode or self._dvc.exists(path)

    def files(self, folder: str) -> list[str]:
        """Return the sorted paths of all files below `folder`; empty if there is no such folder."""
        if self.commit is None:
            files = [file for file in (self._root / folder).rglob("*") if file.is_file()]
            return sorted(file.relative_to(self._root).as_posix() for file in files)
        with self._from_cache(folder):
            return sorted(file.lstrip("/") for file in self._dvc.find(folder)) if self._dvc.exists(folder) else []

    def read(self, path: str) -> bytes:
        """Return the content of a file.

        Raises:
            UserError: if the revision has no such file, or its content is not in DVC's cache.
        """
        if not self.exists(path):
            raise UserError(f"{self.title}: {path}: is missing; run dvc repro, or dvc checkout where it was run before")
        if self.commit is None:
            return (self._root / path).read_bytes()
        # Not by DVCFileSystem: pygit2 streams files of git in a thread, which can hang on a busy machine
        blob = _git(self._root, "cat-file", "blob", f"{self.commit}:{path}")
        if blob.returncode == 0:
            return blob.stdout
        with self._from_cache(path):
            return self._dvc.cat_file(path)

    def json(self, path: str) -> Any:
        """Return the content of a JSON file.

        Raises:
            UserError: if it is missing or not JSON.
        """
        try:
            return json.loads(self.read(path))
        except ValueError as error:
            raise UserError(f"{self.title}: {path} is not JSON ({error}); run the stage that writes it") from error

    def settings(self) -> dict[str, Any]:
        """Return the raw content of params.yaml, which in older revisions may be invalid today.

        Raises:
            UserError: if it is missing or not a mapping.
        """
        return self._yaml("params.yaml")

    @cached_property
    def run_params(self) -> dict[str, Any]:
        """Raw params that made the result: those in dvc.lock, and of params.yaml those that no stage depends on.

        Raises:
            UserError: if params.yaml is missing, a file is damaged, or a run has not ended, so that dvc.lock has new
                params beside old results.
        """
        if problem := self.unfinished():
            raise UserError(problem)
        params = self.settings()
        stages = self._current(self._locked_stages).values()
        locked = [stage.get("params", {}).get("params.yaml", {}) for stage in stages]
        values: dict[str, Any] = {}
        for block in reversed(locked):  # the first stage counts: analyze may not have run
            values |= block
        for name, value in values.items():
            set_param(params, name, None)  # a block is replaced, not merged
            set_param(params, name, value)
        return params

    def edited_params(self) -> dict[str, tuple[Any, Any]]:
        """Return the params whose value in params.yaml is not the one that made the result: both values by name."""
        return changes(self.run_params, self.settings())

    def unfinished(self) -> str:
        """Return why the results are not of the params in dvc.lock, as after a stopped run; empty if they are.

        That is where a stage did not run on what those before it made last. Results do not depend on `analyze`, and
        `check` has no params of its own: it may run alone, as before data that are then refused.
        """
        made = {name: stage for name, stage in self._locked_stages.items() if name != "check"}
        of_members = [self._outs(made), self._outs(self._current(made))]  # DVC leaves files of dropped members
        for name, stage in self._current(made).items():
            for dep in stage.get("deps", ()) if name != "analyze" else ():
                newest = {_digest(dep["path"], outs) for outs in of_members} - {None}
                if newest and dep.get("md5") not in newest:
                    advice = "run dvc repro to end it"
                    if self.commit is not None:
                        advice = f"to end it, git checkout {self.name} (dvc exp apply, for an experiment), dvc repro"
                    problem = f"{name} did not run on the newest {dep['path']}, so a run has not ended; {advice}"
                    return f"{self.title}: dvc.lock: {problem}"
        return ""

    @cached_property
    def _locked_stages(self) -> dict[str, Any]:
        """Stages in dvc.lock by name, in the order in which they first ran; {} without dvc.lock."""
        return self._yaml("dvc.lock").get("stages", {}) if self.exists("dvc.lock") else {}

    @staticmethod
    def _outs(stages: dict[str, Any]) -> dict[str, str]:
        """Return the digests of all outputs of stages by path."""
        outs = [out for stage in stages.values() for out in stage.get("outs", ())]
        return {out["path"]: out["md5"] for out in outs if "md5" in out}

    @staticmethod
    def _current(stages: dict[str, Any]) -> dict[str, Any]:
        """Return the stages without those of dropped members, which DVC leaves in dvc.lock."""
        members = stages.get("evaluate", {}).get("params", {}).get("params.yaml", {}).get("ensemble.members")
        return {
            name: stage
            for name, stage in stages.items()
            if "@" not in name or members is None or name.partition("@")[2] in members
        }

    def _yaml(self, path: str) -> dict[str, Any]:
        return read_yaml(f"{self.title}: {path}", self.read(path))

    def tasks(self) -> dict[str, Task]:
        """Return the tasks of the run, built from few params so that older revisions stay readable.

        Raises:
            UserError: if params.yaml is missing or describes no tasks.
        """
        try:
            return {name: _task(name, block) for name, block in self.run_params["tasks"].items()}
        except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{self.title}: params.yaml: the tasks can't be read ({error!r}), expected blocks such as "
                "sst: {kind: single, target: ordered, classes: 5}"
            ) from error

    def predictions(self) -> pd.DataFrame:
        """Return the ensemble's prediction table.

        Raises:
            UserError: if it is missing, damaged, or has tasks that params.yaml does not have.
        """
        frame = read_predictions(f"{self.title}: {PREDICTIONS}", content=self.read(PREDICTIONS))
        check_tasks(frame, self.tasks())
        return frame

    def rows(self, task: str, split: str) -> pd.DataFrame:
        """Return the rows of a task in train, dev or test, with id, texts and label."""
        return read_parquet(BytesIO(self.read(f"data/splits/{task}/{split}.parquet"))).to_pandas(use_threads=False)

    @contextmanager
    def _from_cache(self, path: str) -> Iterator[None]:
        """Turn failures to read `path` from DVC's cache into a UserError."""
        from dvc.exceptions import DvcException
        from dvc_data.index import DataIndexDirError

        try:
            yield
        except (OSError, DvcException, DataIndexDirError) as error:
            raise UserError(
                f"{self.title}: the content of {path} is not in DVC's cache; run dvc pull if a remote has it. Or "
                f"make it again: git checkout {self.name} (dvc exp apply, for an experiment), then dvc repro"
            ) from error

    @cached_property
    def _dvc(self) -> Any:
        from dvc.api import DVCFileSystem  # takes half a second

        return DVCFileSystem(str(self._root.resolve()), rev=self.commit)


def _digest(path: str, outs: dict[str, str]) -> str | None:
    """Return DVC's digest of an output, or of a folder of outputs that are files; None if it is neither."""
    inside = {name.removeprefix(f"{path}/"): md5 for name, md5 in outs.items() if name.startswith(f"{path}/")}
    if not inside or any(md5.endswith(".dir") for md5 in inside.values()):
        return outs.get(path)
    files = [{"md5": md5, "relpath": name} for name, md5 in sorted(inside.items())]
    return hashlib.md5(json.dumps(files, sort_keys=True).encode()).hexdigest() + ".dir"


def _git(root: str | Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=False)


def _task(name: str, block: dict[str, Any]) -> Task:
    limits: Any = tuple(float(end) for end in block.get("range") or ()) or None
    classes = block.get("labels") or block.get("classes")  # older versions have names in `labels`
    target = build_target(block["target"], classes, limits, block.get("metric"))
    return Task(name, block["kind"], block.get("encoding") or "cross", target)
