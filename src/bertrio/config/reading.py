"""YAML as DVC reads it: version 1.2, where `no` is text and `2e-05` a number; and its nested blocks."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from ruamel.yaml import YAML, SafeConstructor
from ruamel.yaml.constructor import ConstructorError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.resolver import implicit_resolvers

from bertrio.core.errors import UserError


def read_yaml(path: str | Path, content: bytes | None = None) -> dict[str, Any]:
    """Read a YAML file that holds one mapping.

    If `content` is given, it is read instead, and messages call it `path`.

    Raises:
        UserError: if the file is missing, not UTF-8, not YAML or not a mapping; most messages name the line.
    """
    try:
        raw = _load((Path(path).read_bytes() if content is None else content).decode("utf-8-sig"))
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror}); run this in the repository") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(f"{path}: is not valid YAML: line {line} is not UTF-8; save the file as UTF-8") from error
    except (YAMLError, ValueError, ArithmeticError, AssertionError, RecursionError) as error:  # bad escapes, %YAML 1.3
        if isinstance(error, MarkedYAMLError):
            error.note = None  # how to allow duplicate keys
        lines = [line.replace('in "<unicode string>", ', "at ") for line in str(error).splitlines()]
        raise UserError("\n".join([f"{path}: is not valid YAML:", *lines])) from error
    if not isinstance(raw, dict):
        found = "nothing" if raw is None else type(raw).__name__
        raise UserError(f"{path}: found {found}, expected groups of params such as 'runtime:'")
    return raw


def _load(text: str, pure: bool = False) -> Any:
    """Load YAML by the parser in C, if it is installed; errors come from the one in Python, which quotes the line."""
    reader = YAML(typ="safe", pure=pure)
    reader.Constructor = _Constructor
    try:
        return reader.load(text)
    except YAMLError:
        if not pure:
            _load(text, pure=True)
        raise


def yaml_text(value: Any) -> str:
    """Return a value as YAML that versions 1.1 and 1.2 read alike: text that looks like another type is quoted."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def merged(base: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Return a deep copy of `base` with `overrides` on top; blocks are merged, other values replaced."""
    result = copy.deepcopy(base)
    for key, value in overrides.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else copy.deepcopy(value)
    return result


def flatten(block: Mapping[str, Any], at: str = "", whole: str = "") -> dict[str, Any]:
    """Return the values of a nested block by dotted name. Empty blocks and the block `whole` count as values."""
    flat: dict[str, Any] = {}
    for key, value in block.items():
        name = f"{at}{key}"
        if isinstance(value, Mapping) and value and name != whole:
            flat.update(flatten(value, f"{name}.", whole))
        else:
            flat[name] = value
    return flat


class _Constructor(SafeConstructor):
    """Constructor of ruamel.yaml whose errors name the line."""

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=True)  # else it would make the parts of a value after the value
        except (ValueError, LookupError, ArithmeticError) as error:  # of what Python makes of the text
            problem = f"found {str(node.value)[:50]!r}: {error}"
            raise ConstructorError(None, None, problem, node.start_mark) from error


class _Dumper(yaml.SafeDumper):
    """PyYAML's dumper for version 1.1, which also quotes text that is another type in version 1.2."""


for versions, tag, pattern, first in implicit_resolvers:
    if (1, 2) in versions:
        _Dumper.add_implicit_resolver(tag, pattern, first)
