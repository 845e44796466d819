"""The HTML report: everything that the pipeline found out about a run, on one self-contained page.

The page needs no network and reads without JavaScript; with it, tables sort and search. The template engine escapes
every text, and a Content-Security-Policy allows the page's own script and style sheet, by their hashes, and nothing
else. The same files give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import io
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from bertrio.analysis import figures
from bertrio.analysis.figures import Figure, shown
from bertrio.core.tasks import Task
from bertrio.evaluation.evaluate import how_chosen

MOST = 5000  # rows of one table; a browser opens so many in a second
FIRST = 50  # rows of a long table that are shown at first where the script runs; without it all are
LONG = 25  # tables with more rows can always be searched
WIDTH = 200  # pixels of the line from 0 to 1 that a figure is drawn on
NAMED = 6  # changed settings that the head of the page names


class Texts(NamedTuple):
    """A cell with the texts of a row, one below the other, and lines that unfold."""

    lines: Sequence[str]
    folded: Sequence[str] = ()


@dataclass(frozen=True)
class Table:
    """A frame with a title. Cells are numbers, words, `Figure` or `Texts`; `folded` shows it on demand."""

    title: str
    frame: pd.DataFrame
    note: str = ""
    folded: bool = False

    @property
    def kinds(self) -> list[str]:
        """How each column sorts and looks: text, measure, number or word."""
        return [_kind(list(column)) for _, column in self.frame.items()]

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """The rows that the page shows."""
        return list(self.frame.head(MOST).itertuples(index=False, name=None))

    @property
    def long(self) -> bool:
        """Whether the table is searched and paged: tables of texts always are."""
        return len(self.frame) > LONG or "text" in self.kinds


def _kind(values: Sequence[Any]) -> str:
    for kind, classes in (("text", Texts), ("measure", Figure)):
        if any(isinstance(value, classes) for value in values):
            return kind
    return "number" if all(value is None or isinstance(value, (int, float)) for value in values) else "word"


class Picture(NamedTuple):
    """A PNG, which goes into the page itself."""

    title: str
    png: bytes

    @property
    def uri(self) -> str:
        """The picture as a data address."""
        return "data:image/png;base64," + base64.b64encode(self.png).decode("ascii")

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels, so that the page keeps its layout while pictures are decoded."""
        return struct.unpack(">II", self.png[16:24])


@dataclass(frozen=True)
class Section:
    """A part of the page; `name` is its anchor.

    `facts` are what the template's own introduction of this section speaks of; `missing` is the file that the section
    needs and the stage that writes it, where it is not there.
    """

    name: str
    title: str
    intro: str = ""
    notes: Sequence[str] = ()
    tables: Sequence[Table | Picture] = ()
    facts: Mapping[str, Any] | None = None
    missing: tuple[str, str] | None = None


class Tile(NamedTuple):
    """A headline figure."""

    title: str
    figure: Figure
    lines: Sequence[str] = ()


@dataclass(frozen=True)
class Report:
    """The sections of a run's report.

    Args:
        files: the files of the run, an `experiments.revision.Revision`.
        settings: all params by dotted name, as text.
        changed: those that differ from the last commit, here and there; None without a commit.
        members: the names of the ensemble's members.
        comparison: the section that compares the run with a baseline.
    """

    files: Any
    settings: Mapping[str, str]
    changed: Mapping[str, tuple[str, str]] | None
    members: Sequence[str]
    comparison: Section = field(default_factory=lambda: Section("comparison", "Comparison with a baseline"))

    def sections(self) -> list[Section]:
        """Return all sections; one whose file is missing says which stage writes it."""
        sections = []
        for name, title, path, stage in SECTIONS:
            if name == "comparison":
                sections.append(self.comparison)
            elif path and not self.files.exists(path):
                sections.append(Section(name, title, missing=(path, stage)))
            else:
                content: Any = self.files.json(path) if path.endswith(".json") else None
                asked = content if name == "challenges" else self._json("metrics/robustness.json")
                caption = figures.model_caption(asked, self.members)
                facts = {"content": content, "caption": caption, "changed": self.changed}
                sections.append(Section(name, title, tables=getattr(self, f"_{name}")(content), facts=facts))
        return sections

    def headline(self) -> tuple[list[str], list[Tile]]:
        """Return short lines on what was run, and each task's first metric beside that of the simple baseline."""
        notes = [] if self.changed is None else [_changed_text(self.changed)]
        evaluation = self._json("metrics/evaluation.json")
        splits = figures.splits_of(evaluation)
        if not splits:
            return notes, []
        chosen = how_chosen(evaluation.get("selected_on", {}))
        how = f"; the epoch was {chosen}" if chosen else ""
        notes.append(f"The figures below are of {splits[0]}{how}. Brackets and bars: 95 % intervals.")
        return notes, [self._tile(evaluation, splits[0], name, value) for name, value in evaluation[splits[0]].items()]

    def _tile(self, evaluation: Mapping[str, Any], split: str, name: str, values: Any) -> Tile:
        metric = next(iter(values)) if isinstance(values, Mapping) else None
        figure = figures.figure(evaluation, split, name, metric)
        simple = self._json("metrics/data.json").get("simple_baselines", {}).get(name, {})
        below = {model.replace("_", " "): scores[metric] for model, scores in simple.items() if metric in scores}
        lines = [f"{model}: {score:.3f}" for model, score in below.items()]
        if metric is None and "overall_tasks" in evaluation:
            lines.append(f"of {', '.join(evaluation['overall_tasks'])}")
        title = f"{name} {metric}" if metric else name.replace("_", ", ")
        return Tile(title, figure._replace(mark=next(iter(below.values()), None)), lines)

    def _json(self, path: str) -> Any:
        return self.files.json(path) if self.files.exists(path) else {}

    def _csv(self, path: str, **options: Any) -> pd.DataFrame:
        return pd.read_csv(io.BytesIO(self.files.read(path)), **options)

    # The tables of each section, of the content of its file where that is JSON

    def _metrics(self, content: Any) -> list[Table]:
        return [Table("Metrics", figures.metrics(content))]

    def _calibration(self, content: Any) -> list[Table]:
        return [Table("By task", figures.records(content, "task"))]

    def _slices(self, content: Any) -> list[Table]:
        return [Table("By slice", figures.slices(content, self._json("metrics/evaluation.json")))]

    def _robustness(self, content: Any) -> list[Table]:
        return [Table("By change", figures.robustness(content))]

    def _challenges(self, content: Any) -> list[Table]:
        return [Table("By file", figures.challenges(content))] if content else []

    def _errors(self, content: Any) -> list[Table]:
        tasks = self.files.tasks()
        return [Table(name, _worst_rows(tasks[name], rows)) for name, rows in content.items()]

    def _suspects(self, _: Any) -> list[Table]:
        words = dict.fromkeys(("id", "task", "text", "text_a", "text_b"), str)
        frame = self._csv("predictions/analysis/suspects.csv", dtype=words, keep_default_na=False, na_values=[""])
        texts = [name for name in frame if name.startswith("text")]
        cells = [Texts([text for text in row if isinstance(text, str)]) for row in frame[texts].values.tolist()]
        frame = frame.drop(columns=texts).astype(object)
        frame.insert(0, "text", pd.Series(cells, dtype=object, index=frame.index))
        return [Table(str(task), rows.drop(columns="task")) for task, rows in frame.groupby("task", sort=False)]

    def _pictures(self, _: Any) -> list[Table | Picture]:
        parts: list[Table | Picture] = []
        for path in self.files.files("plots/confusion"):
            frame = self._csv(path, dtype=str, keep_default_na=False)
            counts = pd.crosstab(frame["gold"], frame["predicted"]).add_prefix("predicted ")
            parts.append(Table(f"Confusion, {Path(path).stem}", counts.reset_index()))
        paths = [path for path in self.files.files("plots") if path.endswith(".png")]
        return parts + [Picture(Path(path).stem.replace("_", " "), self.files.read(path)) for path in paths]

    def _settings(self, _: Any) -> list[Table]:
        every = Table("All settings", pd.DataFrame(self.settings.items(), columns=["param", "value"]), folded=True)
        rows = [[name, *values] for name, values in (self.changed or {}).items()]
        changed = Table("Changed", pd.DataFrame(rows, columns=["param", "here", "last commit"]))
        return [changed, every] if rows else [every]

    def _data(self, content: Any) -> list[Table]:
        parts = {f"{task} {split}": facts for task, own in content["tasks"].items() for split, facts in own.items()}
        rows = pd.json_normalize([{"split": name, **facts} for name, facts in parts.items()], sep=" ").astype(object)
        rows = rows.loc[:, ~rows.columns.str.startswith("labels ")].rename(columns=lambda name: name.replace("_", " "))
        tables = [Table("Rows", rows)]
        for task, splits in content["tasks"].items():
            labels = pd.DataFrame({split: facts["labels"] for split, facts in splits.items() if "labels" in facts})
            tables.append(Table(f"Labels of {task}", _with_shares(labels), folded=True))
        reasons = [
            [task, reason, str(count)]
            for kind in ("rejects", "extra_left_out")
            for task, counts in content.get(kind, {}).items()
            for reason, count in _flat(counts).items()
            if reason != "total" and count
        ]
        if reasons:
            tables.append(Table("Rows that could not be used", pd.DataFrame(reasons, columns=["task", "why", "rows"])))
        simple = [
            [task, model.replace("_", " "), metric, Figure(value)]
            for task, models in content.get("simple_baselines", {}).items()
            for model, values in models.items()
            for metric, value in values.items()
        ]
        columns = ["task", "model", "metric", "value"]
        return [*tables, Table("Simple baselines on dev", pd.DataFrame(simple, columns=columns))]

    def _training(self, _: Any) -> list[Table]:
        best = self._json("metrics/evaluation.json").get("best_epoch", {})
        tables = []
        for path in (path for path in self.files.files("plots/history") if path.endswith(".csv")):
            member = Path(path).stem
            chosen = f", epoch {best[member]} was kept" if member in best else ""
            frame = self._csv(path).rename(columns=lambda name: name.replace("_", " "))
            tables.append(Table(f"Member {member}{chosen}", frame, folded=True))
        return tables

    def _timings(self, content: Any) -> list[Table]:
        return [Table("By stage", figures.records(content, "stage"))]


SECTIONS = (  # anchor, title, the file that it needs, and the stage that writes that
    ("metrics", "Metrics", "metrics/evaluation.json", "evaluate"),
    ("comparison", "Comparison with a baseline", "", ""),
    ("calibration", "Calibration", "metrics/calibration.json", "evaluate"),
    ("slices", "Slices", "metrics/slices.json", "analyze"),
    ("robustness", "Robustness", "metrics/robustness.json", "analyze"),
    ("challenges", "Challenge files", "metrics/challenges.json", "analyze"),
    ("errors", "Worst rows", "predictions/analysis/errors.json", "analyze"),
    ("suspects", "Suspect labels", "predictions/analysis/suspects.csv", "analyze"),
    ("pictures", "Pictures", "plots/pictures", "evaluate"),
    ("settings", "Settings", "", ""),
    ("data", "Data", "metrics/data.json", "split"),
    ("training", "Training", "plots/history", "finetune"),
    ("timings", "Timings", "metrics/timing.json", "evaluate"),
)


def _worst_rows(task: Task, rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    wrong = "confidence" if task.target.discrete else "error"
    cells = [
        [
            Texts(row["texts"], [_neighbour(one, task) for one in row["neighbours"]]),
            label_text(row["label"], task),
            label_text(row["prediction"], task),
            row[wrong],
            _word_change(row["change"], task),
            str(row["id"]),
        ]
        for row in rows
    ]
    return pd.DataFrame(cells, columns=["text", "label", "prediction", wrong, "one word changed", "id"])


def label_text(value: float | None, task: Task) -> str:
    """Return a label or prediction in words: the name or number of a class, a score with two decimals."""
    if value is None:
        return "-"
    return task.target.name_of(value) if task.target.discrete else f"{value:.2f}"


def _neighbour(one: Mapping[str, Any], task: Task) -> str:
    return f"{' / '.join(one['texts'])} (label {label_text(one['label'], task)}, similarity {one['similarity']:.2f})"


def _word_change(change: Mapping[str, Any] | None, task: Task) -> str:
    if not change:
        return "-"
    edit = f"{change['from']} left out" if change["to"] is None else f"{change['from']} → {change['to']}"
    ends = []
    for when in ("before", "after"):
        confidence = change.get(f"confidence_{when}")
        ends.append(label_text(change[when], task) + ("" if confidence is None else f" ({confidence:.2f})"))
    return f"{edit}: {' → '.join(ends)}"


def _with_shares(labels: pd.DataFrame) -> pd.DataFrame:
    """Return counts with their share of the split; statistics of scores, which are no counts, as they are."""
    if "mean" not in labels.index:
        labels = labels.fillna(0)
        labels = labels.apply(lambda column: [f"{count:,.0f} ({count / column.sum():.0%})" for count in column])
    return labels.rename_axis("label").reset_index().astype(object)


def _flat(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested mappings as one, with dotted names."""
    return pd.json_normalize(dict(content)).iloc[0].to_dict() if content else {}


def _changed_text(changed: Mapping[str, tuple[str, str]]) -> str:
    if not changed:
        return "All settings are those of the last commit."
    some = ", ".join(f"{name} = {here}" for name, (here, _) in list(changed.items())[:NAMED])
    return f"Changed settings: {some}{f' and {len(changed) - NAMED} more' if len(changed) > NAMED else ''}."


def render_page(
    title: str, subtitle: str, notes: Sequence[str], tiles: Sequence[Tile], sections: Sequence[Section]
) -> str:
    """Return the page as HTML.

    Args:
        title: the title of the page and of the browser's tab.
        subtitle: stands beside the title.
        notes: short lines below it.
        tiles: headline figures.
        sections: the parts of the page, in order.
    """
    from markupsafe import Markup

    here = Path(__file__).parent
    style, script = ((here / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii") for text in (style, script)]
    environment = figures.environment()
    environment.filters |= {"shown": shown, "flat": _flat}
    environment.filters["at"] = lambda value: round(WIDTH * min(max(value, 0.0), 1.0), 1)
    page = environment.get_template("report.html").render(
        title=title,
        subtitle=subtitle,
        notes=notes,
        tiles=tiles,
        sections=sections,
        first=FIRST,
        most=MOST,
        width=WIDTH,
        policy=f"default-src 'none'; style-src 'sha256-{digests[0]}'; script-src 'sha256-{digests[1]}'; "
        "img-src data:; base-uri 'none'; form-action 'none'",
        style=Markup(style),
        script=Markup(script),
    )
    return page.strip() + "\n"
