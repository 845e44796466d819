"""One state of the repository, read without checking it out: a DVC experiment, commit, tag, branch or `workspace`."""

from __future__ import annotations

import json
import subprocess
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import yaml

from bertrio.core.errors import UserError
from bertrio.core.tasks import Task, build_target
from bertrio.evaluation.predictions import check_tasks, read_predictions

if TYPE_CHECKING:  # takes half a second to import, and most commands do without
    from dvc.fs import GitFileSystem
    from dvc.fs.dvc import DVCFileSystem

    from bertrio.config import Params

WORKSPACE = "workspace"
PREDICTIONS = "predictions/ensemble.parquet"


class Revision:
    """What one revision holds, whether git or DVC's cache keeps it. The workspace and its files stay as they are.

    `name` is what the user called it, `commit` the hash it stands for, or None for the workspace.
    """

    def __init__(self, name: str, root: Path, commit: str | None, files: DVCFileSystem | None) -> None:
        self.name = name
        self.commit = commit
        self._root = root
        self._files: Any = files

    @classmethod
    def open(cls, name: str, root: str | Path = ".") -> Revision:
        """The revision called `name`: `workspace`, or an experiment, commit, tag or branch.

        Args:
            name: as `git` and `dvc exp` take it; a branch or tag goes before an experiment of the same name.
            root: the folder that holds dvc.yaml.

        Raises:
            UserError: if there is no such revision, or no repository.
        """
        root = Path(root)
        if name == WORKSPACE:
            return cls(name, root, None, None)
        return cls(name, root, *_open_commit(name, root))

    @property
    def title(self) -> str:
        """Its name, with the first digits of the commit where the name does not say it."""
        return self.name if self.commit is None or self.commit.startswith(self.name) else f"{self.name} ({self.short})"

    @property
    def short(self) -> str:
        """The commit's first seven digits, or `workspace`."""
        return self.commit[:7] if self.commit else WORKSPACE

    def exists(self, path: str) -> bool:
        """Whether this revision has the file or folder `path`; its content may still be missing from the cache."""
        if self._files is None:
            return (self._root / path).exists()
        return self._in_git(path) or self._files.exists(path)

    def files(self, folder: str) -> list[str]:
        """The paths of all files below `folder`, sorted; empty if there is no such folder."""
        if self._files is None:
            found = [file for file in (self._root / folder).rglob("*") if file.is_file()]
            return sorted(file.relative_to(self._root).as_posix() for file in found)
        if not self._files.exists(folder):
            return []
        return sorted(str(file).lstrip("/") for file in self._files.find(folder))

    def read(self, path: str) -> bytes:
        """The content of file `path`.

        Raises:
            UserError: if this revision has no such file, or neither DVC's cache nor its remote has the content.
        """
        if not self.exists(path):
            raise UserError(self._absent(path))
        if self._files is None:
            return (self._root / path).read_bytes()
        if self._in_git(path):
            # Not self._git.cat_file: pygit2 streams by a thread, and on a busy machine its reader can wait for ever
            content = ["git", "-C", str(self._root), "cat-file", "blob", f"{self.commit}:./{path}"]
            return subprocess.run(content, check=True, capture_output=True).stdout
        from dvc.exceptions import DvcException

        try:
            return self._files.cat_file(path)
        except (OSError, DvcException) as error:
            known = isinstance(error, FileNotFoundError)  # its text would only repeat the path
            reason = "" if known else f" ({getattr(error, 'strerror', None) or error})"
            raise UserError(
                f"{self.title}: the content of {path} is not in DVC's cache{reason}; {self._made_again_by}"
            ) from error

    def json(self, path: str) -> Any:
        """What JSON file `path` holds.

        Raises:
            UserError: if it is missing or no JSON.
        """
        try:
            return json.loads(self.read(path))
        except ValueError as error:
            raise UserError(f"{self.title}: {path} is not JSON ({error}); run the stage that writes it") from error

    def settings(self) -> dict[str, Any]:
        """What params.yaml holds, as it stands there: that of an older revision may not fit the params of today.

        Raises:
            UserError: if it is missing or no mapping.
        """
        try:
            raw = yaml.safe_load(self.read("params.yaml").decode("utf-8-sig"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UserError(f"{self.title}: params.yaml is not valid YAML: {' '.join(str(error).split())}") from error
        if not isinstance(raw, dict):
            raise UserError(f"{self.title}: params.yaml: found {type(raw).__name__}, expected groups of params")
        return raw

    def params(self) -> Params:
        """The params, checked.

        Raises:
            UserError: naming all that is wrong, such as params that did not exist when the revision was made.
        """
        from bertrio.config.loading import validate_params

        return validate_params(self.settings(), f"{self.title}: params.yaml")

    def tasks(self) -> dict[str, Task]:
        """The tasks, from what params.yaml says of texts and labels alone, so that older revisions can be read.

        Raises:
            UserError: if params.yaml is missing or describes no tasks.
        """
        try:
            return {name: _task(name, block) for name, block in self.settings()["tasks"].items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{self.title}: params.yaml: the tasks can't be read ({error!r}), expected blocks such as "
                "sst: {kind: single, target: ordered, classes: 5}"
            ) from error

    def predictions(self) -> pd.DataFrame:
        """The ensemble's prediction table.

        Raises:
            UserError: if it is missing, damaged, or holds tasks that params.yaml does not have.
        """
        frame = read_predictions(f"{self.title}: {PREDICTIONS}", content=self.read(PREDICTIONS))
        check_tasks(frame, self.tasks())
        return frame

    def rows(self, task: str, split: str) -> pd.DataFrame:
        """The rows of `task` in train, dev or test: id, texts and label.

        Raises:
            UserError: if the table is missing.
        """
        return pd.read_parquet(BytesIO(self.read(f"data/splits/{task}/{split}.parquet")))

    @property
    def _git(self) -> GitFileSystem:
        return self._files.repo.fs

    def _in_git(self, path: str) -> bool:
        """Whether git itself has the file, which is found 100 times as fast as what DVC keeps."""
        return self._git.isfile(self._git.join(self._files.repo.root_dir, path))

    @property
    def _made_again_by(self) -> str:
        """What brings files into the cache that it does not have."""
        from dvc.repo.experiments.utils import exp_refs

        scm = self._files.repo.scm
        if self.commit == scm.get_rev():
            return (
                "the committed result was made on another machine: run dvc repro and commit dvc.lock, or dvc pull if a "
                "remote has it"
            )
        if any(scm.get_ref(str(ref)) == self.commit for ref in exp_refs(scm)):
            return f"run dvc exp apply {self.name} && dvc repro, or dvc pull in place of dvc repro if a remote has it"
        return f"run git checkout {self.short}, then dvc pull if a remote has it, or else dvc repro and commit dvc.lock"

    def _absent(self, path: str) -> str:
        if self._files is None:
            return f"{self._root / path}: is missing; run dvc repro, which writes it, or dvc checkout if it has run"
        return (
            f"{self.title}: this revision has no {path}: it was not run, or its outcome was not committed; run it with "
            "dvc exp run, or run dvc repro and commit dvc.lock"
        )


def _task(name: str, block: dict[str, Any]) -> Task:
    limits: Any = tuple(float(end) for end in block.get("range") or ()) or None
    names = [str(name) for name in block.get("labels") or ()]
    target = build_target(block["target"], block.get("classes"), limits, names, block.get("metric"))
    return Task(name, block["kind"], block.get("encoding") or "cross", target)


def _open_commit(name: str, root: Path) -> tuple[str, DVCFileSystem]:
    """The hash that `name` stands for, and the files of that commit, with those that DVC keeps."""
    from dvc.exceptions import DvcException, NotDvcRepoError
    from dvc.fs import GitFileSystem
    from dvc.fs.dvc import DVCFileSystem
    from dvc.repo import Repo
    from dvc.scm import RevError, resolve_rev
    from scmrepo.exceptions import SCMError

    try:
        here = Repo(str(root))
    except NotDvcRepoError as error:
        raise UserError(f"{name}: {error}; run this from the folder that holds dvc.yaml") from error
    try:
        commit = resolve_rev(here.scm, name)
        folder = Path(here.root_dir).relative_to(here.scm.root_dir).as_posix()  # "." but for a project in a subfolder
        repo = Repo(f"/{folder}".rstrip("."), fs=GitFileSystem(scm=here.scm, rev=commit), scm=here.scm)
    except NotDvcRepoError as error:
        raise UserError(f"{name}: this revision is from before DVC came to the repository; name a later one") from error
    except RevError as error:
        if "ambiguous" in str(error):
            raise UserError(
                f"{name}: several experiments have this name; give the hash of one, as dvc exp show lists them"
            ) from None
        raise UserError(
            f"{name}: there is no such revision; expected {WORKSPACE}, a commit, tag or branch, or an experiment that "
            "dvc exp list -A shows"
        ) from error
    except (SCMError, DvcException, AttributeError) as error:
        raise UserError(f"{name}: can't be read as a revision of {root.resolve()} ({error})") from error
    return commit, DVCFileSystem(repo=repo)
