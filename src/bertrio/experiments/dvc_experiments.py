"""Runs of DVC experiments with given params."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bertrio.config.reading import read_yaml
from bertrio.core.console import say
from bertrio.core.errors import UserError
from bertrio.experiments.machine_paths import differences, with_absolute_paths
from bertrio.experiments.recipes.params import ABSENT, changes, dvc_overrides, listed
from bertrio.experiments.revision import Experiment, Revision, find_experiments

PARAMS = "params.yaml"
WATCH_INTERVAL = 1.0  # seconds between two calls of `watch`


def run_experiment(
    name: str,
    settings: Mapping[str, Any],
    queue: bool = False,
    watch: Callable[[], None] | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run a DVC experiment with the given params, unless it exists.

    `dvc exp run --temp` runs it in a temporary copy of the repository, so the workspace does not change. The copy has
    the files that git tracks, uncommitted changes included. Relative paths to other files become absolute. A stopped
    run leaves no experiment; another call restarts it.

    Args:
        name: name of the experiment, such as smart-concat-quick-s1.
        settings: all params, as in params.yaml.
        queue: add it to DVC's queue instead; `dvc queue start` runs it.
        watch: called every second during the run and once after it; its exceptions stop the run as Ctrl-C does and
            are raised here.
        environment: additional environment variables of the run.

    Raises:
        UserError: if an experiment of that name has other params, DVC can't set these params, or the run fails.
        KeyboardInterrupt: after Ctrl-C or SIGTERM, when all processes of the run have ended.
    """
    settings = with_absolute_paths(settings)
    existing = find_experiments().get(name)
    if existing is not None:
        _require_same_params(existing, settings)
        return say(f"{name}: already run")
    if queue and name in queued():
        return say(f"{name}: already in the queue")
    arguments = [sys.executable, "-m", "dvc", "exp", "run", "--name", name, "--queue" if queue else "--temp"]
    for override in dvc_overrides(read_yaml(PARAMS), settings):
        arguments += ["--set-param", override]
    code = _run(arguments, watch, environment or {}, silent=queue)
    if code if queue else name not in find_experiments():
        raise UserError(f"{name}: dvc exp run ended with exit code {code} and no experiment; its output says why")


def queued() -> set[str]:
    """Return the names of this commit's experiments that wait in DVC's queue or are running."""
    return {name for name, _, _, state in unfinished() if state != "failed"}


def unfinished(commits: Sequence[str] = ("HEAD",)) -> Iterator[tuple[str, str | None, str, str]]:
    """Yield name, commit, baseline and state (queued, running or failed) of unfinished experiments of some commits.

    The commit of an experiment that runs in the workspace is None.

    Raises:
        UserError: if DVC can't list them, such as without git (`core.no_scm`).
    """
    from dvc.api import exp_show
    from dvc.exceptions import DvcException

    try:
        rows = exp_show(revs=list(commits))
    except DvcException as error:
        raise UserError(f"dvc exp show failed: {' '.join(str(error).split())}") from error
    baseline = ""
    for row in rows:
        if row["typ"] == "baseline":
            baseline = row["rev"]
        elif row["State"] in ("Queued", "Running", "Failed"):
            commit = None if "workspace".startswith(row["rev"]) else row["rev"]  # DVC shortens both
            yield row["Experiment"] or row["rev"], commit, baseline, row["State"].lower()


def short_digest(value: Any) -> str:
    """Return six hexadecimal digits that identify a value, such as params by name, in the name of an experiment."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:6]


def _require_same_params(existing: Experiment, settings: Mapping[str, Any]) -> None:
    """Raise a UserError unless the experiment has these params.

    A param that the experiment lacks is newer than it, and counts as equal if it now has its default.
    """
    default = changes(read_yaml(PARAMS), settings)
    different = {
        param: values
        for param, values in differences(Revision.open(existing.commit).settings(), settings).items()
        if values[0] != ABSENT or param in default
    }
    if different:
        raise UserError(
            f"{existing.name}: there is an experiment of this name with other params; to run it again, remove it with "
            f"dvc exp remove {existing.name}{listed(different, 'there', 'asked for')}"
        )


def _run(command: list[str], watch: Callable[[], None] | None, environment: Mapping[str, str], silent: bool) -> int:
    """Run a command in its own process group and return its exit code.

    Ctrl-C, SIGTERM and exceptions of `watch` reach the whole group as Ctrl-C: DVC waits for the stage to end and
    removes its temporary copy. `python` is the interpreter of this process. `silent` hides standard output, on which
    `dvc exp run --queue` prints all params; `dvc --quiet` would hide errors too.
    """
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    variables = {**os.environ, **environment, "PATH": paths}
    stdout = subprocess.DEVNULL if silent else None
    with _interruptible():
        process = subprocess.Popen(command, env=variables, stdout=stdout, start_new_session=True)
        try:
            while process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(WATCH_INTERVAL if watch else None)
                if watch:
                    watch()
            return process.returncode
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
            process.wait()
            raise


@contextmanager
def _interruptible() -> Iterator[None]:
    """Make Ctrl-C and SIGTERM raise KeyboardInterrupt, also in background jobs of a shell."""
    previous = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
