"""Loading params.yaml, applying overrides of ensemble members, and messages about invalid params."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from bertrio.config.reading import merged, read_yaml
from bertrio.config.root import Params
from bertrio.config.tasks import TaskParams
from bertrio.core.errors import UserError
from bertrio.core.files import repository
from bertrio.core.options import problems, shown
from bertrio.core.tasks import Task
from bertrio.techniques.regularizers import REGULARIZERS

MEMBER_GROUPS = (  # what finetune reads
    "runtime", "tasks", "sharing", "encoder", "optimizer", "finetune", "schedule", "weighting", "surgery",
    *REGULARIZERS, "penalties", "tracking",
)  # fmt: skip
FIXED_IN_TASKS = ("kind", "target", "classes", "range", "metric", "data")  # define the target and its rows
FIXED_IN_ENCODER = ("name", "revision", "tiny")  # used before finetune
MAX_PROBLEMS, MAX_CHANGES = 30, 12  # lines on wrong and changed params in one message


def load_params(path: str | Path = "params.yaml") -> Params:
    """Read and validate params.yaml, including its ensemble members.

    Raises:
        UserError: listing every param that is unknown, of a wrong type, out of range or in conflict with another.
    """
    return check_params(read_yaml(path), str(path))


def check_params(raw: dict[str, Any], path: str) -> Params:
    """Return validated params, including ensemble members, from the content of a YAML file; messages start with `path`.

    Raises:
        UserError: as in `load_params`.
    """
    params = validate_params(raw, path)
    views = {name: member_params(params, name, path) for name in params.ensemble.members}
    _check_trained(params, views, path)
    if params.ensemble.combine.endswith("soup"):
        _check_soup(params, views, path)
    return params


def member_params(params: Params, name: str, path: str = "params.yaml") -> Params:
    """Return the params of ensemble member `name`: `params` with the member's overrides on top.

    Raises:
        UserError: if there is no such member, or its overrides are invalid; the message starts with `path`.
    """
    if name not in params.ensemble.members:
        known = ", ".join(params.ensemble.members)
        raise UserError(f"{path}: ensemble.members has no member {name!r}, expected one of {known}")
    overrides, at = dict(params.ensemble.members[name] or {}), f"ensemble.members.{name}"
    _check_answers(overrides.pop("answers", list(params.tasks)), params, f"{path}: {at}.answers")
    for group in overrides:
        if group not in MEMBER_GROUPS:
            names = ", ".join(MEMBER_GROUPS)
            raise UserError(f"{path}: {at}.{group}: a member may override {names}; and have answers, a list of tasks")
    tasks = overrides.get("tasks")
    gone = [task for task in tasks if task not in params.tasks] if isinstance(tasks, dict) else []
    if gone:
        raise UserError(f"{path}: {at}.tasks.{gone[0]}: there is no task {gone[0]}; remove it here, too")
    view = validate_params(merged(params.model_dump(by_alias=True), overrides), path, at)
    shared = _same_for_all(params)
    for param, value in _same_for_all(view).items():
        if param not in shared or value != shared[param]:
            raise UserError(f"{path}: {at}.{param}: can't differ between members; set {param} for all of them")
    return view


def _same_for_all(params: Params) -> dict[str, Any]:
    """Return the values that members may not change, by dotted name."""
    fixed: dict[str, Any] = {"distill.teacher": params.distill.teacher}  # the stage teach has one
    fixed |= {f"encoder.{key}": getattr(params.encoder, key) for key in FIXED_IN_ENCODER}
    for name, task in params.tasks.items():
        fixed |= {f"tasks.{name}.{key}": getattr(task, key) for key in FIXED_IN_TASKS}
    return fixed


def _check_answers(answers: Any, params: Params, at: str) -> None:
    tasks = list(params.tasks)
    known = isinstance(answers, list) and all(name in tasks for name in answers)
    if not known or not answers or len(set(answers)) < len(answers):
        raise UserError(f"{at}: found {shown(answers)}, expected a list of tasks out of {', '.join(tasks)}, each once")


def _check_trained(params: Params, views: dict[str, Params], path: str) -> None:
    """Check that a member predicts each task, and that no untrained head predicts a task beside a trained one.

    Untrained heads are allowed for tasks that no member trains.

    Args:
        params: params of the file.
        views: params of each member, by its name.
        path: start of messages.

    Raises:
        UserError: naming the member and the task.
    """
    for task in params.tasks:
        answering = [name for name in views if task in params.answers(name)]
        if not answering:
            at = f"{path}: ensemble.members"
            raise UserError(f"{at}: no member predicts task {task}; add it to the answers of one")
        trained = [name for name in answering if task in views[name].trains or task in params.pretrains]
        random = [name for name in answering if trained and name not in trained]
        if random:
            soup = params.ensemble.combine.endswith("soup")  # one model: all members answer all tasks
            other = "combine vote or mean and its answers" if soup else "its answers"
            raise UserError(
                f"{path}: ensemble.members.{random[0]}: it predicts {task}, as {trained[0]} does, but does not train "
                f"it, so that this would be random; name {task} in its schedule.tasks too, or set {other} without it"
            )


def _check_soup(params: Params, views: dict[str, Params], path: str) -> None:
    """Check that all members predict all tasks, and compute the same from the same weights.

    Raises:
        UserError: naming the member and the param.
    """
    (first, expected), *_ = computed = [(name, _computation(view)) for name, view in views.items()]
    for name, computation in computed:
        at, missing = f"{path}: ensemble.members.{name}", set(params.tasks).difference(params.answers(name))
        if missing:
            raise UserError(
                f"{at}.answers: lacks {', '.join(sorted(missing))}, but a soup is one model, which predicts all tasks; "
                "leave answers out, or set ensemble.combine to vote or mean"
            )
        for param, value in computation.items():
            if value != expected[param]:
                raise UserError(
                    f"{at}: {param} is {value}, and {expected[param]} in member {first}; a soup needs models that "
                    "compute the same: set it to the same, or ensemble.combine to vote or mean"
                )


def _computation(params: Params) -> dict[str, Any]:
    """Return the params that decide what a model computes from given weights, other than shapes of tensors."""
    values = {f"encoder.{name}": getattr(params.encoder, name) for name in ("pooling", "max_length")}
    values["sharing"] = params.sharing.model_dump() if params.sharing.layer != "none" else "none"
    for name, task in params.tasks.items():
        values |= {f"tasks.{name}.encoding": task.encoding, f"tasks.{name}.head": task.head}
        values[f"tasks.{name}.head_options"] = task.head_options
    return values


@contextmanager
def listing_uncommitted(path: str | Path) -> Iterator[None]:
    """Add the params that differ from the last commit to a UserError: those of a failed `dvc exp run -S` stay there."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{error}{_uncommitted(Path(path))}") from error


def _uncommitted(path: Path) -> str:
    """Return git's lines on what differs from the last commit; nothing without git, or in a copy made by DVC."""
    options = ["--no-color", "--no-ext-diff", "--unified=0"]
    command = ["git", "-C", str(path.parent), "diff", *options, "HEAD", "--", path.name]
    try:
        lines = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace").stdout.splitlines()
    except OSError:
        return ""
    if not lines or repository() != Path.cwd():
        return ""
    changes = "\n".join(lines[4:][:MAX_CHANGES])  # after the names of the files
    return (
        f"\n{path} differs from the last commit (git diff shows all):\n{changes}\nWhat dvc exp run -S sets stays "
        f"there, even if the run fails: set a param anew with -S, or take all changes back with git checkout {path}"
    )


def validate_params(raw: dict[str, Any], path: str, prefix: str = "") -> Params:
    """Return params from the content of a YAML file; messages start with `path` and `prefix`.

    Raises:
        UserError: listing all problems.
    """
    try:
        return Params.model_validate(raw)
    except ValidationError as error:
        at = f"{path}: {prefix}." if prefix else f"{path}: "
        lines = [at + problem for problem in problems(error)]
        more = [f"{path}: and {len(lines) - MAX_PROBLEMS} more"] if len(lines) > MAX_PROBLEMS else []
        raise UserError("\n".join(lines[:MAX_PROBLEMS] + more)) from None


class HasTasks(Protocol):
    """Params, or the configuration of a trained model."""

    @property
    def tasks(self) -> Mapping[str, TaskParams]: ...


def build_tasks(params: HasTasks) -> dict[str, Task]:
    """Return the tasks, in the order of `params`."""
    return {name: task.task(name) for name, task in params.tasks.items()}
