"""Reads params.yaml, gives every ensemble member its own view of it, and says what is wrong in words for users."""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, get_args

from pydantic import ValidationError

from bertrio.config.reading import printable, read_yaml
from bertrio.config.root import Params
from bertrio.config.tasks import TaskParams
from bertrio.core.errors import UserError
from bertrio.core.options import Group
from bertrio.core.tasks import Task
from bertrio.techniques.regularizers import REGULARIZERS

MEMBER_GROUPS = (  # what finetune reads
    "runtime", "tasks", "sharing", "encoder", "optimizer", "finetune", "schedule", "weighting", "surgery",
    *REGULARIZERS, "penalties", "tracking",
)  # fmt: skip
FIXED_IN_TASKS = ("kind", "target", "classes", "labels", "range", "metric", "data")  # what is predicted, of what rows
MOST_PROBLEMS = 30  # that one message lists
LONGEST_VALUE = 200  # characters of a value that a message shows
RENAMED = {"data.more": "data.extra_train"}
PREPARED = ("encoder.name", "encoder.revision", "encoder.tiny")  # settled before finetune, the same for all members


def load_params(path: str | Path = "params.yaml") -> Params:
    """Reads and checks params.yaml, its ensemble members included.

    Raises:
        UserError: naming every param that is unknown, of a wrong type, out of range or in conflict with another.
    """
    raw = read_yaml(path)
    params = validate_params(raw, str(path))
    check_trained(params, {name: _member(raw, params, name, str(path)) for name in params.ensemble.members}, str(path))
    return params


def load_member(name: str, path: str | Path = "params.yaml") -> Params:
    """The params as ensemble member `name` sees them: the base with the member's own overrides on top.

    Raises:
        UserError: as `load_params`, and if there is no such member.
    """
    raw = read_yaml(path)
    params = validate_params(raw, str(path))
    if name not in params.ensemble.members:
        raise UserError(
            f"{path}: ensemble.members has no member {name!r}, expected one of {', '.join(params.ensemble.members)}"
        )
    return _member(raw, params, name, str(path))


def member_params(params: Params, name: str) -> Params:
    """What `load_member` gives, from params that have been read already."""
    return _member(params.model_dump(by_alias=True), params, name, "params.yaml")


def _member(raw: dict[str, Any], params: Params, name: str, path: str) -> Params:
    overrides = dict(params.ensemble.members[name] or {})
    at = f"ensemble.members.{name}"
    _check_answers(overrides.pop("answers", list(params.tasks)), params, f"{path}: {at}.answers")
    for group, block in overrides.items():
        if group not in MEMBER_GROUPS:
            raise UserError(
                f"{path}: {at}.{group}: a member may override {', '.join(MEMBER_GROUPS)}: what finetune reads; "
                "beside them it may have answers, the tasks that it answers"
            )
        if not isinstance(block, dict):
            raise UserError(
                f"{path}: {at}.{group}: found {_shown(block)}, expected a block of params such as {{seed: 2}}"
            )
        for key, value in block.items():
            if group == "tasks" and key not in params.tasks:
                raise UserError(f"{path}: {at}.tasks.{key}: no such task, expected one of {', '.join(params.tasks)}")
            if group == "tasks" and not isinstance(value, dict):
                raise UserError(
                    f"{path}: {at}.tasks.{key}: found {_shown(value)}, expected a block such as {{dropout: 0.3}}"
                )
            inner = [f"{key}.{name}" for name in FIXED_IN_TASKS if group == "tasks" and name in value]
            for name in [key] if f"{group}.{key}" in PREPARED else inner:
                raise UserError(
                    f"{path}: {at}.{group}.{name}: can't differ between members; set {group}.{name} for all of them"
                )
    return validate_params(merged(raw, overrides), path, at)


def _check_answers(answers: Any, params: Params, at: str) -> None:
    tasks = list(params.tasks)
    known = isinstance(answers, list) and all(name in tasks for name in answers)
    if not known or not answers or len(set(answers)) < len(answers):
        raise UserError(f"{at}: found {_shown(answers)}, expected a list of tasks out of {', '.join(tasks)}, each once")


def check_trained(params: Params, views: dict[str, Params], path: str) -> None:
    """Checks that no head that was never trained has a say beside one that was; alone it may, for a look at one task.

    Args:
        params: all of them.
        views: the params as each member sees them, by its name.
        path: what errors begin with.

    Raises:
        UserError: naming the member and the task.
    """
    first = {params.prefinetune.task} if params.prefinetune.epochs else set()
    for task in params.tasks:
        answering = [name for name in views if task in params.answers(name)]
        trained = [name for name in answering if task in views[name].trains or task in first]
        random = [name for name in answering if trained and name not in trained]
        if random:
            soup = params.ensemble.combine.endswith("soup")  # one model, so all of its members answer all tasks
            other = "combine vote or mean and its answers" if soup else "its answers"
            raise UserError(
                f"{path}: ensemble.members.{random[0]}: it answers {task} beside {trained[0]}, and does not train it, "
                f"so that this would be random; name {task} in its schedule.tasks too, or set {other} without it"
            )


def merged(base: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """A deep copy of `base` with `overrides` on top; blocks merge, everything else is replaced."""
    result = copy.deepcopy(base)
    for key, value in overrides.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else copy.deepcopy(value)
    return result


def validate_params(raw: dict[str, Any], path: str, prefix: str = "") -> Params:
    """Params from what a YAML file holds; `path` and `prefix` are what errors begin with.

    Raises:
        UserError: naming all that is wrong.
    """
    try:
        return Params.model_validate(raw)
    except ValidationError as error:
        lines = [printable(f"{path}: {_message(item, prefix)}") for item in error.errors(include_url=False)]
        more = [f"{path}: and {len(lines) - MOST_PROBLEMS} more"] if len(lines) > MOST_PROBLEMS else []
        raise UserError("\n".join(lines[:MOST_PROBLEMS] + more)) from None


def _message(item: Mapping[str, Any], prefix: str) -> str:
    keys = [str(key) for key in item["loc"] if "[" not in str(key)]  # what pydantic calls the types of a union
    name = ".".join(([prefix] if prefix else []) + keys)
    if item["type"] == "extra_forbidden":
        renamed = RENAMED.get(".".join(keys))
        return f"{name}: unknown param; {f'it is called {renamed} now' if renamed else _nearest(item['loc'])}"
    text = re.sub(r"^(Value error, |Input )", "", item["msg"])
    if item["type"] == "missing":
        if isinstance(item["loc"][-1], int):
            return f"{name.rpartition('.')[0]}: expected more values, found {_shown(item['input'])}"
        return f"{name}: is missing, and has no default"
    if item["type"] in ("dict_type", "model_type"):
        return f"{name}: expected a block of params, found {_shown(item['input'])}"
    if item["type"] == "invalid_key":
        return f"{name}: expected text for a name, found {_shown(item['input'])}; put it in quotes"
    if item["type"] == "value_error":
        return f"{name}: {text}" if name else text
    text = text.replace("should be", "expected").replace("String should match pattern", "expected text that matches")
    return f"{name}: {text}, found {_shown(item['input'])}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


def _nearest(loc: tuple[Any, ...]) -> str:
    known = _known_keys(loc[:-1])
    close = difflib.get_close_matches(str(loc[-1]), known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {'.'.join([*map(str, loc[:-1]), close[0]])}?"
    return f"known here: {', '.join(known)}"


def _known_keys(loc: tuple[Any, ...]) -> list[str]:
    """The names allowed in the block at `loc`; empty where any name is."""
    kind: Any = Params
    for key in loc:
        kind = _field_type(kind, str(key))
    return [field.alias or name for name, field in kind.model_fields.items()] if _is_group(kind) else []


def _field_type(kind: Any, key: str) -> Any:
    """The type of field `key` of a group, or of any item of a `dict[str, X]`."""
    if _is_group(kind):
        return _without_none(kind.model_fields[key].annotation) if key in kind.model_fields else None
    items = [item for item in get_args(kind) if _is_group(item)]
    return items[0] if items else None


def _without_none(kind: Any) -> Any:
    """The group of a field that is one or null."""
    args = get_args(kind)
    return args[0] if len(args) == 2 and args[1] is type(None) else kind


def _is_group(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Group)


class HasTasks(Protocol):
    """Params, or the description of a trained model."""

    @property
    def tasks(self) -> Mapping[str, TaskParams]: ...


def build_tasks(params: HasTasks) -> dict[str, Task]:
    """Return the tasks, in the order of `params`."""
    return {name: task.task(name) for name, task in params.tasks.items()}
