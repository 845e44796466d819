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
from typing import Any, NamedTuple, Protocol

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
    """A part of the page; `name` is its anchor."""

    name: str
    title: str
    intro: str = ""
    notes: Sequence[str] = ()
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()


class Tile(NamedTuple):
    """A headline figure."""

    title: str
    figure: Figure
    lines: Sequence[str] = ()


class RunFiles(Protocol):
    """Files of a run, wherever they are stored."""

    def exists(self, path: str) -> bool: ...
    def files(self, folder: str) -> list[str]: ...
    def read(self, path: str) -> bytes: ...
    def json(self, path: str) -> Any: ...
    def tasks(self) -> dict[str, Task]: ...


@dataclass(frozen=True)
class Report:
    """The sections of a run's report.

    Args:
        files: the files of the run.
        settings: all params by dotted name, as text.
        changed: those that differ from the last commit, here and there; None without a commit.
        members: the names of the ensemble's members.
        comparison: the section that compares the run with a baseline.
    """

    files: RunFiles
    settings: Mapping[str, str]
    changed: Mapping[str, tuple[str, str]] | None
    members: Sequence[str]
    comparison: Section = field(default_factory=lambda: Section("comparison", "Comparison with a baseline"))

    def sections(self) -> list[Section]:
        """Return all sections; one whose file is missing says which stage writes it."""
        sections = []
        for name, title, path, stage in SECTIONS:
            if path and not self.files.exists(path):
                note = f"{path} is not there. The stage {stage} writes it: run dvc repro {stage}."
                sections.append(Section(name, title, notes=[note]))
            elif name == "comparison":
                sections.append(self.comparison)
            else:
                sections.append(Section(name, title, **getattr(self, f"_{name}")()))
        return sections

    def headline(self) -> tuple[list[str], list[Tile]]:
        """Return short lines on what was run, and each task's first metric beside that of the simple baseline."""
        notes = [] if self.changed is None else [_changed_text(self.changed)]
        evaluation = self._json("metrics/evaluation.json")
        splits = figures.splits_of(evaluation)
        if not splits:
            return notes, []
        chosen = how_chosen(evaluation["selected_on"]) if evaluation.get("selected_on") else ""
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

    def _metrics(self) -> dict[str, Any]:
        evaluation = self.files.json("metrics/evaluation.json")
        best = ", ".join(f"{epoch} of {member}" for member, epoch in evaluation.get("best_epoch", {}).items())
        unlabelled = " and ".join(split for split in ("dev", "test") if split not in evaluation)
        intro = (
            "Brackets hold 95 % bootstrap intervals over rows, which do not cover other seeds. Lines run from 0 to 1."
        )
        notes = [f"Epochs that were kept: {best}."] if best else []
        notes += [f"There are no labels for {unlabelled}."] if unlabelled else []
        return {"intro": intro, "notes": notes, "tables": [Table("Metrics", figures.metrics(evaluation))]}

    def _calibration(self) -> dict[str, Any]:
        intro = (
            "How far probabilities can be trusted, as they are and after temperature scaling (scaled): a temperature "
            "above 1 means that the model is overconfident. It is fitted on one half of dev, and all figures are of "
            "the other. Lower is better."
        )
        return {
            "intro": intro,
            "tables": [Table("By task", figures.records(self.files.json("metrics/calibration.json"), "task"))],
        }

    def _slices(self) -> dict[str, Any]:
        frame = figures.slices(self.files.json("metrics/slices.json"), self._json("metrics/evaluation.json"))
        intro = "Parts of dev, with 95 % intervals. The mark on each line is the figure of the whole."
        return {"intro": intro, "tables": [Table("By slice", frame)]}

    def _robustness(self) -> dict[str, Any]:
        intro = (
            "How often a change that should not matter changes the prediction. Flips: of the rows that the change "
            "applies to, the share whose class changes, or whose score moves by more than a tenth of its range, with "
            "95 % intervals. Mean shift: of the probability of the predicted class, or of the score. Lower is better."
        )
        content = self.files.json("metrics/robustness.json")
        return {"intro": f"{intro} {self._asked()}", "tables": [Table("By change", figures.robustness(content))]}

    def _challenges(self) -> dict[str, Any]:
        content = self.files.json("metrics/challenges.json")
        if not content:
            return {"intro": "None are set: evaluate.challenges in params.yaml names labelled files to measure."}
        caption = figures.model_caption(figures.asked_models({}, content), self.members)
        intro = f"Labelled files of your own, measured as dev is, and the same model's figures for dev. {caption}"
        return {"intro": intro, "tables": [Table("By file", figures.challenges(content))]}

    def _errors(self) -> dict[str, Any]:
        intro = (
            "The rows of dev that the model gets most wrong: confident and wrong, or furthest from the score. With "
            "each come the training rows nearest to it, and the change of one word that moves the prediction most."
        )
        if caption := self._asked():
            intro = f"{intro} Predictions are the ensemble's; neighbours and changes of words are not. {caption}"
        tasks, errors = self.files.tasks(), self.files.json("predictions/analysis/errors.json")
        return {
            "intro": intro,
            "tables": [Table(name, _worst_rows(tasks[name], rows)) for name, rows in errors.items()],
        }

    def _asked(self) -> str:
        models = figures.asked_models(self._json("metrics/robustness.json"), {})
        return figures.model_caption(models, self.members)

    def _suspects(self) -> dict[str, Any]:
        content = io.BytesIO(self.files.read("predictions/analysis/suspects.csv"))
        words = dict.fromkeys(("id", "task", "text", "text_a", "text_b"), str)
        frame = pd.read_csv(content, dtype=words, keep_default_na=False, na_values=[""])
        texts = [name for name in frame if name.startswith("text")]
        cells = [Texts([text for text in row if isinstance(text, str)]) for row in frame[texts].values.tolist()]
        frame = frame.drop(columns=texts).astype(object)
        frame.insert(0, "text", pd.Series(cells, dtype=object, index=frame.index))
        tables = [Table(str(task), rows.drop(columns="task")) for task, rows in frame.groupby("task", sort=False)]
        intro = "Rows whose label looks wrong, as judged by models that were not trained on them."
        return {"intro": intro, "notes": [] if tables else ["None were found."], "tables": tables}

    def _pictures(self) -> dict[str, Any]:
        tables = []
        for path in self.files.files("plots/confusion"):
            frame = pd.read_csv(io.BytesIO(self.files.read(path)), dtype=str, keep_default_na=False)
            counts = pd.crosstab(frame["gold"], frame["predicted"]).add_prefix("predicted ")
            tables.append(Table(f"Confusion, {Path(path).stem}", counts.reset_index()))
        paths = [path for path in self.files.files("plots") if path.endswith(".png")]
        pictures = [Picture(Path(path).stem.replace("_", " "), self.files.read(path)) for path in paths]
        return {"tables": tables, "pictures": pictures}

    def _settings(self) -> dict[str, Any]:
        every = Table("All settings", pd.DataFrame(self.settings.items(), columns=["param", "value"]), folded=True)
        if self.changed is None:
            return {"notes": ["There is no commit to compare them with."], "tables": [every]}
        if not self.changed:
            return {"notes": ["All are those of params.yaml in the last commit (HEAD)."], "tables": [every]}
        rows = [[name, *values] for name, values in self.changed.items()]
        return {"tables": [Table("Changed", pd.DataFrame(rows, columns=["param", "here", "last commit"])), every]}

    def _data(self) -> dict[str, Any]:
        content = self.files.json("metrics/data.json")
        parts = {
            f"{task} {split}": {key: value for key, value in facts.items() if not isinstance(value, Mapping)}
            | {f"tokens {key}": value for key, value in facts.get("tokens", {}).items()}
            for task, splits in content["tasks"].items()
            for split, facts in splits.items()
        }
        tables = [Table("Rows", figures.records(parts, "split"))]
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
        tables.append(
            Table("Simple baselines on dev", pd.DataFrame(simple, columns=["task", "model", "metric", "value"]))
        )
        origin = "; ".join(f"{name}: {value}" for name, value in _flat(content.get("origin") or {}).items())
        intro = f"Source: {content.get('source', 'unknown')}{f' ({origin})' if origin else ''}."
        return {"intro": intro, "tables": tables}

    def _training(self) -> dict[str, Any]:
        best = self._json("metrics/evaluation.json").get("best_epoch", {})
        tables = []
        for path in (path for path in self.files.files("plots/history") if path.endswith(".csv")):
            member = Path(path).stem
            chosen = f", epoch {best[member]} was kept" if member in best else ""
            frame = pd.read_csv(io.BytesIO(self.files.read(path))).rename(columns=lambda name: name.replace("_", " "))
            tables.append(Table(f"Member {member}{chosen}", frame, folded=True))
        return {"intro": "One row an epoch, for each member of the ensemble.", "tables": tables}

    def _timings(self) -> dict[str, Any]:
        content = self.files.json("metrics/timing.json")
        total = shown(round(sum(facts.get("seconds", 0) for facts in content.values())))
        intro = f"What each stage took on the machine that ran it: {total} seconds in all."
        return {"intro": intro, "tables": [Table("By stage", figures.records(content, "stage"))]}


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
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    here = Path(__file__).parent
    style, script = ((here / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii") for text in (style, script)]
    environment = Environment(
        loader=FileSystemLoader(here), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["shown"] = shown
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
