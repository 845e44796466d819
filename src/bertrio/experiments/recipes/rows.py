"""Rows, the papers' and our own, as overrides on params.yaml, and the budgets that they can be run under."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from bertrio.core.errors import UserError
from bertrio.experiments.recipes.files import (
    OTHER_FILES,
    BudgetFile,
    PaperFile,
    RowFile,
    SweepFile,
    TableFile,
    check_names,
    checked,
    nearest,
    read_file,
)
from bertrio.experiments.recipes.params import Block, layered, parse_settings, value_text, with_numbers
from bertrio.experiments.recipes.resolving import resolve

__all__ = ["Budget", "Paper", "Recipes", "Row", "Sweep", "Table", "load_recipes", "parse_settings", "resolve"]

FOLDER = "recipes"


@dataclass(frozen=True)
class Row:
    """One row of a result table, or one point of a sweep.

    Args:
        name: with the paper, such as smart-concat; the one form used everywhere. Rows of our own have no paper in it.
        paper, table: where it stands; of a point of a sweep, `table` is the sweep's name.
        title: as the paper calls it.
        reported, reported_test: the paper's figures on dev and test; empty where it gives none.
        overrides: on params.yaml, nested as there; what the row shares with others is in them.
        choices: what the paper leaves open, and what was chosen.
        literature: it is quoted from another paper and can't be run.
        same_as: the full name of the row whose run this is.
        settings: what a point of a sweep sets on top: dotted params, `*` for every key, and their values.
        on: the full name of the row that it starts from, if that is not the paper's base alone.
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
    settings: Mapping[str, Any] = field(default_factory=dict)
    on: str | None = None

    @property
    def run_as(self) -> str:
        """The row that experiments and measured files of this one are called after."""
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
    """One paper: `overall` is how it makes its overall score (raw, normalized or None), `data` its rows by split.

    With `own` it is none, but a set of rows of the project's own.
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
    """How much a run may cost: params that are multiplied, then overrides."""

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
        """One paper, by its short name.

        Raises:
            UserError: with the nearest name, if there is none.
        """
        return self._found(name, self.papers, "paper")

    def budget(self, name: str) -> Budget:
        """One budget; raises as `paper`."""
        return self._found(name, self.budgets, "budget")

    def row(self, name: str) -> Row:
        """One row of a table or point of a sweep, by its full name; raises as `paper`, and for a name of many rows."""
        rows = {row.name: row for paper in self.papers.values() for row in _rows_of(paper)}
        if name not in rows and (many := dict(self._groups()).get(name)):
            some = ", ".join(row.name for row in many[:3])
            raise UserError(
                f"{name}: expected one row, found the name of {len(many)}; name one of them, such as {some}"
            )
        return self._found(name, rows, "row")

    def expand(self, names: Iterable[str]) -> list[Row]:
        """The rows that names of rows, tables, papers and sweeps stand for: those to run, each once, in order.

        A row that is the same run as another gives way to that one. Rows quoted from the literature are left out.

        Raises:
            UserError: with the nearest name if one is unknown, or if a row is named that can't be run.
        """
        groups, runs = dict(self._groups()), {}
        for name in names:
            rows = self._found(name, groups, "row, table, paper or sweep")
            if all(row.literature for row in rows):
                raise UserError(f"{name}: can't be run: the paper quotes it from the literature")
            for row in rows:
                if not row.literature:
                    runs[row.run_as] = self.row(row.run_as)
        return list(runs.values())

    def _groups(self) -> Iterator[tuple[str, tuple[Row, ...]]]:
        """Every name that may be given to `expand`, and its rows."""
        for paper in self.papers.values():
            yield paper.name, paper.rows
            for part in (*paper.tables.values(), *paper.sweeps.values()):
                yield f"{paper.name}-{part.name}", part.rows
            yield from ((row.name, (row,)) for row in _rows_of(paper))

    def _found(self, name: str, known: Mapping[str, Any], kind: str) -> Any:
        if name not in known:
            hint = nearest(name, known)
            few = len(known) < 10 or not hint.startswith("known here")
            raise UserError(
                f"{name}: no such {kind} in {self.folder}/; {hint if few else 'bertrio recipes lists them'}"
            )
        return known[name]


def _rows_of(paper: Paper) -> tuple[Row, ...]:
    return paper.rows + tuple(row for sweep in paper.sweeps.values() for row in sweep.rows)


def load_recipes(folder: str | Path = FOLDER) -> Recipes:
    """Reads all papers and budgets of a folder, strictly.

    What rows override is checked against params.yaml when they are resolved.

    Raises:
        UserError: naming the file, the row and the key that is wrong.
    """
    folder = Path(folder)
    files = [path for path in sorted(folder.glob("*.yaml")) if path.stem not in OTHER_FILES]
    if not files:
        raise UserError(f"{folder}: found no recipes, expected <paper>.yaml; run this from the root of the repository")
    papers = {path.stem: _PaperReader(path).read() for path in files}
    recipes = Recipes(papers, _read_budgets(folder / "budgets.yaml"), str(folder))
    names = [name for name, _ in recipes._groups()]
    for name in names:
        if names.count(name) > 1:
            raise UserError(
                f"{folder}: {name} is the name of two papers, rows, tables or sweeps; rename one, or see same_as"
            )
    return recipes


def _read_budgets(path: Path) -> dict[str, Budget]:
    budgets = {}
    for name, raw in read_file(path).items():
        check_names([name], str(path))
        given = checked(BudgetFile, raw, f"{path}: {name}")
        budgets[name] = Budget(name, given.title, given.multiply, given.set)
    return budgets


class _PaperReader:
    """Reads one paper's file: first what its rows say, then what they make of each other."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.stem
        self.given = checked(PaperFile, read_file(path), str(path))
        check_names([self.name, *self.given.tables, *self.given.sweeps], str(path))
        self.tables = {
            name: checked(TableFile, raw, f"{path}: tables.{name}") for name, raw in self.given.tables.items()
        }
        self.rows: dict[str, RowFile] = {}
        for table in self.tables.values():
            check_names(table.rows, str(path))
            for name, raw in table.rows.items():
                if name in self.rows:
                    raise UserError(f"{path}: {name}: is in two tables; give one another name, and same_as: {name}")
                self.rows[name] = checked(RowFile, raw, f"{path}: {name}")
        if self.given.own:
            self._check_own()

    def read(self) -> Paper:
        """The paper with all of its rows."""
        tables = {
            name: Table(name, table.title, tuple(self._row(row, name) for row in table.rows))
            for name, table in self.tables.items()
        }
        sweeps = {name: self._sweep(name, raw) for name, raw in self.given.sweeps.items()}
        given = self.given
        choices = tuple(given.choices)
        return Paper(self.name, given.title, given.overall, given.data, choices, tables, sweeps, given.own)

    def _check_own(self) -> None:
        kept = [*(["data"] if self.given.data else [])]
        kept += [
            f"{name}: {key}"
            for name, row in self.rows.items()
            for key in ("reported", "reported_test", "literature")
            if getattr(row, key)
        ]
        if kept:
            raise UserError(f"{self.path}: {kept[0]}: is of a paper, and with own: true there is none; take it out")

    def _full(self, row: str) -> str:
        """The name that a row of this file has everywhere else."""
        return row if self.given.own else f"{self.name}-{row}"

    def _row(self, name: str, table: str) -> Row:
        given = self.rows[name]
        same_as = None
        if given.same_as:
            target = self._named(given.same_as, name, "same_as")
            if target.same_as or target.literature:
                raise UserError(
                    f"{self.path}: {name}: same_as: {given.same_as} has no run of its own to be the same as"
                )
            same_as = self._full(given.same_as)
        return Row(
            self._full(name),
            self.name,
            table,
            given.title or name,
            given.reported,
            given.reported_test,
            overrides={} if given.literature else self._overrides(name),
            choices=tuple(given.choices),
            literature=given.literature,
            same_as=same_as,
            on=self._full(given.on) if given.on else None,
        )

    def _overrides(self, name: str, above: tuple[str, ...] = ()) -> Block:
        """Those of the paper's base, of the rows that this one is on, and its own."""
        given = self.rows[name]
        if name in above:
            raise UserError(f"{self.path}: {above[0]}: on goes round in a circle: {' -> '.join([*above, name])}")
        start = given.on or given.same_as
        if not start:
            return layered(self.given.base, given.set)
        if self._named(start, name, "on" if given.on else "same_as").literature:
            raise UserError(f"{self.path}: {name}: on: {start} is quoted from the literature, and sets nothing")
        return layered(self._overrides(start, (*above, name)), given.set)

    def _named(self, wanted: str, name: str, key: str) -> RowFile:
        if wanted not in self.rows:
            raise UserError(f"{self.path}: {name}: {key}: no row {wanted} in this paper; {nearest(wanted, self.rows)}")
        return self.rows[wanted]

    def _sweep(self, name: str, raw: Block) -> Sweep:
        given = checked(SweepFile, raw, f"{self.path}: sweeps.{name}")
        if self._named(given.on, f"sweeps.{name}", "on").literature:
            raise UserError(
                f"{self.path}: sweeps.{name}: on: {given.on} is quoted from the literature, and sets nothing"
            )
        points = [dict(zip(given.over, values)) for values in product(*given.over.values())]
        rows = tuple(self._point(name, given, point) for point in points)
        over = {param: tuple(values) for param, values in given.over.items()}
        return Sweep(name, given.title, self._full(given.on), over, rows)

    def _point(self, sweep: str, given: SweepFile, point: Mapping[str, Any]) -> Row:
        """One combination of values, called after them: losses-grid-lr-3e-05-weight_decay-0.01."""
        texts = {param: value_text(value) for param, value in point.items()}
        words = zip(_tails(list(point)), texts.values())
        name = "-".join(re.sub(r"[^a-z0-9._-]+", "-", f"{key}-{text}".lower()) for key, text in words)
        check_names([name], f"{self.path}: sweeps.{sweep}")
        return Row(
            self._full(f"{sweep}-{name}"),
            self.name,
            sweep,
            ", ".join(f"{param} {text}" for param, text in texts.items()),
            overrides=self._overrides(given.on),
            choices=tuple(given.choices),
            same_as=self._twin(given.on, point),
            settings=point,
            on=self._full(given.on),
        )

    def _twin(self, on: str, point: Mapping[str, Any]) -> str | None:
        """The full name of a row that sets all that a point of a sweep does, if there is one: it is the same run."""
        if any("*" in param or param.startswith("ensemble.members") for param in point):  # not as in a row's `set`
            return None
        whole = self._overrides(on)
        for param, value in point.items():
            for key in reversed(param.split(".")):
                value = {key: value}
            whole = layered(whole, value)
        rows = [name for name, row in self.rows.items() if not (row.literature or row.same_as)]
        twins = (name for name in rows if with_numbers(self._overrides(name)) == with_numbers(whole))
        return next(map(self._full, twins), None)


def _tails(params: list[str]) -> list[str]:
    """The ends of dotted names, as many keys of each as tell them apart: `lr`, or finetune.lr and prefinetune.lr."""
    for count in range(1, max(name.count(".") for name in params) + 1):
        tails = [".".join(name.split(".")[-count:]) for name in params]
        if len(set(tails)) == len(tails):
            return tails
    return params
