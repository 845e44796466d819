"""The sections of the report: what each file of a run says, as tables, notes and pictures."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from bertrio.analysis.figures import model_caption
from bertrio.core.tasks import Task
from bertrio.evaluation.metrics import LOWER_IS_BETTER, METRICS
from bertrio.experiments.cells import (
    ABSENT,
    Interval,
    answer,
    between,
    measured,
    number,
    plain,
    records,
    said,
    scale,
)
from bertrio.experiments.page import Bar, Block, Cell, Column, Fold, Note, Picture, Table
from bertrio.experiments.recipes.params import ABSENT as NOT_THERE
from bertrio.experiments.recipes.params import is_number, leaves
from bertrio.experiments.revision import Revision

MOST = 5000  # rows of one table; a browser opens so many in a second
WITHOUT_LINE = ("mae", "rmse")  # metrics that have no end at 1
Built = tuple[str, list[Block]]  # an introduction, and what follows it


@dataclass(frozen=True)
class Run:
    """What the page is about: a revision, what it is compared with, and the settings of the last commit, if any."""

    revision: Revision
    baseline: Revision | None
    committed: Mapping[str, Any] | None

    def json(self, path: str, default: Any = None) -> Any:
        """What a JSON file of the revision holds; `default`, if there is one, where there is no such file."""
        return default if default is not None and not self.revision.exists(path) else self.revision.json(path)

    @cached_property
    def tasks(self) -> dict[str, Task]:
        """The tasks, by name."""
        return self.revision.tasks()


def missing(path: str, stage: str) -> Note:
    """Says where a file comes from that is not there."""
    return Note(f"{path} is not there. The stage {stage} writes it: run dvc repro {stage}.")


def metrics(run: Run) -> Built:
    """Every metric of every labelled split, by task."""
    found = run.json("metrics/evaluation.json")
    splits = [split for split in ("dev", "selection", "test") if split in found]
    tasks = dict.fromkeys(name for split in splits for name, of in found[split].items() if isinstance(of, dict))
    blocks: list[Block] = []
    overall = [name for name in ("overall_mean", "overall_normalized") if any(name in found[split] for split in splits)]
    if overall:
        rows = [[Cell(name), *[_measured(found, split, name, None) for split in splits]] for name in overall]
        columns = [Column("score", "word"), *[Column(split, "measure") for split in splits]]
        covered = ", ".join(found.get("overall_tasks", tasks))
        blocks.append(Table("Overall", columns, rows, f"Means of the first metric of {covered}."))
    for task in tasks:
        names = dict.fromkeys(metric for split in splits for metric in found[split].get(task, {}))
        rows = [[Cell(metric_name(name)), *[_measured(found, split, task, name) for split in splits]] for name in names]
        blocks.append(Table(task, [Column("metric", "word"), *[Column(split, "measure") for split in splits]], rows))
    best = ", ".join(f"{epoch} of {member}" for member, epoch in found.get("best_epoch", {}).items())
    unlabelled = [split for split in ("dev", "test") if split not in found]
    intro = [
        "Brackets hold 95 % bootstrap intervals over rows: what other rows of the same kind might have given. They say "
        "nothing of another seed. Lines run from 0 to 1.",
        f"Epochs that were kept: {best}." if best else "",
        f"There are no labels for {' and '.join(unlabelled)}." if unlabelled else "",
    ]
    return " ".join(filter(None, intro)), blocks


def _measured(found: Mapping[str, Any], split: str, task: str, metric: str | None) -> Cell:
    value = found[split].get(task)
    value = value.get(metric) if metric and value is not None else value
    interval = interval_of(found, split, task, metric)
    drawn = value is not None and metric not in WITHOUT_LINE
    return measured(value, interval, Bar(value, *(interval or (None, None))) if drawn else None)


def interval_of(found: Mapping[str, Any], split: str, task: str, metric: str | None) -> Interval:
    """The interval of a metric of a task, or of an overall score (`metric` None); None if there is none."""
    value = found.get("intervals", {}).get(split, {}).get(task)
    return value.get(metric) if metric and value is not None else value


def metric_name(name: str) -> str:
    """How the page calls a metric."""
    return f"{name} (lower is better)" if name in LOWER_IS_BETTER else name


def calibration(run: Run) -> Built:
    """How honest the probabilities are."""
    intro = (
        "How far probabilities can be taken at their word, as they are and after temperature scaling (scaled): a "
        "temperature above 1 means that the model is too sure of itself. It is fitted on one half of dev, and all "
        "figures are of the other. Lower is better."
    )
    return intro, [records("By task", "task", run.json("metrics/calibration.json"))]


def slices(run: Run) -> Built:
    """The metric of parts of dev."""
    blocks: list[Block] = []
    whole = run.json("metrics/evaluation.json", {}).get("dev", {})
    for task, families in run.json("metrics/slices.json").items():
        lines = [(family, name, of) for family, named in families.items() for name, of in named.items()]
        metric = next((key for *_, of in lines for key in of if key not in ("n", "low", "high")), "score")
        value = [of[key] for *_, of in lines for key in ("low", metric, "high") if of.get(key) is not None]
        least, most = scale(value)
        rows = [
            [
                Cell(family.replace("_", " ")), Cell(name.replace("_", " ")), number(of["n"]),
                _slice(of, metric, whole.get(task, {}).get(metric), least, most),
            ]
            for family, name, of in lines
        ]  # fmt: skip
        columns = [Column("family", "word"), Column("slice", "word"), Column("rows"), Column(metric, "measure")]
        blocks.append(Table(task, columns, rows, between(least, most)))
    return "Parts of dev, with 95 % intervals. The mark on each line is the figure of the whole.", blocks


def _slice(of: Mapping[str, Any], metric: str, mark: float | None, least: float, most: float) -> Cell:
    ends = None if of.get("low") is None else (of["low"], of["high"])
    value = of.get(metric)
    return measured(value, ends, None if value is None else Bar(value, *(ends or (None, None)), mark, least, most))


def robustness(run: Run) -> Built:
    """How often changes that should not matter change predictions."""
    found = run.json("metrics/robustness.json")
    models = _models(run)
    found = {task: {name: of for name, of in named.items() if name != "model"} for task, named in found.items()}
    least, most = scale([0.0, *[of["high"] for named in found.values() for of in named.values() if of.get("high")]])
    columns = [Column("perturbation", "word"), Column("rows"), Column("flips", "measure"), Column("mean shift")]
    blocks: list[Block] = [
        Table(
            task,
            columns,
            [
                [
                    Cell(name.replace("_", " ")),
                    number(of["n"]),
                    _slice(of, "flips", None, least, most),
                    number(of["shift"]),
                ]
                for name, of in named.items()
            ],
        )
        for task, named in found.items()
    ]
    intro = (
        "How often a change that should not matter changes the prediction. Flips: of the rows that the change applies "
        "to, the share whose class changes, or whose score moves by more than a tenth of its range, with 95 % "
        "intervals. Mean shift: of the probability of the predicted class, or of the score. Lower is better. "
        f"{between(least, most)} {_whose(run, models)}"
    )
    return intro.strip(), blocks


def _models(run: Run) -> dict[str, str]:
    """By task, the model that was asked of changed texts; runs of before that was written down have none."""
    found = run.json("metrics/robustness.json", {})
    return {task: named["model"] for task, named in found.items() if "model" in named}


def _whose(run: Run, models: Mapping[str, str]) -> str:
    """See `model_caption`."""
    return model_caption(models, list((run.revision.settings().get("ensemble") or {}).get("members") or ()))


def challenges(run: Run) -> Built:
    """Labelled files beside dev."""
    found = run.json("metrics/challenges.json")
    if not found:
        return "", [
            Note("None are set: evaluate.challenges in params.yaml names labelled files to measure beside dev.")
        ]
    rows = []
    for name, of in found.items():
        for metric in (key for key in of if key in METRICS):
            ends = of.get("intervals", {}).get(metric)
            bar = None if metric in WITHOUT_LINE or of[metric] is None else Bar(of[metric], *(ends or (None, None)))
            rows.append(
                [
                    Cell(name),
                    Cell(of["task"]),
                    number(of["n"]),
                    Cell(metric_name(metric)),
                    measured(of[metric], ends, bar),
                    measured(of.get("dev", {}).get(metric)),
                ]
            )
    columns = [
        Column(title, "number" if title in ("rows", "value", "dev") else "word")
        for title in ("file", "task", "rows", "metric", "value", "dev")
    ]
    models = {of["task"]: of["model"] for of in found.values() if "model" in of}
    intro = (
        "Labelled files of your own, measured as dev is, and the same model's figures for dev. Lines run from 0 to 1. "
        f"{_whose(run, models)}"
    )
    return intro.strip(), [Table("By file", columns, rows)]


def errors(run: Run) -> Built:
    """The rows that the model gets most wrong."""
    found = run.json("predictions/analysis/errors.json")
    intro = (
        "The rows of dev that the model gets most wrong: confident and wrong, or furthest from the score. With each "
        "come the training rows that lie nearest to it, and the change of one word that moves the prediction most."
    )
    asked = _whose(run, _models(run))
    if asked:
        intro = f"{intro} Predictions are the ensemble's; neighbours and changes of words are not. {asked}"
    return intro, [_worst(run.tasks[task], rows) for task, rows in found.items()]


def _worst(task: Task, rows: Sequence[Mapping[str, Any]]) -> Table:
    wrong = "confidence" if task.target.discrete else "error"
    shown = [
        [
            texts_of(row["texts"], [_neighbour(one, task) for one in row["neighbours"]]),
            answer(row["label"], task),
            answer(row["prediction"], task),
            number(row[wrong]),
            Cell(_word_change(row["change"], task)),
            Cell(str(row["id"])),
        ]
        for row in rows[:MOST]
    ]
    columns = [
        Column("text", "text"),
        *map(Column, ("label", "prediction", wrong)),
        Column("one word changed", "phrase"),
    ]
    return Table(task.name, [*columns, Column("id", "word")], shown, cut(len(rows)), search=True)


def texts_of(texts: Sequence[str], neighbours: Sequence[str] = ()) -> Cell:
    """A row's texts, one below the other, and the training rows nearest to it, folded."""
    return Cell(texts[0], lines=texts[1:], fold="Nearest training rows", folded=neighbours)


def _neighbour(one: Mapping[str, Any], task: Task) -> str:
    return f"{' / '.join(one['texts'])} (label {said(one['label'], task)}, similarity {one['similarity']:.2f})"


def _word_change(change: Mapping[str, Any] | None, task: Task) -> str:
    if not change:
        return ABSENT
    edit = f"{change['from']} left out" if change["to"] is None else f"{change['from']} → {change['to']}"
    ends = []
    for when in ("before", "after"):
        sure = change.get(f"confidence_{when}")
        ends.append(said(change[when], task) + ("" if sure is None else f" ({sure:.2f})"))
    return f"{edit}: {' → '.join(ends)}"


def suspects(run: Run) -> Built:
    """Rows whose label looks wrong: the CSV as it is, a table a task."""
    header, rows = _read_csv(run.revision.read("predictions/analysis/suspects.csv"))
    groups: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        named = dict(zip(header, row))
        groups.setdefault(named.pop("task", "All tasks"), []).append(named)
    intro = "Rows whose label looks wrong, by what models say of them that were not trained on them."
    return intro, [_of_text(task, own) for task, own in groups.items()] or [Note("None were found.")]


def _of_text(title: str, rows: Sequence[Mapping[str, str]]) -> Table:
    """A table of what a CSV holds, with texts first; columns that are empty throughout are left out."""
    kinds = {name: _kind(name, [row[name] for row in rows]) for name in rows[0] if any(row[name] for row in rows)}
    names = sorted(kinds, key=lambda name: kinds[name] != "text")
    columns = [Column(name.replace("_", " "), kinds[name]) for name in names]
    cells = [[_of_csv(row[name], kinds[name]) for name in names] for row in rows[:MOST]]
    return Table(title, columns, cells, cut(len(rows)), search=True)


def _kind(name: str, values: Sequence[str]) -> str:
    if name.startswith("text"):
        return "text"
    return "number" if name != "id" and all(is_number(value) for value in values if value) else "word"


def _of_csv(value: str, kind: str) -> Cell:
    return number(float(value)) if kind == "number" and value else Cell(value)


def pictures(run: Run) -> Built:
    """Confusion tables, and every PNG."""
    paths = [path for path in run.revision.files("plots") if path.endswith(".png")]
    names = [path.removeprefix("plots/").removeprefix("pictures/").removesuffix(".png") for path in paths]
    titles = [re.sub("[-/]", ", ", name, count=1).replace("_", " ") for name in names]
    tables = [_confusion(run, path) for path in run.revision.files("plots/confusion")]
    return "", [*tables, *[Picture(title, run.revision.read(path)) for title, path in zip(titles, paths)]]


def _confusion(run: Run, path: str) -> Table:
    """Counts of the labelled dev rows, a row a gold class and a column a predicted class."""
    frame = pd.read_csv(io.BytesIO(run.revision.read(path)), dtype=str, keep_default_na=False)
    counts = pd.crosstab(frame["gold"], frame["predicted"])
    rows = [
        [Cell(str(gold)), *[number(int(count)) for count in line]] for gold, line in zip(counts.index, counts.values)
    ]
    columns = [Column("gold", "word"), *[Column(f"predicted {name}") for name in counts.columns]]
    return Table(f"Confusion, {Path(path).stem}", columns, rows)


def settings(run: Run) -> Built:
    """What differs from the last commit, and all settings."""
    changed = changed_settings(run)
    blocks: list[Block] = []
    if changed is None:
        blocks.append(Note("There is no commit to compare them with."))
    elif changed:
        columns = [Column("param", "word"), Column("here", "word"), Column("last commit", "word")]
        rows = [[Cell(name), Cell(here), Cell(there)] for name, (here, there) in changed.items()]
        blocks.append(Fold("Changed, against params.yaml of the last commit", [Table("Changed", columns, rows)], True))
    else:
        blocks.append(Note("All are those of params.yaml in the last commit (HEAD)."))
    rows = [[Cell(name), Cell(value)] for name, value in leaves(run.revision.settings()).items()]
    blocks.append(Fold("All settings", [Table("All", [Column("param", "word"), Column("value", "word")], rows)]))
    return "", blocks


def changed_settings(run: Run) -> dict[str, tuple[str, str]] | None:
    """By param, its value here and in the last commit's params.yaml where they differ; None without a commit."""
    if run.committed is None:
        return None
    here, there = leaves(run.revision.settings()), leaves(run.committed)
    pairs = {name: (here.get(name, NOT_THERE), there.get(name, NOT_THERE)) for name in {**here, **there}}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def data(run: Run) -> Built:
    """Where the rows come from, how many there are, their labels and lengths."""
    found = run.json("metrics/data.json")
    origin = "; ".join(f"{name}: {value}" for name, value in leaves(found.get("origin") or {}).items())
    parts = {f"{task} {split}": of for task, splits in found["tasks"].items() for split, of in splits.items()}
    plain_facts = {
        name: {key: value for key, value in of.items() if not isinstance(value, dict)} for name, of in parts.items()
    }
    lengths = {
        name: {f"tokens {key}": value for key, value in of.get("tokens", {}).items()} for name, of in parts.items()
    }
    blocks: list[Block] = [records("Rows", "split", {name: plain_facts[name] | lengths[name] for name in parts})]
    for task, splits in found["tasks"].items():
        labels = {split: of["labels"] for split, of in splits.items() if "labels" in of}
        blocks.append(Fold(f"Labels of {task}", [_labels(task, labels)]))
    rejects = {task: of for task, of in found.get("rejects", {}).items() if of.get("total")}
    left_out = {task: of for task, of in found.get("more_left_out", {}).items() if of}
    if rejects or left_out:
        rows = [[Cell(task), number(of["total"]), Cell(_reasons(of))] for task, of in rejects.items()]
        rows += [[Cell(task), number(sum(of.values())), Cell(_left_out(of))] for task, of in left_out.items()]
        columns = [Column("task", "word"), Column("rows"), Column("why", "text")]
        blocks.append(Table("Rows that could not be used", columns, rows))
    simple = found.get("simple_baselines", {})
    rows = [
        [Cell(task), Cell(model.replace("_", " ")), Cell(metric), measured(value)]
        for task, models in simple.items() for model, of in models.items() for metric, value in of.items()
    ]  # fmt: skip
    titles = ("task", "model", "metric")
    blocks.append(
        Table("Simple baselines on dev", [*[Column(title, "word") for title in titles], Column("value")], rows)
    )
    return f"Source: {found.get('source', 'unknown')}{f' ({origin})' if origin else ''}.", blocks


def _labels(task: str, labels: Mapping[str, Mapping[str, float]]) -> Table:
    """Of classes, how many rows have each, and which share; of scores, mean, deviation and quartiles."""
    values = dict.fromkeys(value for of in labels.values() for value in of)
    counted = all(isinstance(count, int) for of in labels.values() for count in of.values())
    rows = []
    for value in values:
        cells = [
            _share(of.get(value, 0), sum(of.values())) if counted else number(of.get(value)) for of in labels.values()
        ]
        rows.append([Cell(value), *cells])
    return Table(f"Labels of {task}", [Column("label" if counted else "", "word"), *map(Column, labels)], rows)


def _share(count: int, total: int) -> Cell:
    share = count / total if total else 0.0
    return Cell(f"{plain(count)} ({share:.0%})", key=count, bar=Bar(share))


def _reasons(of: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in leaves(dict(of)).items() if name != "total")


def _left_out(of: Mapping[str, int]) -> str:
    return "of data.more: " + ", ".join(f"{reason}: {count}" for reason, count in of.items())


def training(run: Run) -> Built:
    """The learning curves as tables."""
    best = run.json("metrics/evaluation.json", {}).get("best_epoch", {})
    blocks: list[Block] = []
    for path in (path for path in run.revision.files("plots/history") if path.endswith(".csv")):
        header, rows = _read_csv(run.revision.read(path))
        member = Path(path).stem
        cells = [[number(float(value)) if is_number(value) else Cell(value) for value in row] for row in rows]
        table = Table(f"History of {member}", [Column(title.replace("_", " ")) for title in header], cells)
        kept = f", epoch {best[member]} was kept" if member in best else ""
        blocks.append(Fold(f"Member {member}{kept}", [table]))
    return "One row an epoch, for each member of the ensemble.", blocks


def timings(run: Run) -> Built:
    """What each stage cost."""
    found = run.json("metrics/timing.json")
    total = plain(round(sum(of.get("seconds", 0) for of in found.values())))
    return f"What each stage took on the machine that ran it: {total} seconds in all.", [
        records("By stage", "stage", found)
    ]


def _read_csv(content: bytes) -> tuple[list[str], list[list[str]]]:
    """Header and rows, each row as wide as the header."""
    lines = list(csv.reader(io.StringIO(content.decode("utf-8"), newline=""))) or [[]]
    return lines[0], [(line + [""] * len(lines[0]))[: len(lines[0])] for line in lines[1:]]


def cut(count: int, most: int = MOST) -> str:
    """Says that a table does not have all `count` rows, if it does not."""
    return f"The first {plain(most)} of {plain(count)} rows." if count > most else ""
