"""DVC's experiments: which there are, and one more with given params."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bertrio.config.loading import read_yaml
from bertrio.core.console import say
from bertrio.core.errors import UserError
from bertrio.experiments.places import differences, with_absolute_paths
from bertrio.experiments.recipes.params import ABSENT, changes, with_numbers
from bertrio.experiments.recipes.set_params import checked_overrides, listed

PARAMS = "params.yaml"
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


def short_digest(text: str) -> str:
    """Six digits that stand for a text in the name of an experiment."""
    return hashlib.sha256(text.encode()).hexdigest()[:6]


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
