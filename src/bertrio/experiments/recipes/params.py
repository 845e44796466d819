"""Raw params as nested blocks, as a YAML file holds them: put together, scaled, set, compared, written as texts."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from bertrio.core.errors import UserError

ABSENT = "(absent)"  # what stands for a param that is not there
SCIENTIFIC = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]\d+")  # YAML takes it for text without a dot; no hash has a sign
MEMBERS = ("ensemble", "members")  # the one block that is replaced and not merged
Block = dict[str, Any]


def with_numbers(value: Any) -> Any:
    """A copy in which texts such as `2e-05` are numbers: YAML 1.1 takes them for text, and `-S` writes them."""
    if isinstance(value, Mapping):
        return {key: with_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [with_numbers(item) for item in value]
    return float(value) if isinstance(value, str) and SCIENTIFIC.fullmatch(value) else value


def layered(base: Mapping[str, Any], overrides: Mapping[str, Any], at: tuple[str, ...] = ()) -> Block:
    """A deep copy of `base` with `overrides` on top.

    Blocks merge and all else is replaced, as between params.yaml and a member. `ensemble.members` is replaced whole: a
    row that names its members has these and no others.
    """
    result = copy.deepcopy(dict(base))
    for key, value in overrides.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping) and (*at, key) != MEMBERS
        result[key] = layered(result[key], value, (*at, key)) if both else copy.deepcopy(value)
    return result


def members_of(raw: Mapping[str, Any]) -> dict[str, Block]:
    """The overrides of each member of the ensemble; of a member without any, an empty block."""
    return {name: block or {} for name, block in raw.get("ensemble", {}).get("members", {}).items()}


def multiplied(raw: Mapping[str, Any], factors: Mapping[str, float]) -> Block:
    """A copy of raw params with some of them multiplied, in the base and in what members override.

    Whole numbers are rounded up and stay whole, so that 1 or more stays 1 or more; others keep twelve digits. What is
    not there or is no number (null, auto) is left as it is.

    Args:
        raw: all params.
        factors: by dotted param, in which `*` is any one key, such as `tasks.*.epochs`.
    """
    result = copy.deepcopy(dict(raw))
    for pattern, factor in factors.items():
        for block in (result, *members_of(result).values()):
            _multiply(block, pattern.split("."), factor)
    return result


def _multiply(block: Any, keys: Sequence[str], factor: float) -> None:
    if not isinstance(block, dict):
        return
    for key in list(block) if keys[0] == "*" else [key for key in keys[:1] if key in block]:
        if len(keys) > 1:
            _multiply(block[key], keys[1:], factor)
        elif isinstance(block[key], (int, float)) and not isinstance(block[key], bool):
            block[key] = _scaled(block[key], factor)


def _scaled(value: int | float, factor: float) -> int | float:
    if isinstance(value, int):
        return math.ceil(round(value * factor, 9))  # 3 * 0.1 * 10 is a little more than 3, and must not become 4
    return float(f"{value * factor:.12g}")  # 1e-5 * 6 is 6.000000000000001e-05


def put(raw: Block, name: str, value: Any) -> None:
    """Sets one dotted param in place; a block merges with the one that is there, and `*` is every key that is there.

    Raises:
        UserError: if the name goes through something that is no block.
    """
    _put(raw, name.split("."), value, name)


def _put(block: Any, keys: Sequence[str], value: Any, name: str) -> None:
    if not isinstance(block, dict) or (keys[0] == "*" and not block):
        at = ".".join(name.split(".")[: -len(keys)])
        raise UserError(f"{name}: unknown param; {at} is {block!r}, and has no params in it")
    for key in list(block) if keys[0] == "*" else keys[:1]:
        if len(keys) > 1:
            block[key] = {} if block.get(key) is None else block[key]  # a member without overrides is null
            _put(block[key], keys[1:], value, name)
        else:
            both = isinstance(value, Mapping) and isinstance(block.get(key), Mapping)
            block[key] = layered(block[key], value) if both else copy.deepcopy(value)


def parse_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Settings of the command line, `finetune.lr=2e-05`, by dotted param; the values are YAML.

    Two things may be spelled as `dvc exp run -S` wants them: a param that is not in params.yaml yet with `+` before it,
    and a block without spaces behind its colons, `{train:more.tsv}`.

    Raises:
        UserError: if a text is no such setting, or names a param a second time.
    """
    settings: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().removeprefix("+")
        if not equals or not all(name.split(".")) or name[0] in "+~":
            raise UserError(f"-S {text}: expected a dotted param and a value, such as -S finetune.lr=2e-5")
        if name in settings:
            raise UserError(f"-S {text}: {name} is given twice")
        try:
            settings[name] = with_numbers(yaml.safe_load(_spaced(value)))
        except yaml.YAMLError as error:
            raise UserError(f"-S {text}: the value is not valid YAML: {' '.join(str(error).split())}") from error
    return settings


def _spaced(text: str) -> str:
    """A value with a space behind the colon of each key in braces, without which YAML sees no pair in `{a:b}`.

    A key is what stands between a brace or comma and the next colon; colons behind that, in quotes and in lists belong
    to values.
    """
    made, open_blocks, quote, key = [], [], "", False
    for place, character in enumerate(text):
        made.append(character)
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"" and text[:place].rstrip()[-1:] in ("", "{", "[", ",", ":"):
            quote = character
        elif character in "{[":
            open_blocks.append(character)
            key = character == "{"
        elif character in "}]" and open_blocks:
            open_blocks.pop()
            key = False
        elif character == ",":
            key = open_blocks[-1:] == ["{"]
        elif character == ":" and key:
            made.append(" ")
            key = False
    return "".join(made)


def changes(base: Mapping[str, Any], resolved: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The params that differ: by dotted name, the value in `base` and in `resolved`, `ABSENT` where it is not there.

    A param is whatever is no block, or an empty block. Its order is that of `base`, with what is new at the end.
    """
    before, after = dict(_params(base)), dict(_params(resolved))
    names = [name for name in dict.fromkeys([*before, *after]) if before.get(name, ABSENT) != after.get(name, ABSENT)]
    filled = [name for name in names if any(other.startswith(f"{name}.") for other in names)]  # was {}, or became it
    return {name: (before.get(name, ABSENT), after.get(name, ABSENT)) for name in names if name not in filled}


def value_text(value: Any) -> str:
    """A param's value on one line, as YAML has it; numbers in their shortest form."""
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, str):
        return value
    return yaml.safe_dump(value, default_flow_style=True, width=float("inf")).removesuffix("...\n").strip()


def leaves(raw: Mapping[str, Any]) -> dict[str, str]:
    """Every param by its dotted name, written alike whether YAML read it as a number or, as 2e-05, as text."""
    return {name: _text(value) for name, value in _params(raw)}


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_text(item) for item in value)}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "{}"
    if isinstance(value, str) and not SCIENTIFIC.fullmatch(value):
        return value
    return f"{float(value):.12g}" if is_number(value) else str(value)


def is_number(value: Any) -> bool:
    """Whether it is a finite number, or a text that reads as one."""
    try:
        return math.isfinite(float(value)) and not isinstance(value, bool)
    except (OverflowError, TypeError, ValueError):
        return False


def _params(block: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in block.items():
        if isinstance(value, Mapping) and value:
            yield from _params(value, f"{at}{key}.")
        else:
            yield f"{at}{key}", value
