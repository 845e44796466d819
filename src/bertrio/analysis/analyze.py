"""The stage `analyze`: error analysis of a finished run, and its model card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from bertrio.analysis.card import write_card
from bertrio.analysis.challenges import write_challenges
from bertrio.analysis.labels import suspects
from bertrio.analysis.models import load_models
from bertrio.analysis.perturbations import robustness
from bertrio.analysis.slices import Facts, as_json, measure_slices, slice_metric
from bertrio.analysis.words import NearWords, count_words
from bertrio.analysis.worst_rows import describe_worst, row_error
from bertrio.config import Params, build_tasks
from bertrio.config.groups import AnalyzeParams
from bertrio.core.console import progress, say
from bertrio.core.errors import UserError
from bertrio.core.files import write_csv, write_json
from bertrio.core.tasks import Task
from bertrio.data.table import read_table
from bertrio.evaluation.predictions import Scored, check_tasks, read_predictions
from bertrio.inference.trained_model import TrainedModel

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
    """Write the error analysis of the ensemble's dev predictions, the robustness of its models, and the model card.

    Files in `predictions`/analysis: errors.json (`{task: rows}`, see `describe_worst`) and suspects.csv (columns
    `task`, `id`, `label`, texts, and those of `suspects`). In `metrics`: slices.json (see `as_json`), robustness.json
    (see `robustness`) and challenges.json (see `write_challenges`). In `plots`/slices: a CSV file for each task.
    Errors, suspects and slices leave out rows without a label and dev rows that the ensemble was chosen on.

    Args:
        params: the base params.
        splits: folder of the data.
        models: folder with ensemble/ and members/<name>/.
        predictions: folder with ensemble.parquet.
        metrics: folder with the metrics of earlier stages.
        plots: folder of the plots.
        card: path of the model card.

    Raises:
        UserError: if a file is missing or damaged, or predictions and data have different rows.
    """
    predictions, metrics, plots = Path(predictions), Path(metrics), Path(plots)
    tasks = build_tasks(params)
    frame = read_predictions(predictions / "ensemble.parquet")
    check_tasks(frame, tasks)
    by_task = load_models(params, tasks, models)
    data = {name: _load_rows(task, frame, Path(splits) / name) for name, task in tasks.items()}
    errors, slices, robustness_by_task = {}, {}, {}
    with progress("analyze", total=len(tasks)) as bar:
        for name, rows in data.items():
            say(f"analyze: {name}, {len(rows.table):,} labelled rows of dev")
            errors[name] = _worst(by_task[name], tasks[name], rows, params.analyze)
            slices[name] = measure_slices(Facts(tasks[name], rows.table, rows.train), rows.scored)
            by_perturbation = robustness(by_task[name], tasks[name], _sample(rows.dev, params.analyze.rows))
            robustness_by_task[name] = {"model": by_task[name].name, **by_perturbation}
            bar.advance(note=name)
    write_json(predictions / "analysis" / "errors.json", errors)
    write_csv(_suspects(tasks, data), predictions / "analysis" / "suspects.csv", quoted=True)
    _write_slices(slices, tasks, metrics, plots)
    write_json(metrics / "robustness.json", robustness_by_task)
    labelled = {name: rows.table for name, rows in data.items()}
    folder = predictions / "analysis" / "challenges"
    write_challenges(by_task, tasks, params.evaluate.challenges, labelled, metrics / "challenges.json", folder)
    write_card(params, tasks, metrics=metrics, path=card)


class _Rows(NamedTuple):
    """The rows of one task.

    Args:
        dev: all rows of dev.
        table: labelled dev rows that the ensemble was not chosen on, with `prediction` and `row_error`.
        scored: labels and predictions of `table`.
        train: the training rows.
    """

    dev: pd.DataFrame
    table: pd.DataFrame
    scored: Scored
    train: pd.DataFrame


def _load_rows(task: Task, frame: pd.DataFrame, folder: Path) -> _Rows:
    """Return the rows of a task, with predictions joined to dev."""
    dev, train = (read_table(folder / f"{split}.parquet") for split in ("dev", "train"))
    predicted = frame[(frame["task"] == task.name) & frame["split"].isin(["dev", "selection"])]
    columns = predicted[["id", "split", "prediction", "probabilities", "score"]]
    joined = dev.merge(columns, on="id", how="left", validate="one_to_one")
    if len(predicted) != len(dev) or joined["split"].isna().any():
        raise UserError(
            f"{folder / 'dev.parquet'}: predictions/ensemble.parquet has predictions for {len(predicted)} rows of dev "
            f"of task {task.name}, expected one for each of these {len(dev)}; run dvc repro, or the stages in order"
        )
    table = joined[(joined["split"] == "dev") & joined["label"].notna()].reset_index(drop=True)
    scored = Scored.from_rows(table, task)
    table = table.drop(columns=["probabilities", "score"]).assign(row_error=row_error(scored, task))
    return _Rows(dev, table, scored, train[train["label"].notna()])


def _worst(model: TrainedModel, task: Task, rows: _Rows, options: AnalyzeParams) -> list[dict[str, Any]]:
    near = NearWords(count_words(rows.train, task.text_columns), model.tokenizer, model.word_vectors())
    worst = rows.table[rows.table["row_error"] > 0].nlargest(options.worst, "row_error")
    return describe_worst(model, task, worst, _sample(rows.train, options.rows), near)


def _sample(frame: pd.DataFrame, limit: int) -> pd.DataFrame:
    """Return at most `limit` of the rows, sampled with a fixed seed, in their original order."""
    if len(frame) <= limit:
        return frame
    return frame.iloc[np.sort(np.random.default_rng(0).choice(len(frame), limit, replace=False))]


def _suspects(tasks: Mapping[str, Task], data: Mapping[str, _Rows]) -> pd.DataFrame:
    parts = []
    for name, task in tasks.items():
        suspect_rows = suspects(data[name].scored, task)
        rows = data[name].table.iloc[suspect_rows["row"].to_numpy(int)].reset_index(drop=True)
        rows = rows.rename(columns={"text_a": "text"}).assign(task=name, doubt=suspect_rows["doubt"].round(4))
        parts.append(rows.assign(suggested=suspect_rows["suggested"]))
    return pd.concat(parts, ignore_index=True).reindex(columns=SUSPECT_COLUMNS)


def _write_slices(slices: Mapping[str, pd.DataFrame], tasks: Mapping[str, Task], metrics: Path, plots: Path) -> None:
    metric = {name: slice_metric(tasks[name]) for name, table in slices.items() if len(table)}
    write_json(metrics / "slices.json", {name: as_json(slices[name], metric[name]) for name in metric})
    (plots / "slices").mkdir(parents=True, exist_ok=True)
    for name in metric:
        write_csv(slices[name].round(6), plots / "slices" / f"{name}.csv")
