"""Params by their dotted names: set, scaled, compared, and written as overrides for `dvc exp run`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bertrio.config.reading import flatten, merged
from bertrio.core.errors import UserError
from bertrio.core.options import MAX_SHOWN

ABSENT = "(absent)"  # stands for a missing param
NAME = re.compile(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*")  # names that Hydra's grammar accepts without quotes
MEMBERS = "ensemble.members"
Block = dict[str, Any]


def set_param(params: Any, name: str, value: Any, at: str = "") -> None:
    """Set one dotted param in place; a block merges with the existing one, and `*` is every existing key.

    Args:
        params: a block of params.
        name: name of the param within the block.
        value: the new value.
        at: dotted name of the block, for messages.

    Raises:
        UserError: if the name leads through something that is not a block.
    """
    key, _, rest = name.partition(".")
    if not isinstance(params, dict) or (key == "*" and not params):
        raise UserError(f"{at}.{name}: unknown param; {at} is {value_text(params)}, and has no params in it")
    for child in list(params) if key == "*" else [key]:
        if rest:
            params[child] = {} if params.get(child) is None else params[child]  # null is a member without overrides
            set_param(params[child], rest, value, f"{at}.{child}" if at else child)
        else:
            params.update(merged({child: params.get(child)}, {child: value}))


def scale(params: Block, factors: Mapping[str, float]) -> None:
    """Multiply params in place, in the base and in the overrides of members.

    Integers are rounded up and stay integers, so that positive values stay at least 1. Floats keep twelve digits.
    Values that are not numbers (null, auto) do not change.

    Args:
        params: all raw params.
        factors: by dotted param; `*` matches any one key, as in `tasks.*.epochs`.
    """
    for pattern, factor in factors.items():
        form = re.compile(rf"({re.escape(MEMBERS)}\.[^.]+\.)?" + re.escape(pattern).replace(r"\*", "[^.]+"))
        for name, value in flatten(params).items():
            if form.fullmatch(name) and isinstance(value, (int, float)) and not isinstance(value, bool):
                set_param(params, name, _scaled(value, factor))


def _scaled(value: int | float, factor: float) -> int | float:
    if isinstance(value, int):
        return math.ceil(round(value * factor, 9))  # 70 * 1.1 is 77.00000000000001, and must not become 78
    return float(f"{value * factor:.12g}")  # 1e-5 * 6 is 6.000000000000001e-05


def parse_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Parse settings of the command line, such as `finetune.lr=2e-05`, into values by dotted param.

    Values are read as by `dvc exp run -S`, see `parse_values`. A param may have the prefix `+` or `++`.

    Raises:
        UserError: if a text is not a setting.
    """
    settings: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().removeprefix("+").removeprefix("+")
        if not equals or not all(name.split(".")) or name[0] in "+~":
            raise UserError(f"-S {text}: expected a dotted param and a value, such as -S finetune.lr=2e-5")
        values = parse_values(value, f"-S {text}")
        if len(values) > 1:
            raise UserError(f"-S {text}: expected one value; a list stands in brackets")
        settings[name] = values[0]
    return settings


def parse_values(text: str, where: str) -> list[Any]:
    """Parse values with commas between them in Hydra's grammar, which `dvc exp run -S` follows.

    Raises:
        UserError: starting with `where`, if they are not valid.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import ChoiceSweep
    from hydra.errors import HydraException

    try:
        override = OverridesParser.create().parse_override(f"value={text}")
        value: Any = override.value()
        if isinstance(value, ChoiceSweep) and value.simple_form:
            return list(map(override._convert_value, value.list))
        too_large = isinstance(value, float) and math.isinf(value) and "inf" not in text.lower()
        if too_large or override.is_sweep_override():
            raise ValueError(f"found {'a number that is too large' if too_large else 'a function, expected a value'}")
    except (HydraException, ValueError, RecursionError) as error:  # the last: of many brackets in brackets
        reason = " ".join(str(error).split())[:MAX_SHOWN]
        raise UserError(f"{where[:MAX_SHOWN]}: {reason}; text may need quotes: \"name='a=b'\"") from None
    return [value]


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the params that differ: by dotted name both values, `ABSENT` where one is missing.

    The order is that of `before`, with new params at the end.
    """
    old, new = flatten(before), flatten(after)
    names = [name for name in {**old, **new} if old.get(name, ABSENT) != new.get(name, ABSENT)]
    filled = {name for name in names if any(other.startswith(f"{name}.") for other in names)}  # one side is {}
    return {name: (old.get(name, ABSENT), new.get(name, ABSENT)) for name in names if name not in filled}


def listed(wrong: Mapping[str, tuple[Any, Any]], first: str, second: str) -> str:
    """Return lines that list params with both of their values."""
    return "".join(
        f"\n  {name}: {first} {value_text(one)}, {second} {value_text(other)}" for name, (one, other) in wrong.items()
    )


def dvc_overrides(before: Mapping[str, Any], after: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """Yield the `--set-param` values with which `dvc exp run` turns `before` into `after`.

    `++key=value` sets a param whether or not it exists, `~key` removes one.

    Raises:
        UserError: for a key that Hydra's grammar can't express.
    """
    for key in [key for key in before if key not in after]:
        yield f"~{_checked(f'{at}{key}')}"
    for key, value in after.items():
        name, old = f"{at}{key}", before.get(key, ABSENT)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            yield from dvc_overrides(old, value, f"{name}.")
        elif old != value:
            if isinstance(old, (dict, list)) and isinstance(value, (dict, list)) and type(old) is not type(value):
                yield f"~{_checked(name)}"  # Hydra would merge a list and a block, and fail
            yield f"++{_checked(name)}={value_text(value, hydra=True)}"


def preset_options(overrides: Mapping[str, Any]) -> Iterator[str]:
    """Yield `-S` options that set `overrides`, for a shell's $(...), which splits at spaces even within quotes.

    Raises:
        UserError: for a text with a space.
    """
    for name, value in overrides.items():
        option = f"++{_checked(name)}={value_text(value, hydra=True)}"
        if re.search(r"\s", option):
            raise UserError(f"{name}: a preset can't hold {value_text(value)}: a shell would split it at the space")
        yield from ("-S", option)


def _checked(name: str) -> str:
    if not NAME.fullmatch(name):
        raise UserError(f"{name}: dvc exp run can't set a param of this name; write it into params.yaml")
    return name


def value_text(value: Any, hydra: bool = False) -> str:
    """Return a param's value on one line.

    Args:
        value: the value.
        hydra: write it in Hydra's grammar: text is quoted, floats keep all digits, and no spaces stand between items.
            Otherwise as in YAML.
    """
    comma, colon = (",", ":") if hydra else (", ", ": ")
    if isinstance(value, Mapping):
        pairs = ((_checked(str(key)) if hydra else key, value_text(item, hydra)) for key, item in value.items())
        return "{" + comma.join(f"{key}{colon}{text}" for key, text in pairs) + "}"
    if isinstance(value, (list, tuple)):
        return f"[{comma.join(value_text(item, hydra) for item in value)}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str) and hydra:
        from hydra.core.override_parser.types import Quote, QuotedString

        return QuotedString(value, Quote.single).with_quotes().replace("${", "\\${")
    return f"{value:.12g}" if isinstance(value, float) and not hydra else str(value)


def leaves(params: Mapping[str, Any]) -> dict[str, str]:
    """Return every param as text."""
    return {name: value_text(value) for name, value in flatten(params).items()}
