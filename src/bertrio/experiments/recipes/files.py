"""The format of the files in recipes/."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from bertrio.config.loading import read_yaml
from bertrio.core.errors import UserError
from bertrio.core.options import Group, Positive, Real
from bertrio.experiments.recipes.params import MEMBERS, Block, flatten, with_numbers

OTHER_FILES = ("budgets", "claims", "extensions")  # in recipes/, beside those of papers
NAME = r"[a-z0-9]+([._-][a-z0-9]+)*"  # becomes part of a git ref and of file names
Name = Annotated[str, Field(pattern=f"^{NAME}$")]
Text = Annotated[str, Field(min_length=1)]
Model = TypeVar("Model", bound=Group)


def _flat(value: Any) -> Any:
    return flatten(value, whole=MEMBERS) if isinstance(value, dict) else value


# Values by dotted param; nested blocks are short for that
Overrides = Annotated[Block, BeforeValidator(_flat), Field(default_factory=dict)]
Figures = Annotated[dict[str, Real], Field(default_factory=dict)]


class RowFile(Group):
    """One row of a table."""

    title: Text | None = None
    reported: Figures
    reported_test: Figures
    on: Text | None = None
    set: Overrides
    choices: tuple[Text, ...] = ()
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
    """One result table."""

    title: Text
    rows: Annotated[dict[Name, RowFile], Field(min_length=1)]


class SweepFile(Group):
    """One hyper-parameter grid."""

    title: Text
    on: Text
    over: Annotated[dict[str, Annotated[tuple[Any, ...], Field(min_length=1)]], Field(min_length=1)]
    choices: tuple[Text, ...] = ()


class PaperFile(Group):
    """One paper, or with `own` rows of the project itself."""

    title: Text
    own: bool = False
    overall: Literal["raw", "normalized"] | None
    data: Annotated[dict[str, dict[str, Annotated[int, Field(ge=0)]]], Field(default_factory=dict)]
    choices: tuple[Text, ...] = ()
    base: Overrides
    tables: dict[Name, TableFile]
    sweeps: Annotated[dict[Name, SweepFile], Field(default_factory=dict)]


class BudgetFile(Group):
    """How much a run may cost."""

    title: Text
    multiply: Annotated[dict[str, Positive], Field(default_factory=dict)]
    set: Overrides


class ExtensionFile(Group):
    """One switch of recipes/extensions.yaml."""

    title: Text
    what: Text
    set: Annotated[Overrides, Field(min_length=1)]
    excludes: tuple[Text, ...] = ()
    needs: tuple[Text, ...] = ()


def read_file(path: Path) -> Block:
    """Read a YAML file of recipes/, in which 1e-5 is a number and `on` a key (to YAML 1.1 they are text and true)."""
    return _with_on(with_numbers(read_yaml(path)))


def _with_on(value: Any) -> Any:
    if isinstance(value, dict):
        return {"on" if key is True else key: _with_on(item) for key, item in value.items()}
    return value


def checked(model: type[Model], raw: Any, where: str) -> Model:
    """Return a block as a `model`.

    Raises:
        UserError: beginning with `where`, and naming every key that is unknown, missing or of a wrong type.
    """
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        lines = [_message(item, model) for item in error.errors(include_url=False)]
        raise UserError("\n".join(f"{where}: {line}" for line in lines)) from None


def check_name(name: str, where: str) -> None:
    """Raise a UserError for a name that can't be part of a git ref."""
    if not re.fullmatch(NAME, str(name)):
        raise UserError(f"{where}: {name}: expected a name of a-z and 0-9 with single . _ - between, as in lambda-0.1")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: the nearest known name, or all of them."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"known here: {', '.join(known)}"


def _message(item: Any, model: type[Group]) -> str:
    name = ".".join(map(str, item["loc"])).replace(".[key]", "")
    if item["type"] == "extra_forbidden":
        hint = f"; {nearest(str(item['loc'][0]), model.model_fields)}" if len(item["loc"]) == 1 else ""
        return f"{name}: unknown key{hint}"
    if item["type"] == "missing":
        return f"{name}: is missing"
    if item["loc"] and item["loc"][-1] == "[key]":
        return f"{name}: expected a name of a-z and 0-9 with single . _ - between, as in lambda-0.1"
    text = re.sub(r"^(Value error, |Input )", "", item["msg"])
    return f"{name}: {text.replace('should be', 'expected')}" + (
        "" if item["type"] == "value_error" else f", found {item['input']!r}"
    )
