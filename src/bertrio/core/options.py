"""Typed options: the base class of param blocks, numbers with a range, paths, and choices by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, create_model

from bertrio.core.errors import did_you_mean

MAX_NAME_BYTES = 255  # limit of most file systems
MAX_WHOLE = 10**9  # whole numbers count rows, tokens, steps or parameters

T = TypeVar("T")


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("expected a number, found true or false")
    return value


Real = Annotated[float, BeforeValidator(_no_bool), Field(allow_inf_nan=False)]
Whole = Annotated[int, BeforeValidator(_no_bool), Field(le=MAX_WHOLE)]
Positive = Annotated[Real, Field(gt=0)]
NotNegative = Annotated[Real, Field(ge=0)]
Count = Annotated[Whole, Field(ge=1)]
Share = Annotated[Real, Field(ge=0, le=1)]
Rate = Annotated[Real, Field(ge=0, lt=1)]
Seed = Annotated[int, BeforeValidator(_no_bool), Field(ge=0, lt=2**32)]


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
FileName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,99}$")]


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
    for name in given.keys() - options.model_fields.keys():
        takes = ", ".join(options.model_fields) or "none"
        raise ValueError(
            f"{name}: {owner} has no such option; it takes {takes}{did_you_mean(name, options.model_fields)}"
        )
    return options.model_validate(given).model_dump(exclude_unset=True)
