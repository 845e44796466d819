"""What the files in recipes/ may hold, and errors that name the file, the row and the key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationError, model_validator

from bertrio.config.loading import read_yaml
from bertrio.core.errors import UserError
from bertrio.core.options import Group, Positive, Real, Whole
from bertrio.experiments.recipes.params import Block, with_numbers

OTHER_FILES = ("budgets", "claims", "extensions")  # of recipes/, beside those of papers
NAME = re.compile(r"[a-z0-9]+([._-][a-z0-9]+)*")  # becomes the name of a git ref and of files
Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[list[Text], Field(default_factory=list)]
Overrides = Annotated[Block, Field(default_factory=dict)]
Figures = Annotated[dict[str, Real], Field(default_factory=dict)]
Kind = TypeVar("Kind", bound=Group)


class RowFile(Group):
    """One row of a table."""

    title: Text | None = None
    reported: Figures
    reported_test: Figures
    on: Text | None = None
    set: Overrides
    choices: Texts
    same_as: Text | None = None
    literature: bool = False

    @model_validator(mode="after")
    def _runs_one_way(self) -> RowFile:
        if self.same_as and (self.on or self.set or self.literature):
            raise ValueError(f"has same_as: it is the run of {self.same_as}, and can't have on, set or literature")
        if self.literature and (self.on or self.set):
            raise ValueError("has literature: it can't be run, and can't have on or set")
        return self


class TableFile(Group):
    """One result table; its rows are checked one by one."""

    title: Text
    rows: Annotated[dict[str, Block], Field(min_length=1)]


class SweepFile(Group):
    """One hyper-parameter grid."""

    title: Text
    on: Text
    over: Annotated[dict[str, Annotated[list[Any], Field(min_length=1)]], Field(min_length=1)]
    choices: Texts


class PaperFile(Group):
    """One paper, or with `own` rows of the project's own; its tables and sweeps are checked one by one."""

    title: Text
    own: bool = False
    overall: Literal["raw", "normalized"] | None
    data: Annotated[dict[str, dict[str, Annotated[Whole, Field(ge=0)]]], Field(default_factory=dict)]
    choices: Texts
    base: Overrides
    tables: dict[str, Block]
    sweeps: Annotated[dict[str, Block], Field(default_factory=dict)]


class BudgetFile(Group):
    """How much a run may cost."""

    title: Text
    multiply: Annotated[dict[str, Positive], Field(default_factory=dict)]
    set: Overrides


def read_file(path: Path) -> Block:
    """A YAML file of recipes/: 1e-5 is a number in it and `on` a key, which YAML 1.1 takes for a text and for true."""
    return _with_on(with_numbers(read_yaml(path)))


def _with_on(value: Any) -> Any:
    if isinstance(value, dict):
        return {"on" if key is True else key: _with_on(item) for key, item in value.items()}
    return value


def checked(kind: type[Kind], raw: Any, where: str) -> Kind:
    """A block as a `kind`; `where` is the file and the row, which errors begin with.

    Raises:
        UserError: naming every key that is unknown, missing or of a wrong type.
    """
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        found = [_message(item, kind) for item in error.errors(include_url=False)]
        raise UserError("\n".join(f"{where}: {line}" for line in found)) from None


def check_names(names: Iterable[str], where: str) -> None:
    """Checks names of rows, tables and sweeps, which become parts of the names of experiments.

    Raises:
        UserError: if git would refuse one, or it is not plainly written.
    """
    for name in names:
        if not NAME.fullmatch(str(name)):
            raise UserError(
                f"{where}: {name}: expected a name of a-z and 0-9 with single . _ - between, as in lambda-0.1"
            )


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: the known one that is nearest, or all of them."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"known here: {', '.join(known)}"


def _message(item: dict[str, Any], kind: type[Group]) -> str:
    name = ".".join(map(str, item["loc"]))
    if item["type"] == "extra_forbidden":
        return f"{name}: unknown key; {nearest(name, kind.model_fields)}"
    if item["type"] == "missing":
        return f"{name}: is missing"
    text = re.sub(r"^(Value error, |Input )", "", item["msg"])
    return f"{name}: {text.replace('should be', 'expected')}, found {item['input']!r}" if name else text
