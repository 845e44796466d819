"""Params in the words of `dvc exp run --set-param`, which are Hydra's."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bertrio.config.loading import read_yaml
from bertrio.core.errors import UserError
from bertrio.experiments.recipes.params import ABSENT, changes, value_text, with_numbers

KEY = re.compile(r"[A-Za-z_][\w-]*")  # what Hydra's grammar takes for a key without more ado


def checked_overrides(path: Path, settings: Mapping[str, Any]) -> list[str]:
    """What `dvc exp run --set-param` takes to make the params of a file into `settings`.

    It is tried out on a copy by DVC's own parser: DVC writes YAML 1.2, in which for one `yes` is a text.

    Raises:
        UserError: if DVC can't set these params.
    """
    from dvc.exceptions import DvcException
    from dvc.utils.hydra import apply_overrides

    overrides = list(set_params(with_numbers(read_yaml(path)), with_numbers(settings)))
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder) / path.name
        copied.write_bytes(path.read_bytes())
        try:
            apply_overrides(copied, overrides)
        except DvcException as error:
            raise UserError(f"{path}: DVC can't set {' '.join(overrides)}: {error.__cause__ or error}") from error
        wrong = changes(with_numbers(settings), with_numbers(read_yaml(copied)))
    if wrong:
        raise UserError(f"{path}: DVC can't set these params:{listed(wrong, 'wanted', 'but DVC would write')}")
    return overrides


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


def listed(wrong: Mapping[str, tuple[Any, Any]], first: str, second: str) -> str:
    """Params that differ, a line each: what each side has."""
    return "".join(
        f"\n  {param}: {first} {value_text(one)}, {second} {value_text(other)}" for param, (one, other) in wrong.items()
    )


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
            "params.yaml itself"
        )
    return key
