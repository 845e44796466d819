"""Typed options: the base class of param blocks, numbers with a range, paths, and choices by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from inspect import signature
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError, create_model, model_validator
from pydantic_core import PydanticKnownError

from bertrio.core.errors import did_you_mean

MAX_WHOLE = 10**9  # whole numbers count rows, tokens, steps or parameters
MAX_SHOWN = 200  # characters of a value in a message
KINDS = {  # what is expected, by the first word of pydantic's type of an error
    "float": "a number", "finite": "a number", "int": "a whole number", "bool": "true or false", "list": "a list",
    "tuple": "a list", "dict": "a block of params", "model": "a block of params",
    "invalid": "text for a name, in quotes", "string": "text (no, on and null in quotes)",
}  # fmt: skip

T = TypeVar("T")


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticKnownError("float_type")
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


def _path_of_known_home(value: str) -> str:
    if not value:
        raise ValueError("expected a path, found empty text")
    try:
        Path(value).expanduser()
    except RuntimeError:
        raise ValueError(f"expected a path, found {value!r}, in the home of a user who is not known here") from None
    return value


InputPath = Annotated[str, AfterValidator(_path_of_known_home)]  # of an input; may be outside the repository
# Used as names of files and folders; DVC drops stages whose name is a number.
FileName = Annotated[
    str,
    matching("[A-Za-z][A-Za-z0-9_-]{0,99}", "a name of at most 100 letters, digits, - and _ that begins with a letter"),
]


class Group(BaseModel, extra="forbid", frozen=True, coerce_numbers_to_str=True):
    """Block of params.yaml: unknown keys are errors, and values are immutable."""

    @model_validator(mode="before")
    @classmethod
    def _list_known_keys(cls, raw: Any) -> Any:
        """Replace the value of each unknown key with the known keys, for its message."""
        known = [field.alias or name for name, field in cls.model_fields.items()]
        return {key: raw[key] if key in known else known for key in raw} if isinstance(raw, Mapping) else raw


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
        raise ValueError("; ".join(problems(error, f"option of {owner}"))) from None


def problems(error: ValidationError, kind: str = "param") -> list[str]:
    """Return a message for each wrong value: its dotted name, what is expected there, and what is there.

    Args:
        error: the wrong values.
        kind: what an unknown name is called.
    """
    messages = [(name, _problem(list(items), name, kind)) for name, items in groupby(error.errors(), _name)]
    return [f"{name}: {text}" if name else text for name, text in messages]


def _name(item: Mapping[str, Any]) -> str:
    if item["type"] == "extra_forbidden":
        return ".".join(map(str, item["loc"]))
    keys = [str(key) for key in item["loc"] if not str(key).endswith("]")]
    return re.sub(r"\.(bool|str)$", "", ".".join(keys))  # these and those with ] are types of a union


def _problem(items: list[Any], name: str, kind: str) -> str:
    """Return what is wrong with a value, from its errors: several if it is of none of the types of a union."""
    item, expected = items[0], ", or ".join(dict.fromkeys(map(_expected, items)))
    if item["type"] == "value_error":
        return item["msg"].removeprefix("Value error, ")
    if item["type"] == "missing":
        return "is missing, and has no default"
    if item["type"] == "extra_forbidden":
        key = str(item["loc"][-1])
        return f"unknown {kind}{did_you_mean(key, item['input'], name.removesuffix(key), else_all=True)}"
    guess = did_you_mean(str(item["input"])[:MAX_SHOWN], re.findall("'(.*?)'", items[-1]["msg"]))
    return f"expected {expected}, found {shown(item['input'])}{guess}"


def _expected(item: Mapping[str, Any]) -> str:
    kind, _, detail = item["type"].partition("_")
    if kind in KINDS and not detail.startswith("too"):
        return KINDS[kind]
    text = re.sub("^Input should be (?=greater|less)", "a number ", item["msg"])
    return re.sub(r"^\w+ should (be|have) | after .*|'", "", text)


def shown(value: Any) -> str:
    """Return a value of a YAML file as text of limited length, for messages."""
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
