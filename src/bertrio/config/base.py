"""What all groups of params share: their base class, numbers with a range, names and paths."""

from __future__ import annotations

from pathlib import Path, PureWindowsPath
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

LARGEST = 10**9  # of whole numbers: all of them count rows, tokens, steps or parameters
LONGEST_PATH, LONGEST_NAME = 4096, 255  # what file systems take, in bytes


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("expected a number, found true or false")
    return value


Real = Annotated[float, BeforeValidator(_no_bool), Field(allow_inf_nan=False)]
Whole = Annotated[int, BeforeValidator(_no_bool), Field(le=LARGEST)]
Positive = Annotated[Real, Field(gt=0)]
NotNegative = Annotated[Real, Field(ge=0)]
Count = Annotated[Whole, Field(ge=1)]
Share = Annotated[Real, Field(ge=0, le=1)]
Rate = Annotated[Real, Field(ge=0, lt=1)]
Seed = Annotated[int, BeforeValidator(_no_bool), Field(ge=0, lt=2**32)]


def _usable_path(value: str) -> str:
    too_long = len(value.encode()) > LONGEST_PATH or any(len(part.encode()) > LONGEST_NAME for part in value.split("/"))
    if not value or "\0" in value or too_long:
        raise ValueError(f"expected a path, found {value[:50]!r}, which can't be one")
    try:
        Path(value).expanduser()
    except RuntimeError:
        raise ValueError(f"expected a path, found {value!r}, in the home of a user who is not known here") from None
    return value


def _inside(value: str) -> str:
    path = PureWindowsPath(value)  # takes both kinds of slashes, and knows drives
    if path.anchor or ".." in path.parts or value.startswith("~"):
        raise ValueError(f"expected a folder inside the repository, a relative path without '..', found {value!r}")
    return value


InputPath = Annotated[str, AfterValidator(_usable_path)]  # of what is read: anywhere
OutputFolder = Annotated[str, AfterValidator(_usable_path), AfterValidator(_inside)]  # of what is written
# Names become names of files and folders, and DVC drops stages that are called by a number.
FileName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,99}$")]


class Group(BaseModel):
    """A block of params.yaml: unknown keys are errors, values do not change once read."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)
