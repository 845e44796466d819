"""Typed options: the base class of every block of params, numbers with a range, paths, and choices by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

MAX_WHOLE = 10**9  # whole numbers count rows, tokens, steps or parameters
MAX_PATH_BYTES, MAX_NAME_BYTES = 4096, 255  # limits of file systems

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
    too_long = len(value.encode()) > MAX_PATH_BYTES or any(
        len(part.encode()) > MAX_NAME_BYTES for part in value.split("/")
    )
    if not value or "\0" in value or too_long:
        raise ValueError(f"expected a path, found {value[:50]!r}, which can't be one")
    try:
        Path(value).expanduser()
    except RuntimeError:
        raise ValueError(f"expected a path, found {value!r}, in the home of a user who is not known here") from None
    return value


def _inside(value: str) -> str:
    path = PurePosixPath(value)
    if path.is_absolute() or ".." in path.parts or value.startswith("~"):
        raise ValueError(f"expected a folder inside the repository, a relative path without '..', found {value!r}")
    return value


InputPath = Annotated[str, AfterValidator(_usable_path)]  # of what is read: anywhere
OutputFolder = Annotated[str, AfterValidator(_usable_path), AfterValidator(_inside)]  # of what is written
# Names become names of files and folders, and DVC drops stages that are called by a number.
FileName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,99}$")]


class Group(BaseModel):
    """A block of params.yaml: unknown keys are errors, values do not change once read."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)


class Options(Group):
    """Options of a component; those left out have the component's defaults."""

    def given(self) -> dict[str, Any]:
        """Return the options that are set, by name."""
        return self.model_dump(exclude_none=True)


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
    close = difflib.get_close_matches(name, list(table), n=1)
    guess = f"; did you mean {close[0]}?" if close else ""
    raise ValueError(f"{kind and f'{kind}: '}expected one of {', '.join(table)}, found {name[:100]!r}{guess}")
