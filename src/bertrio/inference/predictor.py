"""Prediction as a library call: `Predictor.load("models").predict("qqp", [("a", "b"), ...])`.

It needs only the model folders, and predicts as the ensemble of the pipeline's last run.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pandas as pd

from bertrio.core.errors import UserError, need
from bertrio.core.options import FileName, Group, one_of
from bertrio.core.runtime import choose
from bertrio.core.tasks import TEXT_COLUMNS, Predicted, Task
from bertrio.data.table import Unusable, clean_text
from bertrio.evaluation.ensembling import RULES, combine_predictions
from bertrio.inference.trained_model import TrainedModel, Vectors
from bertrio.model.config import CONFIG_FILE, encoder_width, read_group

Row = str | tuple[str, str]
ENSEMBLE = "ensemble.json"
EXPECTED = {1: "a text", 2: "a pair of texts"}


class Prediction(NamedTuple):
    """Prediction for one row.

    Attributes:
        label: class from 0 on, 0 or 1 for no or yes, or score within the task's range; of multi-label tasks the classes
            whose probability is above their threshold.
        probabilities: one for each class (binary: no, yes), of sum 1 unless multi-label; None for scores.
        score: raw score, which may lie outside of the range; None for classes.
        name: name of the class, or names of the classes; None for scores.
    """

    label: int | float | tuple[int, ...]
    probabilities: tuple[float, ...] | None
    score: float | None
    name: str | tuple[str, ...] | None = None


class Ensemble(Group):
    """Contents of ensemble.json, which `bertrio.evaluation.ensembling.record_ensemble` writes."""

    combine: Annotated[str, one_of(dict.fromkeys(RULES))]
    members: list[FileName]
    weights: dict[str, dict[FileName, float]]


class Predictor:
    """A trained model, or an ensemble of several, which predicts texts. Safe to use from several threads.

    Args:
        members: models by name.
        weights: weights above 0 of each task's members, by task and member.
        combine: rule that combines the members' predictions, see `bertrio.evaluation.ensembling`.

    Attributes:
        tasks: tasks with trained heads, by name.
        members: models by name.
    """

    def __init__(
        self, members: Mapping[str, TrainedModel], weights: Mapping[str, Mapping[str, float]], combine: str = "vote"
    ) -> None:
        self.members, self._weights, self._combine = dict(members), weights, combine
        self.tasks: dict[str, Task] = {}
        for name, shares in weights.items():
            trained = [self.members[member] for member in shares if name in self.members[member].trained]
            if trained:
                self.tasks[name] = trained[0].tasks[name]

    @property
    def encoders(self) -> list[str]:
        """Names of the encoders that training started from."""
        return list(dict.fromkeys(member.config.encoder.name for member in self.members.values()))

    @classmethod
    def load(
        cls, path: str | Path = "models", device: str = "auto", precision: str = "auto", batch_size: int = 64
    ) -> Predictor:
        """Load a finished run, or one of its members.

        Args:
            path: folder `models` of a run, for its ensemble, or the folder of one model: `models/members/NAME`, or
                `models/ensemble` of a soup.
            device: `auto`, `cpu`, `mps`, `cuda` or `cuda:N`.
            precision: `auto` (bf16 if the hardware supports it well and the model is wide enough), `float32` or
                `bf16`.
            batch_size: rows that go through a model at once.

        Raises:
            UserError: if there is no model, a part of it is missing or damaged, or there is no such device.
        """
        folder = Path(path)
        folder = folder / "ensemble" if (folder / "ensemble").is_dir() else folder

        def load_member(member: Path) -> TrainedModel:
            runtime = choose(device, precision, encoder_width(member / "encoder"))
            return TrainedModel.load(member, runtime, batch_size)

        if (folder / CONFIG_FILE).exists():
            model = load_member(folder)
            return cls({folder.name: model}, {task: {folder.name: 1.0} for task in model.tasks})
        ensemble = read_ensemble(folder)
        weights = {
            task: {name: share for name, share in shares.items() if share} for task, shares in ensemble.weights.items()
        }
        used = sorted({name for shares in weights.values() for name in shares})
        members = {name: load_member(need(folder.resolve().parent / "members" / name)) for name in used}
        return cls(members, weights, ensemble.combine)

    def task(self, name: str) -> Task:
        """Return the task of this name.

        Raises:
            UserError: if there is none, or its head was not trained.
        """
        if name not in self.tasks:
            raise UserError(f"task {name!r}: no such task, expected one of {', '.join(self.tasks)}, which were trained")
        return self.tasks[name]

    def predict(self, task: str, rows: Iterable[Row]) -> list[Prediction]:
        """Predict rows of a task.

        Args:
            task: one of `tasks`.
            rows: texts, or pairs of texts if the task compares two. Outer white space is stripped, as in training.

        Returns:
            One prediction for each row, in the order of the rows.

        Raises:
            UserError: for an unknown task, or a row of the wrong shape or without text.
        """
        spec = self.task(task)
        predicted = self.predict_table(task, text_table(spec.text_columns, rows))
        if predicted.probabilities is None:
            assert predicted.scores is not None
            pairs = zip(predicted.values.tolist(), predicted.scores.tolist())
            return [Prediction(value, None, score) for value, score in pairs]
        chosen = map(spec.target.chosen, predicted.values.tolist())
        return [
            Prediction(label, tuple(probabilities), None, name)
            for (label, name), probabilities in zip(chosen, predicted.probabilities.tolist())
        ]

    def predict_table(self, task: str, texts: pd.DataFrame) -> Predicted:
        """Predict a table that has the task's text columns; texts are not cleaned. Returns arrays."""
        spec = self.task(task)
        shares = self._weights[task]
        predictions = [self.members[name].predict(task, texts) for name in shares]
        return combine_predictions(predictions, self._combine, list(shares.values()), spec.target.sets)

    def pooled(self, task: str, texts: pd.DataFrame) -> Vectors:
        """Return the pooled vectors of a table's rows, see `TrainedModel.pooled`.

        Raises:
            UserError: if several models predict the task.
        """
        return self._only_member(task).pooled(task, texts)

    def encode(self, texts: Sequence[str], task: str | None = None) -> Vectors:
        """Return the vector of each text that a bi-encoded task compares: float32 [N, H], not normalized.

        Args:
            texts: N texts.
            task: a bi-encoded task; None if it is the only one.

        Raises:
            UserError: if the task is not bi-encoded, several models predict it, or a text is empty.
        """
        bi_encoded = [name for name, spec in self.tasks.items() if spec.encoding == "bi"]
        name = bi_encoded[0] if task is None and len(bi_encoded) == 1 else task
        if name not in bi_encoded:
            raise UserError(
                f"task: found {task}, expected a task that encodes its texts apart: "
                f"{', '.join(bi_encoded) or 'none here'}; pair tasks do if trained with tasks.NAME.encoding: bi"
            )
        return self._only_member(name).encode(text_table(TEXT_COLUMNS["single"], texts)["text"].tolist(), name)

    def _only_member(self, task: str) -> TrainedModel:
        shares = self._weights[task]
        member = next(iter(shares))
        if len(shares) > 1:
            raise UserError(
                f"task {task}: {len(shares)} models predict it, and vectors of unlike models can't be compared; load "
                f"one of them, such as models/members/{member}, or make a soup (ensemble.combine)"
            )
        return self.members[member]


def read_ensemble(folder: Path) -> Ensemble:
    """Read ensemble.json in `folder`.

    Raises:
        UserError: if the file is not there, or damaged.
    """
    path = folder / ENSEMBLE
    if not path.exists():
        raise UserError(
            f"{folder}: found neither {CONFIG_FILE} nor {ENSEMBLE} there, expected a run's folder models, or the "
            "folder of one model, such as models/members/base; dvc repro makes them"
        )
    return read_group(path, Ensemble, "an ensemble")


def text_table(columns: tuple[str, ...], rows: Iterable[Row]) -> pd.DataFrame:
    """Return texts, or pairs of texts if there are two columns, as a table.

    Raises:
        UserError: if a row has the wrong shape or no text, naming the first.
    """
    if isinstance(rows, (str, bytes)):
        raise UserError(f"rows: found one text, expected a list, each item {EXPECTED[len(columns)]}")
    clean = [_clean_row(index, row, len(columns)) for index, row in enumerate(rows)]
    texts = zip(*clean) if clean else [()] * len(columns)
    return pd.DataFrame({name: pd.Series(column, dtype=object) for name, column in zip(columns, texts)})


def _clean_row(index: int, row: Any, count: int) -> tuple[str, ...]:
    texts = (row,) if count == 1 else row
    try:
        if not isinstance(texts, (tuple, list)) or len(texts) != count:
            raise Unusable("not a pair")
        return tuple(clean_text(text) for text in texts)
    except Unusable as problem:
        raise UserError(f"rows[{index}]: {problem}: found {reprlib.repr(row)}, expected {EXPECTED[count]}") from None
