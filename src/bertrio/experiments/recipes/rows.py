"""Rows, the papers' and our own, as flat overrides on params.yaml, and the budgets that they can be run under."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from bertrio.core.errors import UserError
from bertrio.experiments.recipes.files import (
    OTHER_FILES,
    BudgetFile,
    PaperFile,
    RowFile,
    SweepFile,
    check_name,
    checked,
    nearest,
    read_file,
)
from bertrio.experiments.recipes.params import MEMBERS, Block, value_text

FOLDER = "recipes"
Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Row:
    """One row of a result table, or one point of a sweep.

    Args:
        name: with the paper, such as smart-concat; rows of our own have no paper in their names.
        paper, table: where it stands; for a point of a sweep, `table` is the name of the sweep.
        title: as the paper calls it.
        reported, reported_test: the paper's figures on dev and test.
        overrides: values by dotted param, `*` for any one key, with those of the rows that it starts from.
        choices: what the paper leaves open, and what was chosen.
        literature: it is quoted from another paper and can't be run.
        same_as: the full name of the row whose run this is.
        on: the full name of the row that it starts from, if not from the paper's base.
    """

    name: str
    paper: str
    table: str
    title: str
    reported: Mapping[str, float] = field(default_factory=dict)
    reported_test: Mapping[str, float] = field(default_factory=dict)
    overrides: Mapping[str, Any] = field(default_factory=dict)
    choices: tuple[str, ...] = ()
    literature: bool = False
    same_as: str | None = None
    on: str | None = None

    @property
    def run_as(self) -> str:
        """The row that experiments and measured files of this one are named after."""
        return self.same_as or self.name


@dataclass(frozen=True)
class Table:
    """One result table of a paper; its full name is `<paper>-<name>`."""

    name: str
    title: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Sweep:
    """One hyper-parameter grid of a paper: row `on` with every combination of the values in `over`."""

    name: str
    title: str
    on: str
    over: Mapping[str, tuple[Any, ...]]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Paper:
    """One paper: `overall` is its overall score (raw, normalized or None), `data` its rows by task and split.

    With `own` it is a set of rows of the project itself.
    """

    name: str
    title: str
    overall: str | None
    data: Mapping[str, Mapping[str, int]]
    choices: tuple[str, ...]
    tables: Mapping[str, Table]
    sweeps: Mapping[str, Sweep]
    own: bool = False

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of all tables."""
        return tuple(row for table in self.tables.values() for row in table.rows)


@dataclass(frozen=True)
class Budget:
    """How much a run may cost: factors of params, then overrides."""

    name: str
    title: str
    multiply: Mapping[str, float]
    overrides: Mapping[str, Any]


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
        return self._named(name, self.papers, "paper")

    def budget(self, name: str) -> Budget:
        """Return a budget; raises as `paper`."""
        return self._named(name, self.budgets, "budget")

    def row(self, name: str) -> Row:
        """Return a row of a table or point of a sweep by its full name; raises as `paper`, and for a group."""
        groups = dict(self.groups())
        rows = {row.name: row for group in groups.values() for row in group}
        if name not in rows and (several := groups.get(name)):
            some = ", ".join(row.name for row in several[:3])
            raise UserError(
                f"{name}: expected one row, found the name of {len(several)}; name one of them, such as {some}"
            )
        return self._named(name, rows, "row")

    def expand(self, names: Iterable[str]) -> list[Row]:
        """Return the rows to run for names of rows, tables, papers and sweeps, each once, in order.

        A row that is the same run as another is replaced by it. Rows quoted from the literature are left out.

        Raises:
            UserError: with the nearest name if one is unknown, or if a row is named that can't be run.
        """
        groups = dict(self.groups())
        runs: dict[str, Row] = {}
        for name in names:
            rows = self._named(name, groups, "row, table, paper or sweep")
            if all(row.literature for row in rows):
                raise UserError(f"{name}: can't be run: the paper quotes it from the literature")
            runs |= {row.run_as: self.row(row.run_as) for row in rows if not row.literature}
        return list(runs.values())

    def groups(self) -> Iterator[tuple[str, tuple[Row, ...]]]:
        """Yield every name that `expand` takes, with its rows."""
        for paper in self.papers.values():
            yield paper.name, paper.rows
            parts: list[Table | Sweep] = [*paper.tables.values(), *paper.sweeps.values()]
            for part in parts:
                yield f"{paper.name}-{part.name}", part.rows
                yield from ((row.name, (row,)) for row in part.rows)

    def _named(self, name: str, known: Mapping[str, Kind], kind: str) -> Kind:
        if name not in known:
            hint = nearest(name, known)
            few = len(known) < 10 or not hint.startswith("known here")
            raise UserError(
                f"{name}: no such {kind} in {self.folder}/; {hint if few else 'bertrio recipes lists them'}"
            )
        return known[name]


def load_recipes(folder: str | Path = FOLDER) -> Recipes:
    """Load all papers and budgets of a folder. Params are checked when a row is resolved.

    Raises:
        UserError: naming the file, the row and the key that is wrong.
    """
    folder = Path(folder)
    files = [path for path in sorted(folder.glob("*.yaml")) if path.stem not in OTHER_FILES]
    if not files:
        raise UserError(f"{folder}: found no recipes, expected <paper>.yaml; run this from the root of the repository")
    budgets, path = {}, folder / "budgets.yaml"
    for name, raw in read_file(path).items():
        given = checked(BudgetFile, raw, f"{path}: {name}")
        budgets[name] = Budget(name, given.title, given.multiply, given.set)
    recipes = Recipes({path.stem: _PaperReader(path).read() for path in files}, budgets, str(folder))
    name, count = Counter(name for name, _ in recipes.groups()).most_common(1)[0]
    if count > 1:
        raise UserError(
            f"{folder}: {name} is the name of two papers, rows, tables or sweeps; rename one, or see same_as"
        )
    return recipes


class _PaperReader:
    """Reads the file of one paper."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.stem
        check_name(self.name, str(path))
        self.given = checked(PaperFile, read_file(path), str(path))
        self.rows: dict[str, RowFile] = {}
        for table in self.given.tables.values():
            for name, row in table.rows.items():
                if name in self.rows:
                    raise UserError(f"{path}: {name}: is in two tables; give one another name, and same_as: {name}")
                if self.given.own and (row.reported or row.reported_test or row.literature):
                    raise UserError(f"{path}: {name}: a row with reported figures is a paper's; take out own: true")
                self.rows[name] = row

    def read(self) -> Paper:
        """Return the paper with all of its rows."""
        given = self.given
        tables = {
            name: Table(name, table.title, tuple(self._row(row, name) for row in table.rows))
            for name, table in given.tables.items()
        }
        sweeps = {name: self._sweep(name, sweep) for name, sweep in given.sweeps.items()}
        return Paper(self.name, given.title, given.overall, given.data, given.choices, tables, sweeps, given.own)

    def _full(self, row: str) -> str:
        """The name that a row of this file has everywhere else."""
        return row if self.given.own else f"{self.name}-{row}"

    def _row(self, name: str, table: str) -> Row:
        given = self.rows[name]
        if given.same_as and (twin := self._find(given.same_as, f"{name}: same_as")) and twin.same_as:
            raise UserError(f"{self.path}: {name}: same_as: {given.same_as} has no run of its own to be the same as")
        return Row(
            self._full(name),
            self.name,
            table,
            given.title or name,
            given.reported,
            given.reported_test,
            overrides={} if given.literature else self._overrides(name),
            choices=given.choices,
            literature=given.literature,
            same_as=self._full(given.same_as) if given.same_as else None,
            on=self._full(given.on) if given.on else None,
        )

    def _overrides(self, name: str, above: tuple[str, ...] = ()) -> Block:
        """Those of the paper's base, of the rows that this one is on, and its own."""
        given = self.rows[name]
        if name in above:
            raise UserError(f"{self.path}: {above[0]}: on goes round in a circle: {' -> '.join([*above, name])}")
        if not (start := given.on or given.same_as):
            return {**self.given.base, **given.set}
        self._find(start, f"{name}: {'on' if given.on else 'same_as'}")
        return {**self._overrides(start, (*above, name)), **given.set}

    def _find(self, name: str, where: str) -> RowFile:
        if name not in self.rows:
            raise UserError(f"{self.path}: {where}: no row {name} in this paper; {nearest(name, self.rows)}")
        if self.rows[name].literature:
            raise UserError(f"{self.path}: {where}: {name} is quoted from the literature, and has no params")
        return self.rows[name]

    def _sweep(self, name: str, given: SweepFile) -> Sweep:
        self._find(given.on, f"sweeps.{name}: on")
        points = [dict(zip(given.over, values)) for values in product(*given.over.values())]
        rows = tuple(self._point(name, given, point) for point in points)
        return Sweep(name, given.title, self._full(given.on), given.over, rows)

    def _point(self, sweep: str, given: SweepFile, point: Mapping[str, Any]) -> Row:
        """One combination of values, named after them: losses-grid-lr-3e-05-weight_decay-0.01."""
        texts = {param: value_text(value) for param, value in point.items()}
        words = zip(_tails(list(point)), texts.values())
        name = "-".join(re.sub(r"[^a-z0-9._-]+", "-", f"{key}-{text}".lower()) for key, text in words)
        check_name(name, f"{self.path}: sweeps.{sweep}")
        overrides = {**self._overrides(given.on), **point}
        runs = {name: self._overrides(name) for name, row in self.rows.items() if not (row.literature or row.same_as)}
        twin = None if any(param.startswith(MEMBERS) for param in point) else overrides
        return Row(
            self._full(f"{sweep}-{name}"),
            self.name,
            sweep,
            ", ".join(f"{param} {text}" for param, text in texts.items()),
            overrides=overrides,
            choices=given.choices,
            same_as=next((self._full(name) for name, own in runs.items() if own == twin), None),
            on=self._full(given.on),
        )


def _tails(params: list[str]) -> list[str]:
    """The ends of dotted names, as short as tells them apart: `lr`, or finetune.lr and prefinetune.lr."""
    for count in range(1, max(name.count(".") for name in params) + 1):
        tails = [".".join(name.split(".")[-count:]) for name in params]
        if len(set(tails)) == len(tails):
            return tails
    return params
