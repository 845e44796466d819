"""DVC's experiments: which there are, and one more with given params."""

from __future__ import annotations

import copy
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bertrio.console import say
from bertrio.errors import UserError
from bertrio.experiments.overrides import ABSENT, Block, changes, value_text, with_numbers
from bertrio.params.loading import read_yaml

PARAMS = "params.yaml"
FOLDERS = ("data.path", "data.corpora_path", "encoder.name")  # params that may name a folder of this machine
OF_MACHINE = ("runtime.device", "runtime.threads")  # params that say where a run is made, and not what it is
KEY = re.compile(r"[A-Za-z_][\w-]*")  # what Hydra's grammar takes for a key without more ado


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


def run_experiment(name: str, settings: Mapping[str, Any], root: str | Path = ".", queue: bool = False) -> None:
    """Makes a DVC experiment with the given params, unless it is there already.

    It is run by `dvc exp run --temp`, in a temporary copy of the repository, so that the workspace stays as it is; the
    copy has what git tracks, changes that are not committed included. There a relative path to a folder beside the
    repository would lead nowhere, so `data.path`, `data.corpora_path` and `encoder.name` are made absolute where they
    name a folder. A run that was stopped leaves no experiment, and is simply run again.

    Args:
        name: of the experiment, such as smart-concat-quick-s1.
        settings: all params, as params.yaml would hold them.
        root: the folder that holds dvc.yaml.
        queue: only add it to DVC's queue, which `dvc queue start` works off.

    Raises:
        UserError: if there is an experiment of that name with other params, DVC can't set these params, or the run
            fails.
        KeyboardInterrupt: if it was stopped by Ctrl-C or SIGTERM; all processes of the run have ended then.
    """
    root = Path(root)
    settings = with_absolute_folders(settings, root)
    done = find_experiments(root).get(name)
    if done is not None:
        _need_same(done, settings, root)
        return say(f"{name}: already run")
    if queue and name in queued(root):
        return say(f"{name}: already in the queue")
    arguments = [sys.executable, "-m", "dvc", "exp", "run", "--name", name, "--queue" if queue else "--temp"]
    for override in _checked_overrides(name, settings, root):
        arguments += ["--set-param", override]
    say(f"{name}: {'queueing' if queue else 'running'}")
    code = _run(arguments, root)
    if code if queue else name not in find_experiments(root):
        raise UserError(f"{name}: dvc exp run ended with exit code {code} and no experiment; its output says why")


def queued(root: str | Path = ".") -> set[str]:
    """The names of the experiments that are waiting in DVC's queue or running from it."""
    with _open(root) as repo:
        queue = repo.experiments.celery_queue
        return {entry.name for entries in (queue.iter_queued(), queue.iter_active()) for entry in entries}


def with_absolute_folders(settings: Mapping[str, Any], root: str | Path) -> Block:
    """A copy of raw params in which `data.path`, `data.corpora_path` and `encoder.name` are absolute, where they name
    a folder as seen from `root`; of an encoder that is no such folder, the name is an id and stays as it is."""
    result = copy.deepcopy(dict(settings))
    for param in FOLDERS:
        group, _, key = param.partition(".")
        value = result.get(group, {}).get(key)
        folder = (Path(root) / Path(value).expanduser()) if isinstance(value, str) else None
        if folder is not None and folder.is_dir():
            result[group][key] = os.path.abspath(folder)
    return result


def without_place(param: str, value: Any) -> Any:
    """A param's value as it is on any machine: of a local folder only its last name."""
    local = param in FOLDERS and isinstance(value, str) and Path(value).expanduser()
    return local.resolve().name if local and (local.is_absolute() or local.is_dir()) else value


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The params in which two runs differ that are not the same run: by dotted name, both values.

    Where folders lie, on which device and on how many threads a run is made does not make it another.
    """
    found = changes(with_numbers(old), with_numbers(new))
    return {
        param: values
        for param, values in found.items()
        if param not in OF_MACHINE and without_place(param, values[0]) != without_place(param, values[1])
    }


def set_params(before: Mapping[str, Any], after: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """What `dvc exp run --set-param` takes to make `before` into `after`, in Hydra's grammar for overrides.

    `key=value` changes a param, `+key=value` adds one or a whole block, and `~key` removes one.

    Raises:
        UserError: for a key that the grammar has no way to write.
    """
    for key in before:
        if key not in after:
            yield f"~{at}{_key(key, at)}"
    for key, value in after.items():
        old = before.get(key, ABSENT)
        if old == value and key in before:
            continue
        name = f"{at}{_key(key, at)}"
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            yield from set_params(old, value, f"{name}.")
        elif isinstance(old, (Mapping, list)) and isinstance(value, (Mapping, list)) and type(old) is not type(value):
            yield from (f"~{name}", f"+{name}={_value(value, name)}")  # Hydra would merge a list and a block, and fail
        else:
            yield f"{'' if key in before else '+'}{name}={_value(value, name)}"


def _value(value: Any, at: str) -> str:
    """A value in Hydra's grammar; text is always quoted, for much of it would mean something there."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_key(key, f'{at}.')}:{_value(item, at)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_value(item, at) for item in value) + "]"
    if isinstance(value, str):
        text = re.sub(r"(\\*)('|\Z)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), value)
        return "'" + text.replace("${", "\\${") + "'"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value)


def _key(key: Any, at: str) -> str:
    if not isinstance(key, str) or not KEY.fullmatch(key):
        raise UserError(
            f"{at}{key}: dvc exp run can't set a param with this key, expected letters, digits, _ and -; write it into "
            f"{PARAMS} itself"
        )
    return key


def _checked_overrides(name: str, settings: Block, root: Path) -> list[str]:
    """The overrides that make the workspace's params.yaml into `settings`, tried out on a copy by DVC's own parser."""
    from dvc.exceptions import DvcException
    from dvc.utils.hydra import apply_overrides

    overrides = list(set_params(with_numbers(read_yaml(root / PARAMS)), with_numbers(settings)))
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder) / PARAMS
        copied.write_bytes((root / PARAMS).read_bytes())
        try:
            apply_overrides(copied, overrides)
        except DvcException as error:
            raise UserError(f"{name}: DVC can't set {' '.join(overrides)}: {error.__cause__ or error}") from error
        wrong = changes(with_numbers(read_yaml(copied)), with_numbers(settings))
    if wrong:
        raise UserError(f"{name}: DVC would write other params than these:{_listed(wrong, 'DVC', 'wanted')}")
    return overrides


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
            f"dvc exp remove {done.name}{_listed(wrong, 'there', 'asked for')}"
        )


def _listed(wrong: Mapping[str, tuple[Any, Any]], first: str, second: str) -> str:
    return "".join(
        f"\n  {param}: {first} {value_text(one)}, {second} {value_text(other)}" for param, (one, other) in wrong.items()
    )


def _run(command: list[str], root: Path) -> int:
    """Runs a command to its end and returns its exit code; what stops this process stops all that the command started.

    The command gets a process group of its own, and Ctrl-C or SIGTERM go to the whole of it as one Ctrl-C: DVC waits
    for the stage, which ends, and then tidies up its copy. `python` is the one that runs this.
    """
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    with _interrupted_by_sigterm():
        process = subprocess.Popen(command, cwd=root, env={**os.environ, "PATH": paths}, start_new_session=True)
        try:
            return process.wait()
        except KeyboardInterrupt:
            os.killpg(process.pid, signal.SIGINT)
            process.wait()
            raise


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Makes SIGTERM raise KeyboardInterrupt, as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():  # only there Python allows it
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _open(root: str | Path) -> Any:
    from dvc.exceptions import NotDvcRepoError
    from dvc.repo import Repo

    try:
        return Repo(str(root))
    except NotDvcRepoError as error:
        raise UserError(f"{error}; run this from the folder that holds dvc.yaml") from error
