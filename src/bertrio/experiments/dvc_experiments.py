"""DVC's experiments: which there are, and one more with given params."""

from __future__ import annotations

import copy
import hashlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bertrio.console import say
from bertrio.errors import UserError
from bertrio.experiments.overrides import ABSENT, Block, changes, value_text, with_numbers
from bertrio.experiments.set_params import checked_overrides, listed
from bertrio.params.loading import read_yaml

PARAMS = "params.yaml"
# Params that may name a folder of this machine, or a file
FOLDERS = ("data.path", "data.corpora_path", "encoder.name")
FILES = re.compile(
    r"data\.files\.[^.]+\.(train|dev|test)|data\.more\.[^.]+\.train|tasks\.[^.]+\.data\.(train|dev|test)"
    r"|evaluate\.challenges\.[^.]+\.path"
)
TEACHER = re.compile(r"(ensemble\.members\.[^.]+\.)?distill\.teacher")
OF_MACHINE = re.compile(r"runtime\.(device|threads)|checkpoints\..*")  # params that say how a run is made, not which
FIELDS = ("data.source", "encoder.name")  # params that a measured file has fields for
LOOK_EVERY = 1.0  # seconds between two calls of who watches a run


class Experiment(NamedTuple):
    """A finished experiment: its name, its commit, and the commit that it was started from."""

    name: str
    commit: str
    baseline: str


def experiments(root: str | Path = ".") -> dict[str, str]:
    """The commits of all experiments of the repository by name, whatever commit they were started from."""
    return {name: experiment.commit for name, experiment in find_experiments(root).items()}


def find_experiments(root: str | Path = ".") -> dict[str, Experiment]:
    """All experiments by name; where commits have one of the same name each, the newest.

    Raises:
        UserError: if `root` is no DVC repository.
    """
    from dvc.repo.experiments.utils import exp_refs

    with _open(root) as repo:
        found = []
        for ref in exp_refs(repo.scm):
            commit = repo.scm.get_ref(str(ref))
            time = repo.scm.resolve_commit(commit).commit_time
            found.append((time, Experiment(ref.name, commit, ref.baseline_sha)))
    return {experiment.name: experiment for _, experiment in sorted(found)}


def run_experiment(
    name: str,
    settings: Mapping[str, Any],
    root: str | Path = ".",
    queue: bool = False,
    watch: Callable[[], None] | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Makes a DVC experiment with the given params, unless it is there already.

    It is run by `dvc exp run --temp`, in a temporary copy of the repository, so that the workspace stays as it is; the
    copy has what git tracks, changes that are not committed included. There a relative path to a folder beside the
    repository would lead nowhere, so such paths are made absolute. A run that was stopped
    leaves no experiment, and is simply run again.

    Args:
        name: of the experiment, such as smart-concat-quick-s1.
        settings: all params, as params.yaml would hold them.
        root: the folder that holds dvc.yaml.
        queue: only add it to DVC's queue, which `dvc queue start` works off.
        watch: called every second while it runs; what it raises stops the run as Ctrl-C does, and is raised here.
        environment: variables that the run has beside those of this process.

    Raises:
        UserError: if there is an experiment of that name with other params, DVC can't set these params, or the run
            fails.
        KeyboardInterrupt: if it was stopped by Ctrl-C or SIGTERM; all processes of the run have ended then.
    """
    root = Path(root)
    settings = with_absolute_paths(settings, root)
    done = find_experiments(root).get(name)
    if done is not None:
        _need_same(done, settings, root)
        return say(f"{name}: already run")
    if queue and name in queued(root):
        return say(f"{name}: already in the queue")
    arguments = [sys.executable, "-m", "dvc", "exp", "run", "--name", name, "--queue" if queue else "--temp"]
    for override in checked_overrides(root / PARAMS, settings):
        arguments += ["--set-param", override]
    code = _run(arguments, root, watch, environment or {}, silent=queue)
    if code if queue else name not in find_experiments(root):
        raise UserError(f"{name}: dvc exp run ended with exit code {code} and no experiment; its output says why")


def queued(root: str | Path = ".") -> set[str]:
    """The names of the experiments that are waiting in DVC's queue or running from it."""
    with _open(root) as repo:
        queue = repo.experiments.celery_queue
        return {entry.name for entries in (queue.iter_queued(), queue.iter_active()) for entry in entries}


def with_absolute_paths(settings: Mapping[str, Any], root: str | Path) -> Block:
    """A copy of raw params in which folders and files that git does not track are named by absolute paths, where they
    are there as seen from `root`. The name of an encoder that is no folder is an id, and stays."""
    result = copy.deepcopy(dict(settings))
    for block, key in _named_outside(result, result.get("data", {}).get("path") is not None):
        value = block[key]
        if isinstance(value, str) and value != "tiny":
            path = Path(root) / Path(value).expanduser()
            if path.exists() and not _tracked(path, root):
                block[key] = os.path.abspath(path)
    return result


def _named_outside(block: Block, beside_data: bool, at: str = "") -> Iterator[tuple[Block, str]]:
    """The blocks of raw params and their keys that may name what a copy of the repository lacks.

    Args:
        block: the params at the dotted name `at`.
        beside_data: whether the files that `data` names start at `data.path`, and so stay as they are.
    """
    for key, value in block.items():
        param = f"{at}{key}"
        if isinstance(value, dict):
            yield from _named_outside(value, beside_data, f"{param}.")
        elif beside_data and param.startswith(("data.files.", "data.more.")):
            continue
        elif param in FOLDERS or TEACHER.fullmatch(param) or FILES.fullmatch(param):
            yield block, key


def _tracked(path: Path, root: str | Path) -> bool:
    """Whether git has the file, so that a copy of the repository has it too. Of a folder it may have a part alone, and
    of a link not what it leads to."""
    command = ["git", "--literal-pathspecs", "ls-files", "--error-unmatch", "--", os.path.abspath(path)]
    plain = path.is_file() and not path.is_symlink()
    return plain and subprocess.run(command, cwd=root, capture_output=True).returncode == 0


def without_place(param: str, value: Any) -> Any:
    """A param's value as it is on any machine: of a local folder only its last name."""
    if param not in FOLDERS or not isinstance(value, str):
        return value
    folder = Path(value).expanduser()
    return Path(os.path.abspath(folder)).name if folder.is_absolute() or folder.is_dir() else value


def of_any_machine(params: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted params as they are on any machine, without those that say how a run is made."""
    return {param: without_place(param, value) for param, value in params.items() if not OF_MACHINE.fullmatch(param)}


def short_digest(text: str) -> str:
    """Six digits that stand for a text in the name of an experiment."""
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The params in which two runs differ that are not the same run: by dotted name, both values.

    Where folders lie, on which device and on how many threads a run is made, and how often it saves, does not make it
    another; nor does the rest of `mlm` where that is switched off.
    """
    found = changes(with_numbers(old), with_numbers(new))
    no_mlm = not any(params.get("mlm", {}).get("enabled", False) for params in (old, new))
    return {
        param: values
        for param, values in found.items()
        if not (no_mlm and param.startswith("mlm."))
        and not OF_MACHINE.fullmatch(param)
        and without_place(param, values[0]) != without_place(param, values[1])
    }


def overridden(row: Mapping[str, Any], run: Mapping[str, Any]) -> Block:
    """What the params of a run have in place of those of its row, as measured files name it: a file by its name alone,
    as it lies elsewhere on another machine."""
    found = {param: value for param, (_, value) in differences(row, run).items() if is_override(param)}
    return by_last_names(found)


def by_last_names(params: Mapping[str, Any]) -> Block:
    """Dotted params in which local folders and files of data stand by their last names. Blocks are taken apart."""
    leaves = {param: without_place(param, value) for param, (_, value) in changes({}, params).items()}
    files = {param for param, value in leaves.items() if FILES.fullmatch(param) and isinstance(value, str)}
    return {param: Path(value).name if param in files else value for param, value in leaves.items()}


def settings_text(overrides: Mapping[str, Any]) -> str:
    """What `-S` set, for a note below a table, which may be kept: `; -S finetune.lr=2e-05`, once for each param."""
    return "".join(f"; -S {param}={value_text(value)}" for param, value in by_last_names(overrides).items())


def is_override(param: str) -> bool:
    """Whether a measured file has it among `overrides`: not what has a field of its own, nor where data lies and how it
    was computed."""
    return param not in (*FIELDS, *FOLDERS) and not param.startswith(("runtime.", "checkpoints."))


def _need_same(done: Experiment, settings: Mapping[str, Any], root: Path) -> None:
    """Raises a UserError unless the experiment has these params. A param that it lacks did not exist when it ran: it is
    no difference where it now has its default."""
    from bertrio.experiments.revision import Revision

    default = changes(with_numbers(read_yaml(root / PARAMS)), with_numbers(settings))
    wrong = {
        param: values
        for param, values in differences(Revision.open(done.commit, root).settings(), settings).items()
        if values[0] != ABSENT or param in default
    }
    if wrong:
        raise UserError(
            f"{done.name}: there is an experiment of this name with other params; to run it again, remove it with "
            f"dvc exp remove {done.name}{listed(wrong, 'there', 'asked for')}"
        )


def _run(
    command: list[str],
    root: Path,
    watch: Callable[[], None] | None,
    environment: Mapping[str, str],
    silent: bool = False,
) -> int:
    """Runs a command to its end and returns its exit code; what stops this process stops all that the command started.

    The command gets a process group of its own, and Ctrl-C or SIGTERM go to the whole of it as one Ctrl-C: DVC waits
    for the stage, which ends, and then tidies up its copy. So does what `watch` raises. `python` is the one that runs
    this. `silent` lets through what goes to standard error alone: to its queue DVC would tell all params of each run,
    and its own --quiet keeps errors back as well.
    """
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    variables = {**os.environ, **environment, "PATH": paths}
    with _interruptible():
        told = subprocess.DEVNULL if silent else None
        process = subprocess.Popen(command, cwd=root, env=variables, stdout=told, start_new_session=True)
        try:
            return process.wait() if watch is None else _watched(process, watch)
        except BaseException:
            os.killpg(process.pid, signal.SIGINT)
            process.wait()
            raise


def _watched(process: subprocess.Popen, watch: Callable[[], None]) -> int:
    """Waits for the end of a process, and calls `watch` meanwhile."""
    while True:
        try:
            return process.wait(timeout=LOOK_EVERY)
        except subprocess.TimeoutExpired:
            watch()


@contextmanager
def _interruptible() -> Iterator[None]:
    """Makes Ctrl-C and SIGTERM raise KeyboardInterrupt, and commands heed Ctrl-C.

    A shell starts jobs in the background with Ctrl-C ignored, and what they start would ignore it too.
    """
    if threading.current_thread() is not threading.main_thread():  # only there Python can change this
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _open(root: str | Path) -> Any:
    from dvc.exceptions import NotDvcRepoError
    from dvc.repo import Repo

    try:
        return Repo(str(root))
    except NotDvcRepoError as error:
        raise UserError(f"{error}; run this from the folder that holds dvc.yaml") from error
