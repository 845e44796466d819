"""The files of recipes/: rows of result tables as flat overrides on params.yaml, budgets, and extensions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError, model_validator

from bertrio.config.reading import read_yaml
from bertrio.core.errors import UserError, did_you_mean
from bertrio.core.options import Group, Positive, Real, matching, problems
from bertrio.experiments.recipes.params import MEMBERS, Block, flatten, value_text

FOLDER = "recipes"
OTHER_FILES = ("budgets", "claims", "extensions", "presets")  # files that are not papers
BASE = "base"  # the name of a set without extensions
NAME = "a name of small letters and digits, with . _ or - between them"
Name = Annotated[str, matching("[a-z0-9]+([._-][a-z0-9]+)*", NAME)]  # part of git refs and file names
NonEmptyText = Annotated[str, Field(min_length=1)]
T = TypeVar("T")


def _flat(value: Any) -> Any:
    return flatten(value, whole=MEMBERS) if isinstance(value, dict) else value


Overrides = Annotated[Block, BeforeValidator(_flat)]  # values by dotted param; nested blocks are flattened


class Changes(Group):
    """Overrides of params by dotted name; the key in files is `set`."""

    overrides: Overrides = Field(default_factory=dict, alias="set")


class Row(Changes):
    """One row of a result table, or one point of a sweep.

    Args:
        name: full name with the paper as prefix, such as smart-concat; rows of this project have no prefix.
        paper, table: where the row belongs; for a point of a sweep, `table` is the name of the sweep.
        title: the paper's name for the row.
        reported, reported_test: the paper's figures on dev and test.
        overrides: values by dotted param (`*` matches any one key), including those of the rows it builds on.
        choices: details that the paper leaves open, with the value chosen here.
        extensions: the extensions that the paper ticks for the row.
        literature: True if the row is another paper's or another tool's and can't be run.
        same_as: another row that has the same run.
        on: the row that this one builds on; None for the paper's base.
    """

    name: str = ""
    paper: str = ""
    table: str = ""
    title: str = ""
    reported: dict[str, Real] = Field(default_factory=dict)
    reported_test: dict[str, Real] = Field(default_factory=dict)
    choices: tuple[NonEmptyText, ...] = ()
    extensions: tuple[NonEmptyText, ...] = ()
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
        """Name of the row in experiments and measured files."""
        return self.same_as or self.name


class Table(Group):
    """Result table of a paper. `title_test` is the title of its figures on test."""

    title: NonEmptyText
    title_test: NonEmptyText | None = None
    rows: Annotated[dict[Name, Row], Field(min_length=1)]


class Sweep(Group):
    """Grid of settings around row `on`.

    Args:
        over: values by param, or by several with commas between them; the points are all combinations of values.
        factors: overrides by name, each of which is on or off; the points are those with an even number of factors on.
            Of five factors these are 16 of 32, a fractional factorial design of resolution V: no main effect and no
            interaction of two is mixed up with another (Box and Hunter 1961, "The 2^(k-p) fractional factorial
            designs").
    """

    title: NonEmptyText
    on: NonEmptyText
    over: dict[str, Annotated[tuple[Any, ...], Field(min_length=1)]] = Field(default_factory=dict)
    factors: dict[Name, Overrides] = Field(default_factory=dict)
    choices: tuple[NonEmptyText, ...] = ()
    rows: dict[str, Row] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_kind(self) -> Sweep:
        if bool(self.over) == bool(self.factors):
            raise ValueError("expected over or factors")
        if 0 < len(self.factors) < 5:
            raise ValueError("expected five factors or more: of fewer, effects and interactions are mixed up")
        return self

    def points(self) -> Iterator[tuple[str, str, Block]]:
        """Yield the name, the title and the overrides of each point, such as lr-3e-05-weight_decay-0.01."""
        for count in range(0, len(self.factors) + 1, 2) if self.factors else ():
            for chosen in combinations(self.factors, count):
                overrides = {param: value for name in chosen for param, value in self.factors[name].items()}
                yield "-".join(chosen) or "none", ", ".join(chosen) or "none", overrides
        for values in product(*self.over.values()) if self.over else ():
            texts = [value_text(value) for value in values]
            names = [param.rpartition(", ")[2].partition(".")[2].removeprefix("*.") for param in self.over]
            words = (f"{name}-{text}".lower() for name, text in zip(names, texts))
            overrides = {name: value for params, value in zip(self.over, values) for name in params.split(", ")}
            title = ", ".join(f"{params} {text}" for params, text in zip(self.over, texts))
            yield "-".join(re.sub(r"[^a-z0-9._-]+", "-", word).strip("-") for word in words), title, overrides


class Paper(Group):
    """One paper: `overall` is its overall score, `base` shared overrides.

    With `own` it is a set of rows of this project.
    """

    name: str = ""
    title: NonEmptyText
    own: bool = False
    overall: Literal["raw", "normalized"] | None
    choices: tuple[NonEmptyText, ...] = ()
    base: Overrides = Field(default_factory=dict)
    tables: dict[Name, Table]
    sweeps: dict[Name, Sweep] = Field(default_factory=dict)

    @property
    def rows(self) -> list[Row]:
        """Rows of all tables."""
        return [row for table in self.tables.values() for row in table.rows.values()]


class Preset(Changes):
    """Overrides of params.yaml under one name, for any run."""

    title: NonEmptyText


class Budget(Preset):
    """Size of a run: factors that multiply params, then overrides."""

    multiply: dict[str, Positive] = Field(default_factory=dict)


class Extension(Preset):
    """One technique that forward selection may add to a base.

    Args:
        title: the name in the paper and what it is.
        overrides: values by dotted param.
        excludes: extensions that can't be combined with this one.
        needs: extensions without which this one has no effect.
    """

    excludes: tuple[NonEmptyText, ...] = ()
    needs: tuple[NonEmptyText, ...] = ()


@dataclass(frozen=True)
class Recipes:
    """All papers and budgets of a folder, which lies beside params.yaml."""

    papers: Mapping[str, Paper]
    budgets: Mapping[str, Budget]
    folder: str = FOLDER

    @cached_property
    def params(self) -> Block:
        """Raw content of params.yaml, on which rows build; not to be changed."""
        return read_yaml(Path(self.folder).parent / "params.yaml")

    def paper(self, name: str) -> Paper:
        """Return a paper by its short name.

        Raises:
            UserError: if the name is unknown; the message has the nearest name.
        """
        return find(name, self.papers, f"papers of {self.folder}/")

    def budget(self, name: str) -> Budget:
        """Return a budget; raises as `paper`."""
        return find(name, self.budgets, f"{self.folder}/budgets.yaml")

    def row(self, name: str) -> Row:
        """Return a row of a table or point of a sweep by its full name; raises as `paper`, also for a group's name."""
        rows = find(name, self.groups, f"{self.folder}/")
        if len(rows) > 1:
            raise UserError(f"{name}: expected one row, found {len(rows)}; name one of them, such as {rows[0].name}")
        return rows[0]

    def base_row(self, name: str | None) -> Row:
        """Return a row by name, or a row for plain params.yaml if it is None; raises as `row`."""
        return self.row(name) if name else Row(name="params.yaml", paper="params", title="params.yaml")

    def expand(self, names: Iterable[str]) -> list[Row]:
        """Return the rows to run for names of rows, tables, papers and sweeps, in order and without duplicates.

        A row with `same_as` is replaced by that row. Rows of another paper or tool are left out.

        Raises:
            UserError: if a name is unknown, or names a row that can't be run.
        """
        runs: dict[str, Row] = {}
        for name in names:
            rows = [row for row in find(name, self.groups, f"{self.folder}/") if not row.literature]
            if not rows:
                raise UserError(f"{name}: can't be run: it is another tool's or paper's")
            runs |= {row.run_as: self.row(row.run_as) for row in rows}
        return list(runs.values())

    @cached_property
    def groups(self) -> dict[str, list[Row]]:
        """Rows by every name that `expand` accepts."""
        return dict(self.named())

    def named(self) -> Iterator[tuple[str, list[Row]]]:
        """Yield each name of a paper, table, sweep or row with its rows."""
        for paper in self.papers.values():
            yield paper.name, paper.rows
            parts: dict[str, Table | Sweep] = {**paper.tables, **paper.sweeps}
            for name, part in parts.items():
                yield f"{paper.name}-{name}", list(part.rows.values())
                yield from ((row.name, [row]) for row in part.rows.values())


def load_recipes(folder: str | Path = FOLDER) -> Recipes:
    """Load all papers and budgets of a folder. `resolve` checks the params.

    Raises:
        UserError: naming the file, the row and the wrong key.
    """
    folder = Path(folder)
    files = [path for path in sorted(folder.glob("*.yaml")) if path.stem not in OTHER_FILES]
    if not files:
        raise UserError(f"{folder}: found no recipes, expected <paper>.yaml; run this from the root of the repository")
    budgets = read_file(folder / "budgets.yaml", dict[str, Budget])
    recipes = Recipes({path.stem: _read_paper(path) for path in files}, budgets, str(folder))
    name, count = Counter(name for name, _ in recipes.named()).most_common(1)[0]
    if count > 1:
        raise UserError(f"{folder}: {name} is the name of two papers, rows, tables or sweeps; rename one")
    return recipes


def load_extensions(folder: str | Path = FOLDER) -> dict[str, Extension]:
    """Load the extensions of a folder of recipes, by name; raises as `load_recipes`."""
    path = Path(folder) / "extensions.yaml"
    extensions: dict[str, Extension] = read_file(path, dict[Name, Extension])
    for name, extension in extensions.items():
        for other in (*extension.excludes, *extension.needs):
            find(other, extensions, f"{path}: {name}")
    return extensions


def load_presets(folder: str | Path = FOLDER) -> dict[str, Preset]:
    """Load the presets of a folder of recipes, by name; raises as `load_recipes`."""
    presets: dict[str, Preset] = read_file(Path(folder) / "presets.yaml", dict[Name, Preset])
    return presets


def read_file(path: Path, kind: Any) -> Any:
    """Read a YAML file of recipes/ as `kind`.

    Raises:
        UserError: naming every unknown, missing or invalid key.
    """
    try:
        return TypeAdapter(kind).validate_python(read_yaml(path))
    except ValidationError as error:
        raise UserError("\n".join(f"{path}: {problem}" for problem in problems(error, "key"))) from None


def find(name: str, known: Mapping[str, T], where: str) -> T:
    """Return `known[name]`.

    Raises:
        UserError: if the name is unknown; the message has the nearest name.
    """
    if name not in known:
        raise UserError(f"{name}: is not in {where}{did_you_mean(name, known, else_all=True)}")
    return known[name]


def _read_paper(path: Path) -> Paper:
    """Read the file of one paper. Rows get full names and overrides; sweeps get their points."""
    file: Paper = read_file(path, Paper)
    prefix = "" if file.own else f"{path.stem}-"
    file_rows = {name: row for table in file.tables.values() for name, row in table.rows.items()}

    def overrides_of(name: str, above: tuple[str, ...] = ()) -> Block:
        """Return the overrides of the paper's base, of the rows that this one builds on, and of the row itself."""
        row = find(name, file_rows, f"the rows of {path}")
        if row.literature or name in above:
            raise UserError(f"{path}: {' -> '.join([*above, name])}: expected a start that can be run")
        start = row.on or row.same_as
        return {**(overrides_of(start, (*above, name)) if start else file.base), **row.overrides}

    def complete(name: str, table: str) -> Row:
        row = file_rows[name]
        full: Block = {key: prefix + other for key in ("on", "same_as") if (other := getattr(row, key))}
        full |= {"name": prefix + name, "paper": path.stem, "table": table, "title": row.title or name}
        return row.model_copy(update=full | {"overrides": {} if row.literature else overrides_of(name)})

    tables = {
        name: table.model_copy(update={"rows": {row: complete(row, name) for row in table.rows}})
        for name, table in file.tables.items()
    }
    runs = [row for table in tables.values() for row in table.rows.values() if not (row.literature or row.same_as)]
    sweeps = {}
    for name, sweep in file.sweeps.items():
        start = Row(name=prefix + sweep.on, paper=path.stem, table=name, set=overrides_of(sweep.on))
        points = {point.name: point for point in _points(f"{prefix}{name}", sweep, start, runs)}
        sweeps[name] = sweep.model_copy(update={"on": start.name, "rows": points})
    return file.model_copy(update={"name": path.stem, "tables": tables, "sweeps": sweeps})


def _points(prefix: str, sweep: Sweep, start: Row, runs: Iterable[Row]) -> Iterator[Row]:
    """Yield the points of a sweep as rows; one with the overrides of a row in a table is the same run."""
    for name, title, changed in sweep.points():
        overrides = {**start.overrides, **changed}
        point: Block = {"name": f"{prefix}-{name}", "title": title, "choices": sweep.choices, "overrides": overrides}
        point["same_as"] = next((row.name for row in runs if row.overrides == overrides), None)
        yield start.model_copy(update=point | {"on": start.name})
