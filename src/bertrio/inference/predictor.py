"""Prediction as a library call: `Predictor.load("models").predict("qqp", [("a", "b"), ...])`.

It loads the models' folders alone, and predicts as the ensemble of the pipeline's last run.
"""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from pydantic import model_validator

from bertrio.core.errors import UserError, need
from bertrio.core.files import read_json
from bertrio.core.options import FileName, Group
from bertrio.core.runtime import choose
from bertrio.core.tasks import TEXT_COLUMNS, Predicted, Task
from bertrio.data.table import Unusable, clean_text
from bertrio.evaluation.ensembling import RULES, combine_answers, picks_of
from bertrio.inference.trained_model import TrainedModel, Vectors
from bertrio.model.config import CONFIG_FILE, encoder_width

Row = str | tuple[str, str]
DEVICE = re.compile(r"auto|cpu|mps|cuda(:[0-9]+)?")
PRECISIONS = ("auto", "float32", "bf16")
ENSEMBLE = "ensemble.json"
EXPECTED = {1: "a text", 2: "a pair of texts"}
RERUN = "run the finetune and ensemble stages again"


class Prediction(NamedTuple):
    """Prediction for one row.

    Attributes:
        label: the class from 0 on, 0 or 1 for no or yes, or the score within the task's range.
        probabilities: one a class (binary: no, yes), of sum 1; None for scores.
        score: the raw score, which may lie outside of the range; None for classes.
    """

    label: int | float
    probabilities: tuple[float, ...] | None
    score: float | None


class Ensemble(Group):
    """Contents of ensemble.json, which `bertrio.evaluation.ensembling.record_ensemble` writes."""

    combine: str
    members: list[FileName]
    weights: dict[str, dict[FileName, float]]

    @model_validator(mode="after")
    def _weights_are_shares(self) -> Ensemble:
        if self.combine not in RULES:
            raise ValueError(f"combine: found {self.combine!r}, expected one of {', '.join(RULES)}")
        for task, shares in self.weights.items():
            sums_to_one = abs(sum(shares.values()) - 1) < 1e-3 and min(shares.values()) >= 0
            if not (sums_to_one and set(shares) <= set(self.members)):
                raise ValueError(f"weights.{task}: found {shares}, expected members' shares, of sum 1")
            if self.combine == "greedy":
                picks_of(list(shares.values()))
        return self


class Predictor:
    """One trained model, or an ensemble of several, that predicts any text and from any thread.

    Args:
        members: models by name.
        weights: weights of each task's members, by task and member.
        combine: rule that combines the members' predictions, see `bertrio.evaluation.ensembling`.

    Attributes:
        tasks: the tasks that it predicts, by name, without those whose heads were not trained.
        members: models by name.

    Raises:
        UserError: if members define a task differently.
    """

    def __init__(
        self, members: Mapping[str, TrainedModel], weights: Mapping[str, Mapping[str, float]], combine: str = "vote"
    ) -> None:
        self.members, self._combine = dict(members), combine
        self._weights = {
            task: {name: share for name, share in shares.items() if share} for task, shares in weights.items()
        }
        known = {task: self._common_task(task, list(shares)) for task, shares in self._weights.items()}
        self.tasks = {
            name: task for name, task in known.items() if any(name in members[of].trained for of in self._weights[name])
        }

    @classmethod
    def load(
        cls, path: str | Path = "models", device: str = "auto", precision: str = "auto", batch_size: int = 64
    ) -> Predictor:
        """Load a finished run, or one of its members.

        Args:
            path: folder `models` of a run, for its ensemble, or the folder of one model: `models/members/NAME`, or
                `models/ensemble` of a soup.
            device: `auto`, `cpu`, `mps`, `cuda` or `cuda:N`.
            precision: `auto` (bf16 where the hardware multiplies it well and the model is not narrow), `float32` or
                `bf16`.
            batch_size: rows that go through a model at once.

        Raises:
            UserError: if there is no model, or a part of it is missing or damaged, or an argument is out of range.
        """
        _check_arguments(device, precision, batch_size)
        folder = Path(path)
        folder = folder / "ensemble" if (folder / "ensemble").is_dir() else folder

        def load_member(where: Path) -> TrainedModel:
            runtime = choose(device, precision, encoder_width(where / "encoder"))
            return TrainedModel.load(where, runtime, batch_size)

        if (folder / CONFIG_FILE).exists():
            model = load_member(folder)
            return cls({folder.name: model}, {task: {folder.name: 1.0} for task in model.tasks})
        if not (folder / ENSEMBLE).exists():
            raise UserError(
                f"{path}: found neither {CONFIG_FILE} nor {ENSEMBLE} there, expected a run's folder models, or the "
                "folder of one model, such as models/members/base; dvc repro makes them"
            )
        ensemble = read_ensemble(folder)
        used = [name for name in ensemble.members if any(shares.get(name) for shares in ensemble.weights.values())]
        beside = (folder.resolve() if folder.name in ("", "..") else folder).parent / "members"
        members = {name: load_member(need(beside / name)) for name in used}
        return cls(members, ensemble.weights, ensemble.combine)

    @property
    def device(self) -> torch.device:
        """Device of the models."""
        return next(iter(self.members.values())).network.runtime.device

    def task(self, name: str) -> Task:
        """Return the task of this name.

        Raises:
            UserError: if there is none, or its head was not trained.
        """
        if name not in self.tasks:
            close = difflib.get_close_matches(str(name), self.tasks, n=1)
            guess = f"; did you mean {close[0]}?" if close else ""
            raise UserError(
                f"task {name!r}: no such task, expected one of {', '.join(self.tasks)}, which were trained{guess}"
            )
        return self.tasks[name]

    def predict(self, task: str, rows: Iterable[Row]) -> list[Prediction]:
        """Predict rows of a task.

        Args:
            task: one of `tasks`.
            rows: texts, or pairs of texts if the task compares two. Outer white space is stripped, as in training.

        Returns:
            One prediction a row, in the order of the rows.

        Raises:
            UserError: for an unknown task, or a row of the wrong shape or without text.
        """
        spec = self.task(task)
        predicted = self.answer(task, _table(spec.text_columns, rows))
        labels = predicted.values.astype(np.int64) if spec.target.discrete else predicted.values
        none = [None] * len(labels)
        probabilities = none if predicted.probabilities is None else map(tuple, predicted.probabilities.tolist())
        scores = none if predicted.scores is None else predicted.scores.tolist()
        return [Prediction(*row) for row in zip(labels.tolist(), probabilities, scores)]

    def answer(self, task: str, texts: pd.DataFrame) -> Predicted:
        """Predict a table with the task's text columns as arrays; texts are not cleaned."""
        shares = self._weights[self.task(task).name]
        predictions = [self.members[name].predict(task, texts) for name in shares]
        return combine_answers(predictions, self._combine, list(shares.values()))

    def encode(self, texts: Sequence[str], task: str | None = None) -> Vectors:
        """Return the vector of each text that a bi-encoded task compares: float32 [N, H], not normalized.

        Args:
            texts: N texts.
            task: a bi-encoded task; None if it is the only one.

        Raises:
            UserError: if the task is not bi-encoded, several models predict it, or a text is empty.
        """
        apart = [name for name, spec in self.tasks.items() if spec.encoding == "bi"]
        found = apart[0] if task is None and len(apart) == 1 else task and self.task(task).name
        if found not in apart:
            raise UserError(
                f"task: found {task}, expected a task that encodes its texts apart: {', '.join(apart) or 'none here'}; "
                "pair tasks do if trained with tasks.NAME.encoding: bi and a head for two vectors, such as cosine"
            )
        shares = self._weights[found]
        if len(shares) > 1:
            raise UserError(
                f"task {found}: {len(shares)} models answer it, and vectors of unlike models can't be compared; load "
                f"one of them, such as models/members/{next(iter(shares))}, or make a soup (ensemble.combine)"
            )
        (name,) = shares
        return self.members[name].encode(_table(TEXT_COLUMNS["single"], texts)["text"].tolist(), found)

    def _common_task(self, name: str, members: list[str]) -> Task:
        """Return the task as its members define it; they may differ in how they encode pairs."""
        found = [self.members[member].tasks.get(name) for member in members]
        first = found[0]
        if first is None or any(not task or (task.kind, task.target) != (first.kind, first.target) for task in found):
            raise UserError(
                f"task {name}: expected the same task in members {', '.join(members)}, found another, or none; {RERUN}"
            )
        return first


def read_ensemble(folder: str | Path) -> Ensemble:
    """Read ensemble.json in `folder`.

    Raises:
        UserError: if the file is not there, or damaged.
    """
    path = need(Path(folder) / ENSEMBLE)
    try:
        return Ensemble.model_validate(read_json(path))
    except (OSError, ValueError, RecursionError) as error:  # pydantic's ValidationError is a ValueError
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"{path}: does not describe an ensemble ({reason}); {RERUN}") from None


def _check_arguments(device: str, precision: str, batch_size: int) -> None:
    if not DEVICE.fullmatch(device):
        raise UserError(f"device: found {device!r}, expected auto, cpu, mps, cuda or cuda:N")
    if precision not in PRECISIONS:
        raise UserError(f"precision: found {precision!r}, expected one of {', '.join(PRECISIONS)}")
    if batch_size < 1:
        raise UserError(f"batch_size: found {batch_size}, expected 1 or more")


def _table(columns: tuple[str, ...], rows: Iterable[Row]) -> pd.DataFrame:
    """Return texts, or pairs of texts if there are two columns, as a table.

    Raises:
        UserError: naming the first row that is of the wrong shape or without text.
    """
    if isinstance(rows, (str, bytes)):
        raise UserError(f"rows: found one text, expected a list, each item {EXPECTED[len(columns)]}")
    clean = [_clean(place, row, len(columns)) for place, row in enumerate(rows)]
    texts = zip(*clean) if clean else [()] * len(columns)
    return pd.DataFrame({name: pd.Series(column, dtype=object) for name, column in zip(columns, texts)})


def _clean(place: int, row: Any, count: int) -> tuple[str, ...]:
    texts = (row,) if count == 1 else row
    try:
        if not isinstance(texts, (tuple, list)) or len(texts) != count:
            raise Unusable("not a pair")
        return tuple(clean_text(text) for text in texts)
    except Unusable as problem:
        raise UserError(f"rows[{place}]: {problem}: found {reprlib.repr(row)}, expected {EXPECTED[count]}") from None
