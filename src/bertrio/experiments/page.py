"""One self-contained HTML page out of sections of tables, notes and pictures.

The page needs no network and reads without JavaScript; with it, tables sort and search. Every text is escaped by the
template engine, no data stand in the script, and a Content-Security-Policy allows this one script and this one style
sheet, by their hashes, and nothing else. The same sections give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bertrio.core.files import write_text

HERE = Path(__file__).parent
FIRST = 50  # rows of a long table that are shown at first where the script runs; without it all are
WIDTH = 200  # of a line that a value is drawn on, in pixels
LONG = 25  # tables with more rows can always be searched


@dataclass(frozen=True)
class Bar:
    """A value with its interval, drawn on a line from `least` to `most`; `mark` is a value to compare it with."""

    value: float
    low: float | None = None
    high: float | None = None
    mark: float | None = None
    least: float = 0.0
    most: float = 1.0

    def at(self, value: float) -> float:
        """Where on the line `value` stands, from 0 to `WIDTH`; values outside stand at its ends."""
        share = (value - self.least) / (self.most - self.least)
        return round(WIDTH * min(max(share, 0.0), 1.0), 1)


@dataclass(frozen=True)
class Cell:
    """One cell: its text, and where it helps what sorting goes by, a bar, further lines, and lines that unfold."""

    text: str
    key: float | None = None
    bar: Bar | None = None
    lines: Sequence[str] = ()  # further texts of the same weight, each on a line of its own
    fold: str = ""
    folded: Sequence[str] = ()
    good: bool | None = None  # a verdict, said in the text as well: True is coloured as good news, False as bad


@dataclass(frozen=True)
class Column:
    """A column's title and kind, which decides how it sorts and looks.

    `kind` is number (by value, to the right), measure (by value, to the left, with a bar), text (wide, in any
    language), phrase (wraps) or word (as long as it is).
    """

    title: str
    kind: str = "number"


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns; `title` is what assistive technology announces, and stands above it."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    search: bool = False  # however short it is

    @property
    def long(self) -> bool:
        """Whether it is searched and paged."""
        return len(self.rows) > LONG or (self.search and bool(self.rows))


@dataclass(frozen=True)
class Note:
    """A paragraph, in softer ink if `quiet`."""

    text: str
    quiet: bool = True


@dataclass(frozen=True)
class Picture:
    """A PNG, which goes into the page itself."""

    title: str
    png: bytes

    @property
    def uri(self) -> str:
        return "data:image/png;base64," + base64.b64encode(self.png).decode("ascii")

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels, so that the page keeps its layout while pictures are decoded."""
        return struct.unpack(">II", self.png[16:24])


@dataclass(frozen=True)
class Fold:
    """Blocks that are unfolded on demand."""

    title: str
    blocks: Sequence[Table | Note | Picture]
    open: bool = False


Block = Table | Note | Picture | Fold


@dataclass(frozen=True)
class Section:
    """A part of the page; `name` is its anchor."""

    name: str
    title: str
    intro: str = ""
    blocks: Sequence[Block] = ()


@dataclass(frozen=True)
class Tile:
    """A headline figure."""

    title: str
    cell: Cell
    lines: Sequence[str] = ()


def write_page(
    path: str | Path,
    title: str,
    subtitle: str,
    notes: Sequence[str],
    tiles: Sequence[Tile],
    sections: Sequence[Section],
) -> None:
    """Writes the page to `path`, whole or not at all."""
    write_text(path, render_page(title, subtitle, notes, tiles, sections))


def render_page(
    title: str, subtitle: str, notes: Sequence[str], tiles: Sequence[Tile], sections: Sequence[Section]
) -> str:
    """The page as HTML.

    Args:
        title: of the page; also what the browser's tab says.
        subtitle: stands beside the title.
        notes: short lines below it.
        tiles: headline figures.
        sections: the parts of the page, in order.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page = environment.get_template("page.html").render(
        title=title,
        subtitle=subtitle,
        notes=notes,
        tiles=tiles,
        sections=sections,
        first=FIRST,
        width=WIDTH,
        kind=lambda block: type(block).__name__.lower(),  # picks the part of the template
        policy=_policy(style, script),
        style=Markup(style),  # ours, and written without anything that would end its element
        script=Markup(script),
    )
    return page.strip() + "\n"  # what stands around macros leaves lines behind


def _policy(style: str, script: str) -> str:
    """The page's Content-Security-Policy: this style sheet, this script, pictures inside the page, nothing else."""
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii") for text in (style, script)]
    return (
        f"default-src 'none'; style-src 'sha256-{digests[0]}'; script-src 'sha256-{digests[1]}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
