"""The stage `analyze`: everything that is said of a finished run beyond its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bertrio.analysis.card import write_card
from bertrio.analysis.challenges import write_challenges
from bertrio.analysis.errors import describe_worst, row_error, worst_rows
from bertrio.analysis.labels import suspects
from bertrio.analysis.perturbations import write_robustness
from bertrio.analysis.scorer import Scorer
from bertrio.analysis.slices import Facts, as_json, measure_slices, slice_metric
from bertrio.analysis.words import NearWords, count_words
from bertrio.config import Params, build_tasks
from bertrio.config.groups import AnalyzeParams
from bertrio.core.console import progress, say
from bertrio.core.errors import UserError
from bertrio.core.files import write_csv, write_json
from bertrio.core.tasks import Task
from bertrio.data.table import read_table
from bertrio.evaluation.plots import slices_picture
from bertrio.evaluation.predictions import Scored, check_tasks, read_predictions

NEIGHBOURS = 3  # training rows shown beside each of the worst rows
WORDS = 5  # near words tried in place of each of its words
SUSPECT_COLUMNS = ["task", "id", "label", "suggested", "doubt", "text", "text_b"]


def analyze(
    params: Params,
    splits: str | Path,
    models: str | Path,
    predictions: str | Path,
    metrics: str | Path,
    plots: str | Path,
    card: str | Path,
) -> None:
    """Writes what is wrong where, of the ensemble's predictions for dev, and how its models take changed texts.

    `predictions`/analysis gets errors.json (`{task: rows}`, see `describe_worst`) and suspects.csv (columns `task`,
    `id`, `label`, and see `suspects`), `metrics` slices.json (see `as_json`), robustness.json (`write_robustness`) and
    challenges.json (`write_challenges`), `plots`/slices a CSV file and a picture of each task's slices, and `card` the
    model card. Rows of dev that the ensemble was chosen on, and rows without a label, are left out of errors, suspects
    and slices.

    Args:
        params: the base params.
        splits: the folder of the data.
        models: a folder that holds ensemble/ and members/<name>/.
        predictions: a folder that holds ensemble.parquet.
        metrics: a folder that holds what the stages before wrote.
        plots: a folder.
        card: the file to write it to.

    Raises:
        UserError: if a file is missing or damaged, or the predictions are of other rows than the data.
    """
    predictions, metrics, plots = Path(predictions), Path(metrics), Path(plots)
    tasks = build_tasks(params)
    frame = read_predictions(predictions / "ensemble.parquet")
    check_tasks(frame, tasks)
    scorer = Scorer.load(params, tasks, models)
    data = {name: _Rows.of(task, frame, Path(splits) / name) for name, task in tasks.items()}
    for name, rows in data.items():
        if rows.table.empty:
            say(f"analyze: dev of {name} has no labelled rows to look for errors in")
    with progress("analyze", total=len(tasks)) as bar:
        parts = {}
        for name, rows in data.items():
            parts[name] = _analyze_task(scorer, tasks[name], rows, params.analyze)
            bar.advance(note=name)
    write_json(predictions / "analysis" / "errors.json", {name: part["errors"] for name, part in parts.items()})
    write_csv(_suspects(tasks, data), predictions / "analysis" / "suspects.csv", quoted=True)
    _write_slices({name: part["slices"] for name, part in parts.items()}, tasks, metrics, plots)
    dev = {name: _drawn(rows.dev, params.analyze.rows) for name, rows in data.items()}
    write_robustness(scorer, tasks, dev, metrics / "robustness.json")
    labelled = {name: rows.table for name, rows in data.items()}
    beside = predictions / "analysis" / "challenges"
    write_challenges(scorer, tasks, params.evaluate.challenges, labelled, metrics / "challenges.json", beside)
    write_card(params, tasks, metrics=metrics, path=card)


class _Rows:
    """The rows of one task: `dev`, all of it; `table`, its labelled rows with `prediction`; `scored`, them; `train`."""

    def __init__(self, task: Task, dev: pd.DataFrame, table: pd.DataFrame, train: pd.DataFrame) -> None:
        self.dev, self.train = dev, train
        self.scored = Scored.of(table)
        bad = row_error(self.scored, task)
        self.table = table.drop(columns=["probabilities"]).assign(row_error=bad)

    @classmethod
    def of(cls, task: Task, frame: pd.DataFrame, folder: Path) -> _Rows:
        """From the prediction table and the folder of the task's splits."""
        dev, train = (read_table(folder / f"{split}.parquet") for split in ("dev", "train"))
        own = frame[(frame["task"] == task.name) & frame["split"].isin(["dev", "selection"])]
        said = own[["id", "split", "prediction", "probabilities"]]
        joined = dev.merge(said, on="id", how="left", validate="one_to_one")
        if len(own) != len(dev) or joined["split"].isna().any():
            raise UserError(
                f"{folder / 'dev.parquet'}: predictions/ensemble.parquet has predictions for {len(own)} rows of dev of "
                f"task {task.name}, expected one for each of these {len(dev)}; run dvc repro, or the stages in order"
            )
        measured = joined[(joined["split"] == "dev") & joined["label"].notna()]
        return cls(task, dev, measured.reset_index(drop=True), train)


def _analyze_task(scorer: Scorer, task: Task, rows: _Rows, options: AnalyzeParams) -> dict[str, Any]:
    """`errors`, the descriptions of the worst rows, and `slices`, their table."""
    counts, model = count_words(rows.train, task.text_columns), scorer.models[task.name]
    near = NearWords(counts, model.tokenizer, model.word_vectors())
    worst = rows.table.iloc[worst_rows(rows.scored, task, options.worst)]
    train = _drawn(rows.train, options.rows)
    described = describe_worst(scorer, task, worst, train, near, NEIGHBOURS, WORDS)
    facts = Facts(task, rows.table, rows.scored.labels, rows.train, counts)
    return {"errors": described, "slices": measure_slices(facts, rows.scored)}


def _drawn(frame: pd.DataFrame, most: int) -> pd.DataFrame:
    """At most so many of the rows, drawn with a fixed seed, in their order."""
    if len(frame) <= most:
        return frame
    return frame.iloc[np.sort(np.random.default_rng(0).choice(len(frame), most, replace=False))]


def _suspects(tasks: Mapping[str, Task], data: Mapping[str, _Rows]) -> pd.DataFrame:
    parts = []
    for name, task in tasks.items():
        found = suspects(data[name].scored, task)
        rows = data[name].table.iloc[found["row"].to_numpy(int)].reset_index(drop=True)
        texts = {ours: rows[theirs] for ours, theirs in zip(("text", "text_b"), task.text_columns)}
        own = {"task": name, "id": rows["id"], "label": rows["label"]}
        parts.append(pd.DataFrame({**own, "suggested": found["suggested"], "doubt": found["doubt"].round(4), **texts}))
    return pd.concat(parts, ignore_index=True).reindex(columns=SUSPECT_COLUMNS)


def _write_slices(slices: Mapping[str, pd.DataFrame], tasks: Mapping[str, Task], metrics: Path, plots: Path) -> None:
    metric = {name: slice_metric(tasks[name]) for name in slices}
    write_json(metrics / "slices.json", {name: as_json(own, metric[name]) for name, own in slices.items() if len(own)})
    (plots / "slices").mkdir(parents=True, exist_ok=True)
    for name, own in slices.items():
        if len(own):
            write_csv(own.round(6), plots / "slices" / f"{name}.csv")
            slices_picture(own, name, plots / "slices" / f"{name}.png", metric[name])
