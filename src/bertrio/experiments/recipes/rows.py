"""The files of recipes/: rows of result tables as flat overrides on params.yaml, budgets, and extensions."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from bertrio.config.loading import read_yaml
from bertrio.core.errors import UserError
from bertrio.core.options import Group, Positive, Real
from bertrio.experiments.recipes.params import MEMBERS, Block, flatten, value_text, with_numbers

FOLDER = "recipes"
OTHER_FILES = ("budgets", "claims", "extensions")  # beside those of papers
EXTENSIONS = "extensions.yaml"
BASE = "base"  # the name of a set without extensions
LONGEST_VALUE = 80  # characters of a wrong value that a message shows

Name = Annotated[str, Field(pattern=r"^[a-z0-9]+([._-][a-z0-9]+)*$")]  # becomes part of a git ref and of file names
NonEmptyText = Annotated[str, Field(min_length=1)]
T = TypeVar("T")


def _flat(value: Any) -> Any:
    return flatten(value, whole=MEMBERS) if isinstance(value, dict) else value


Overrides = Annotated[Block, BeforeValidator(_flat)]  # values by dotted param; nested blocks are short for that


class Changes(Group):
    """What is changed in params: values by dotted param; in files it is called `set`."""

    model_config = ConfigDict(populate_by_name=True)

    overrides: Overrides = Field(default_factory=dict, alias="set")


class Row(Changes):
    """One row of a result table, or one point of a sweep.

    Args:
        name: with the paper, such as smart-concat; rows of our own have no paper in their names.
        paper, table: where it stands; for a point of a sweep, `table` is the name of the sweep.
        title: as the paper calls it.
        reported, reported_test: the paper's figures on dev and test.
        overrides: values by dotted param, `*` for any one key, with those of the rows that it starts from.
        choices: what the paper leaves open, and what was chosen.
        literature: it is quoted from another paper and can't be run.
        same_as: the row whose run this is.
        on: the row that it starts from, if not from the paper's base.
    """

    name: str = ""
    paper: str = ""
    table: str = ""
    title: str = ""
    reported: dict[str, Real] = Field(default_factory=dict)
    reported_test: dict[str, Real] = Field(default_factory=dict)
    choices: tuple[NonEmptyText, ...] = ()
    literature: bool = False
    same_as: NonEmptyText | None = None
    on: NonEmptyText | None = None

    @model_validator(mode="after")
    def _runs_one_way(self) -> Row:
        if [self.literature, bool(self.same_as), bool(self.on or self.overrides)].count(True) > 1:
            raise ValueError("expected one of literature, same_as, or on and set")
        return self

    @property
    def run_as(self) -> str:
        """The row that experiments and measured files of this one are named after."""
        return self.same_as or self.name


class Table(Group):
    """One result table of a paper; its full name is `<paper>-<name>`."""

    name: str = ""
    title: NonEmptyText
    rows: Annotated[dict[Name, Row], Field(min_length=1)]


class Sweep(Group):
    """One hyper-parameter grid of a paper: row `on` with every combination of the values in `over`."""

    name: str = ""
    title: NonEmptyText
    on: NonEmptyText
    over: Annotated[dict[str, Annotated[tuple[Any, ...], Field(min_length=1)]], Field(min_length=1)]
    choices: tuple[NonEmptyText, ...] = ()
    rows: dict[str, Row] = Field(default_factory=dict)


class Paper(Group):
    """One paper: `overall` is its overall score, `data` its rows by task and split, `base` what its rows share.

    With `own` it is a set of rows of the project itself.
    """

    name: str = ""
    title: NonEmptyText
    own: bool = False
    overall: Literal["raw", "normalized"] | None
    data: dict[str, dict[str, Annotated[int, Field(ge=0)]]] = Field(default_factory=dict)
    choices: tuple[NonEmptyText, ...] = ()
    base: Overrides = Field(default_factory=dict)
    tables: dict[Name, Table]
    sweeps: dict[Name, Sweep] = Field(default_factory=dict)

    @property
    def rows(self) -> list[Row]:
        """The rows of all tables."""
        return [row for table in self.tables.values() for row in table.rows.values()]


class Budget(Changes):
    """How much a run may cost: factors of params, then overrides."""

    title: NonEmptyText
    multiply: dict[str, Positive] = Field(default_factory=dict)


class Extension(Changes):
    """One switch that forward selection may add to a base.

    Args:
        title: as in the paper.
        what: one line about what it does.
        overrides: values by dotted param.
        excludes: extensions that it can't be combined with.
        needs: extensions without which it has no effect.
    """

    title: NonEmptyText
    what: NonEmptyText
    overrides: Annotated[Overrides, Field(min_length=1, alias="set")]
    excludes: tuple[NonEmptyText, ...] = ()
    needs: tuple[NonEmptyText, ...] = ()


@dataclass(frozen=True)
class Recipes:
    """All papers and budgets of a folder."""

    papers: Mapping[str, Paper]
    budgets: Mapping[str, Budget]
    folder: str = FOLDER

    def paper(self, name: str) -> Paper:
        """Return a paper by its short name.

        Raises:
            UserError: with the nearest name, if there is none.
        """
        return find(name, self.papers, f"papers of {self.folder}/")

    def budget(self, name: str) -> Budget:
        """Return a budget; raises as `paper`."""
        return find(name, self.budgets, f"{self.folder}/budgets.yaml")

    def row(self, name: str) -> Row:
        """Return a row of a table or point of a sweep by its full name; raises as `paper`, and for a group."""
        rows = find(name, self.groups, f"{self.folder}/")
        if len(rows) > 1:
            raise UserError(f"{name}: expected one row, found {len(rows)}; name one of them, such as {rows[0].name}")
        return rows[0]

    def base_row(self, name: str | None) -> Row:
        """Return the row of a name, or params.yaml as it is; raises as `row`."""
        return self.row(name) if name else Row(name="params.yaml", paper="params", title="params.yaml")

    def expand(self, names: Iterable[str]) -> list[Row]:
        """Return the rows to run for names of rows, tables, papers and sweeps, each once, in order.

        A row that is the same run as another is replaced by it. Rows quoted from the literature are left out.

        Raises:
            UserError: with the nearest name if one is unknown, or if a row is named that can't be run.
        """
        runs: dict[str, Row] = {}
        for name in names:
            rows = [row for row in find(name, self.groups, f"{self.folder}/") if not row.literature]
            if not rows:
                raise UserError(f"{name}: can't be run: the paper quotes it from the literature")
            runs |= {row.run_as: self.row(row.run_as) for row in rows}
        return list(runs.values())

    @cached_property
    def groups(self) -> dict[str, list[Row]]:
        """The rows of every name that `expand` takes."""
        return dict(self.named())

    def named(self) -> Iterator[tuple[str, list[Row]]]:
        """Yield the names of papers, tables, sweeps and rows, each with its rows."""
        for paper in self.papers.values():
            yield paper.name, paper.rows
            parts: dict[str, Table | Sweep] = {**paper.tables, **paper.sweeps}
            for name, part in parts.items():
                yield f"{paper.name}-{name}", list(part.rows.values())
                yield from ((row.name, [row]) for row in part.rows.values())


def load_recipes(folder: str | Path = FOLDER) -> Recipes:
    """Load all papers and budgets of a folder. Params are checked when a row is resolved.

    Raises:
        UserError: naming the file, the row and the key that is wrong.
    """
    folder = Path(folder)
    files = [path for path in sorted(folder.glob("*.yaml")) if path.stem not in OTHER_FILES]
    if not files:
        raise UserError(f"{folder}: found no recipes, expected <paper>.yaml; run this from the root of the repository")
    budgets = read_file(folder / "budgets.yaml", dict[str, Budget])
    recipes = Recipes({path.stem: _PaperReader(path).read() for path in files}, budgets, str(folder))
    name, count = Counter(name for name, _ in recipes.named()).most_common(1)[0]
    if count > 1:
        raise UserError(f"{folder}: {name} is the name of two papers, rows, tables or sweeps; rename one")
    return recipes


def load_extensions(folder: str | Path = FOLDER) -> dict[str, Extension]:
    """Load the extensions of a folder of recipes, by name; raises as `load_recipes`."""
    path = Path(folder) / EXTENSIONS
    extensions: dict[str, Extension] = read_file(path, dict[Name, Extension])
    for name, extension in extensions.items():
        for other in (*extension.excludes, *extension.needs):
            find(other, extensions, f"{path}: {name}")
    return extensions


def read_file(path: Path, kind: Any) -> Any:
    """Read a YAML file of recipes/ as `kind`; in it 1e-5 is a number and `on` a key (to YAML 1.1 text and true).

    Raises:
        UserError: naming every key that is unknown, missing or of a wrong type.
    """
    try:
        return TypeAdapter(kind).validate_python(_with_on(with_numbers(read_yaml(path))))
    except ValidationError as error:
        raise UserError("\n".join(f"{path}: {problem}" for problem in problems(error))) from None


def problems(error: ValidationError) -> list[str]:
    """Return what is wrong with each key, and what was found."""
    return [
        f"{'.'.join(map(str, item['loc']))}: {item['msg']}, found {str(item['input'])[:LONGEST_VALUE]}".replace(
            "Extra inputs are not permitted", "unknown key"
        )
        for item in error.errors(include_url=False)
    ]


def _with_on(value: Any) -> Any:
    if isinstance(value, dict):
        return {"on" if key is True else key: _with_on(item) for key, item in value.items()}
    return value


def find(name: str, known: Mapping[str, T], where: str) -> T:
    """Return `known[name]`.

    Raises:
        UserError: with the nearest name, if it is unknown.
    """
    if name not in known:
        raise UserError(f"{name}: is not in {where}; {nearest(name, known)}")
    return known[name]


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: the nearest known name, or all of them."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"known here: {', '.join(known)}"


class _PaperReader:
    """Reads the file of one paper."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.stem
        self.file: Paper = read_file(path, Paper)
        self.rows = {name: row for table in self.file.tables.values() for name, row in table.rows.items()}

    def read(self) -> Paper:
        """Return the paper with rows that have their full names and overrides, and with the points of its sweeps."""
        tables = {
            name: table.model_copy(update={"name": name, "rows": {row: self._row(row, name) for row in table.rows}})
            for name, table in self.file.tables.items()
        }
        runs = [row for table in tables.values() for row in table.rows.values() if not (row.literature or row.same_as)]
        sweeps = {name: self._sweep(name, sweep, runs) for name, sweep in self.file.sweeps.items()}
        return self.file.model_copy(update={"name": self.name, "tables": tables, "sweeps": sweeps})

    def _full(self, row: str) -> str:
        """Return the name that a row of this file has everywhere else."""
        return row if self.file.own else f"{self.name}-{row}"

    def _row(self, name: str, table: str) -> Row:
        row = self.rows[name]
        full: Block = {"name": self._full(name), "paper": self.name, "table": table, "title": row.title or name}
        full |= {key: self._full(other) for key in ("on", "same_as") if (other := getattr(row, key))}
        return row.model_copy(update=full | {"overrides": {} if row.literature else self._overrides(name)})

    def _overrides(self, name: str, above: tuple[str, ...] = ()) -> Block:
        """Return those of the paper's base, of the rows that this one is on, and its own."""
        row = find(name, self.rows, f"the rows of {self.path}")
        if row.literature or name in above:
            raise UserError(f"{self.path}: {' -> '.join([*above, name])}: expected a start that can be run")
        start = row.on or row.same_as
        if row.same_as and row.same_as in self.rows and self.rows[row.same_as].same_as:
            raise UserError(f"{self.path}: {name}: same_as: {row.same_as} has no run of its own")
        return {**(self._overrides(start, (*above, name)) if start else self.file.base), **row.overrides}

    def _sweep(self, name: str, sweep: Sweep, runs: list[Row]) -> Sweep:
        """Return a sweep with its points, named after their values: losses-grid-lr-3e-05-weight_decay-0.01."""
        on, start, rows = self._full(sweep.on), self._overrides(sweep.on), {}
        for values in product(*sweep.over.values()):
            texts = [value_text(value) for value in values]
            words = [f"{key}-{text}".lower() for key, text in zip(_tails(list(sweep.over)), texts)]
            overrides = {**start, **dict(zip(sweep.over, values))}
            row = Row.model_construct(
                name=self._full("-".join([name, *(re.sub(r"[^a-z0-9._-]+", "-", word).strip("-") for word in words)])),
                paper=self.name,
                table=name,
                title=", ".join(f"{param} {text}" for param, text in zip(sweep.over, texts)),
                choices=sweep.choices,
                overrides=overrides,
                same_as=next((row.name for row in runs if row.overrides == overrides), None),
                on=on,
            )
            rows[row.name] = row
        return sweep.model_copy(update={"name": name, "on": on, "rows": rows})


def _tails(params: list[str]) -> list[str]:
    """Return the ends of dotted names, as short as tells them apart: `lr`, or finetune.lr and prefinetune.lr."""
    for count in range(1, max(name.count(".") for name in params) + 1):
        tails = [".".join(name.split(".")[-count:]) for name in params]
        if len(set(tails)) == len(tails):
            return tails
    return params
