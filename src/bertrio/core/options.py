"""Typed options: the base class of every block of params, numbers with a range, paths, and choices by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, create_model

from bertrio.core.errors import did_you_mean

MAX_NAME_BYTES = 255  # limit of file systems
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


InputPath = Annotated[str, AfterValidator(_usable_path)]  # of what is read: anywhere
# Names become names of files and folders, and DVC drops stages that are called by a number.
FileName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,99}$")]


class Group(BaseModel):
    """A block of params.yaml: unknown keys are errors, values do not change once read."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)


def choose(table: Mapping[str, T], name: str, kind: str = "") -> T:
    """Return `table[name]`.

    Args:
        table: the components of one kind, by name.
        name: as params give it.
        kind: begins the error message, such as "loss".

    Raises:
        ValueError: if there is no such component; lists the known ones.
    """
    if name in table:
        return table[name]
    known = f"{kind and f'{kind}: '}expected one of {', '.join(table)}"
    raise ValueError(f"{known}, found {name[:100]!r}{did_you_mean(name, table)}")


def one_of(table: Mapping[str, Any]) -> AfterValidator:
    """Return the validator of a param that names a component of `table`."""

    def check(name: str) -> str:
        choose(table, name)
        return name

    return AfterValidator(check)


def options_of(function: Callable[..., Any], names: Iterable[str], **more: tuple[Any, Any]) -> type[Group]:
    """Return the typed options of a component, as its own signature declares them.

    Args:
        function: what takes the options.
        names: which of its arguments users may set; their annotations say what is allowed.
        more: options besides, by name: annotation and default.
    """
    hints, arguments = get_type_hints(function, include_extras=True), signature(function).parameters
    fields: dict[str, Any] = {name: (hints[name], arguments[name].default) for name in names} | more
    return create_model(function.__qualname__, __base__=Group, **fields)


def read_options(options: type[Group], raw: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Return the options in `raw` that are set, checked and converted.

    Args:
        options: what is allowed, from `options_of`.
        raw: as params give them; None stands for the default.
        owner: what takes them, such as "loss mse".

    Raises:
        ValueError: naming an option that is unknown or out of range.
    """
    given = {name: value for name, value in raw.items() if value is not None}
    for name in given.keys() - options.model_fields.keys():
        takes = ", ".join(options.model_fields) or "none"
        raise ValueError(
            f"{name}: {owner} has no such option; it takes {takes}{did_you_mean(name, options.model_fields)}"
        )
    return options.model_validate(given).model_dump(exclude_unset=True)
