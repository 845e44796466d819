"""Typed options: the base class of param blocks, numbers with a range, paths, and choices by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model
from pydantic_core import PydanticCustomError

from bertrio.core.errors import did_you_mean

MAX_NAME_BYTES = 255  # limit of most file systems
MAX_WHOLE = 10**9  # whole numbers count rows, tokens, steps or parameters
MAX_SHOWN = 200  # characters of a value in a message
TYPES = {  # of JSON schemas, in words
    "number": "a number", "integer": "a whole number", "boolean": "true or false", "string": "text", "null": "null",
    "array": "a list", "object": "a block of params",
}  # fmt: skip
BOUNDS = {  # of JSON schemas; pydantic has names of its own for numbers that a validator looks at first
    "gt": "above {:,}", "ge": "from {:,}", "minimum": "from {:,}", "lt": "below {:,}", "le": "up to {:,}",
    "minItems": "length from {:,}", "minProperties": "length from {:,}", "minLength": "length from {:,}",
    "maxItems": "length up to {:,}", "maxLength": "length up to {:,}",
}  # fmt: skip
Schema = Mapping[str, Any]

T = TypeVar("T")


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError("no_number", "expected a number")
    return value


Real = Annotated[float, BeforeValidator(_no_bool), Field(allow_inf_nan=False)]
Whole = Annotated[int, BeforeValidator(_no_bool), Field(le=MAX_WHOLE)]
Positive = Annotated[Real, Field(gt=0)]
NotNegative = Annotated[Real, Field(ge=0)]
Count = Annotated[Whole, Field(ge=1)]
Share = Annotated[Real, Field(ge=0, le=1)]
Rate = Annotated[Real, Field(ge=0, lt=1)]
Seed = Annotated[int, BeforeValidator(_no_bool), Field(ge=0, lt=2**32)]


def matching(pattern: str, words: str) -> AfterValidator:
    """Return the validator for text that matches `pattern`; `words` describe it in messages."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"expected {words}, found {text[:MAX_SHOWN]!r}")
        return text

    return AfterValidator(check)


def _usable_path(value: str) -> str:
    too_long = any(len(part.encode()) > MAX_NAME_BYTES for part in value.split("/"))
    if not value or "\0" in value or too_long:
        raise ValueError(f"expected a path, found {value[:50]!r}, which can't be one")
    try:
        Path(value).expanduser()
    except RuntimeError:
        raise ValueError(f"expected a path, found {value!r}, in the home of a user who is not known here") from None
    return value


InputPath = Annotated[str, AfterValidator(_usable_path)]  # of an input; may be outside the repository
# Used as names of files and folders; DVC drops stages whose name is a number.
FileName = Annotated[
    str,
    matching("[A-Za-z][A-Za-z0-9_-]{0,99}", "a name of at most 100 letters, digits, - and _ that begins with a letter"),
]


class Group(BaseModel):
    """Block of params.yaml: unknown keys are errors, and values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)


def choose(table: Mapping[str, T], name: str, kind: str = "") -> T:
    """Return `table[name]`.

    Args:
        table: components of one kind, by name.
        name: name of a component, from params.
        kind: start of the error message, such as "loss".

    Raises:
        ValueError: if there is no such component; the message lists the known ones.
    """
    if name in table:
        return table[name]
    known = f"{kind and f'{kind}: '}expected one of {', '.join(table)}"
    raise ValueError(f"{known}, found {name[:100]!r}{did_you_mean(name, table)}")


def one_of(table: Mapping[str, Any]) -> AfterValidator:
    """Return the validator for names of components of `table`."""

    def check(name: str) -> str:
        choose(table, name)
        return name

    return AfterValidator(check)


def options_of(function: Callable[..., Any], names: Iterable[str], **more: tuple[Any, Any]) -> type[Group]:
    """Return the typed options of a component, taken from its signature.

    Args:
        function: callable that takes the options.
        names: arguments that users may set; their annotations define the allowed values.
        more: further options by name: annotation and default.
    """
    hints, arguments = get_type_hints(function, include_extras=True), signature(function).parameters
    fields: dict[str, Any] = {name: (hints[name], arguments[name].default) for name in names} | more
    return create_model(function.__qualname__, __base__=Group, **fields)


def read_options(options: type[Group], raw: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Return the options set in `raw`, validated and converted.

    Args:
        options: the allowed options, from `options_of`.
        raw: values from params; None means the default.
        owner: component that takes the options, such as "loss mse".

    Raises:
        ValueError: if an option is unknown or out of range.
    """
    given = {name: value for name, value in raw.items() if value is not None}
    try:
        return options.model_validate(given).model_dump(exclude_unset=True)
    except ValidationError as error:
        raise ValueError("; ".join(problems(error, options.model_json_schema(), f"option of {owner}"))) from None


def problems(error: ValidationError, schema: Schema, kind: str = "param") -> list[str]:
    """Return a message for each wrong value: its dotted name, what `schema` allows there, and what is there.

    Args:
        error: the wrong values.
        schema: JSON schema of what was validated.
        kind: what an unknown name is called.
    """
    messages: dict[str, None] = {}  # a value that is none of two types has two errors and one message
    for item in error.errors(include_url=False):
        keys: list[str] = []
        block = node = schema
        for key in item["loc"]:
            child = _child(node, key, schema)
            if child is not None:  # else `key` is a type of a union, or an unknown name
                keys, block, node = [*keys, str(key)], node, child
        if item["type"] in ("extra_forbidden", "invalid_key"):
            keys, block = [*keys, str(item["loc"][-1])], node
        if item["type"] == "extra_forbidden" or (item["type"] == "literal_error" and item["loc"][-1] == "[key]"):
            option, before = _options(block, schema)[0], "".join(f"{key}." for key in keys[:-1])
            known = option.get("properties") or option.get("propertyNames", {}).get("enum", ())
            text = f"unknown {kind}{did_you_mean(keys[-1], known, before, else_all=True)}"
        else:
            text = _problem(item, node, schema)
        messages[f"{'.'.join(keys)}: {text}" if keys else text] = None
    return list(messages)


def _problem(item: Mapping[str, Any], node: Schema, root: Schema) -> str:
    if item["type"] == "value_error":
        return item["msg"].removeprefix("Value error, ")
    if item["type"] == "missing":
        return "is missing, and has no default"
    if item["type"] == "invalid_key":
        return "expected text for a name, in quotes"
    value, allowed = item["input"], _allowed(node, root)
    guess = did_you_mean(value, [words for words in allowed if " " not in words]) if isinstance(value, str) else ""
    expected = " or ".join([", ".join(allowed[:-1]), allowed[-1]] if len(allowed) > 1 else allowed)
    return f"expected {expected}, found {shown(value)}{guess}"


def shown(value: Any) -> str:
    """Return a value of a YAML file as text of limited length, for messages."""
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _options(node: Schema, root: Schema) -> list[Schema]:
    """Return the schemas of which a value must match one: `node` itself, or the types of a union."""
    if "$ref" in node:
        node = root["$defs"][node["$ref"].rpartition("/")[2]]
    return [option for part in node["anyOf"] for option in _options(part, root)] if "anyOf" in node else [node]


def _child(node: Schema, key: str | int, root: Schema) -> Schema | None:
    """Return the schema of an item of a block or list, or None if it has no such item."""
    for option in _options(node, root):
        items = [option.get("properties", {}).get(key), option.get("additionalProperties")]
        if isinstance(key, int):
            items += [*option.get("prefixItems", [])[key : key + 1], option.get("items")]
        child = next((item for item in items if item), None)
        if child and key != "[key]":
            return child if isinstance(child, Mapping) else {}
    return None


def _allowed(node: Schema, root: Schema) -> list[str]:
    """Return what a schema allows: values, and kinds of values with their bounds."""
    words: list[str] = []
    for option in _options(node, root):
        bounds = [text.format(option[name]) for name, text in BOUNDS.items() if name in option]
        kind = TYPES.get(option.get("type", ""), "another value")
        fixed = option.get("enum", [option["const"]] if "const" in option else [])
        words += map(str, fixed) if fixed else [f"{kind} ({', '.join(bounds)})" if bounds else kind]
    return words
