"""Trained models as a library call: `Predictor.load("models").predict("qqp", [("a", "b"), ...])`.

It speaks for the same ensemble that the pipeline's last run made, from the models' folders alone.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from bertrio.core.errors import UserError, need
from bertrio.core.files import read_json
from bertrio.core.options import FileName, Group
from bertrio.core.runtime import choose
from bertrio.core.tasks import TEXT_COLUMNS, Array, Predicted, Task
from bertrio.data.table import Unusable, clean_text
from bertrio.evaluation.ensembling import RULES, combine_answers, picks_of
from bertrio.inference.trained_model import TrainedModel
from bertrio.model.config import CONFIG_FILE, encoder_width

Row = str | tuple[str, str]
DEVICE = re.compile(r"auto|cpu|mps|cuda(:[0-9]+)?")
PRECISIONS = ("auto", "float32", "bf16")
ENSEMBLE = "ensemble.json"
LONGEST = 80  # characters of a row that a message shows
WANTED = {1: "a text", 2: "a pair of texts"}
AGAIN = "run the finetune and ensemble stages again"


class Prediction(NamedTuple):
    """What is predicted for one row.

    Attributes:
        label: the class from 0 on, 0 or 1 for no or yes, or the score within the task's range.
        probabilities: one a class (binary: no, yes), of sum 1; None for scores.
        score: the raw score, which may lie outside of the range; None for classes.
    """

    label: int | float
    probabilities: tuple[float, ...] | None
    score: float | None


class Ensemble(Group):
    """What ensemble.json says, see `bertrio.evaluation.ensembling.record_ensemble`."""

    combine: str
    members: list[FileName]
    weights: dict[str, dict[FileName, float]]


class Predictor:
    """One trained model, or an ensemble of several, that answers for any text and from any thread.

    Args:
        members: the models by name.
        weights: the members that answer each task, with their weights.
        combine: how answers of several members become one, see `bertrio.evaluation.ensembling.combine`.

    Attributes:
        tasks: the tasks that it answers, by name. Tasks whose heads were not trained are none of them.
        members: as above.

    Raises:
        UserError: if the members of a task do not speak of the same task.
    """

    def __init__(
        self, members: Mapping[str, TrainedModel], weights: Mapping[str, Mapping[str, float]], combine: str = "vote"
    ) -> None:
        self.members, self._combine = dict(members), combine
        self._weights = {task: {name: of for name, of in shares.items() if of} for task, shares in weights.items()}
        known = {task: self._agreed(task, list(shares)) for task, shares in self._weights.items()}
        self.tasks = {
            task: of for task, of in known.items() if any(task in members[name].trained for name in self._weights[task])
        }
        self._untrained = [task for task in known if task not in self.tasks]

    @classmethod
    def load(
        cls, path: str | Path = "models", device: str = "auto", precision: str = "auto", batch_size: int = 64
    ) -> Predictor:
        """The predictor of a finished run, or of one of its members.

        Args:
            path: a run's folder `models`, for its ensemble, or the folder of one model: `models/members/NAME`, or
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

        def loaded(where: Path) -> TrainedModel:
            runtime = choose(device, precision, encoder_width(where / "encoder"))
            return TrainedModel.load(where, runtime, batch_size)

        if (folder / CONFIG_FILE).exists():
            model = loaded(folder)
            return cls({folder.name: model}, {task: {folder.name: 1.0} for task in model.tasks})
        if not (folder / ENSEMBLE).exists():
            raise UserError(
                f"{path}: found neither {CONFIG_FILE} nor {ENSEMBLE} there, expected a run's folder models, or the "
                "folder of one model, such as models/members/base; dvc repro makes them"
            )
        ensemble = read_ensemble(folder)
        asked = [name for name in ensemble.members if any(shares.get(name) for shares in ensemble.weights.values())]
        beside = (folder.resolve() if folder.name in ("", "..") else folder).parent / "members"
        members = {name: loaded(need(beside / name)) for name in asked}
        return cls(members, ensemble.weights, ensemble.combine)

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return next(iter(self.members.values())).network.runtime.device

    def task(self, name: str) -> Task:
        """The task of this name.

        Raises:
            UserError: if there is none that is answered here.
        """
        if name in self.tasks:
            return self.tasks[name]
        if name in self._untrained:
            raise UserError(f"task {name}: this model was not trained on it, so that its answers would be random")
        close = difflib.get_close_matches(str(name), self.tasks, n=1)
        guess = f"; did you mean {close[0]}?" if close else ""
        raise UserError(f"task {name!r}: no such task, expected one of {_listed(self.tasks)}{guess}")

    def predict(self, task: str, rows: Iterable[Row]) -> list[Prediction]:
        """What is predicted for each row.

        Args:
            task: one of `tasks`.
            rows: texts, or pairs of texts where the task compares two. Outer white space is taken off, as it was in
                training.

        Returns:
            One prediction a row, in the order of the rows.

        Raises:
            UserError: for an unknown task, or a row of the wrong shape or without text.
        """
        of = self.task(task)
        answers = self.answer(task, _table(of.text_columns, rows))
        labels = answers.values.astype(np.int64) if of.target.discrete else answers.values
        nothing = [None] * len(labels)
        probabilities = nothing if answers.probabilities is None else map(tuple, answers.probabilities.tolist())
        scores = nothing if answers.scores is None else answers.scores.tolist()
        return [Prediction(*row) for row in zip(labels.tolist(), probabilities, scores)]

    def answer(self, task: str, texts: pd.DataFrame) -> Predicted:
        """The same as arrays, for a table with the task's text columns, whose texts are taken as they are."""
        shares = self._weights[self.task(task).name]
        said = [self.members[name].predict(task, texts) for name in shares]
        return combine_answers(said, self._combine, list(shares.values()))

    def encode(self, texts: Sequence[str], task: str | None = None) -> Array:
        """The vector of each text that a bi-encoded task compares by: float32 [N, H], not normalised.

        Args:
            texts: N texts.
            task: whose vectors; None is the bi-encoded task, if there is one alone.

        Raises:
            UserError: if the task encodes both texts together, or several models answer it, so that it has no such
                vectors; or for a text that is none.
        """
        task = self._bi_encoded() if task is None else self.task(task).name
        of, shares = self.tasks[task], self._weights[task]
        if of.encoding != "bi":
            raise UserError(f"task {task}: {_why_no_vectors(of)}")
        if len(shares) > 1:
            raise UserError(
                f"task {task}: {len(shares)} models answer it, and vectors of unlike models can't be compared; load "
                f"one of them, such as models/members/{next(iter(shares))}, or make a soup (ensemble.combine)"
            )
        (name,) = shares
        return self.members[name].encode(task, _table(TEXT_COLUMNS["single"], texts)["text"].tolist())

    def _bi_encoded(self) -> str:
        found = [name for name, task in self.tasks.items() if task.kind == "pair" and task.encoding == "bi"]
        if not found:
            pairs = [name for name, task in self.tasks.items() if task.kind == "pair"]
            raise UserError(
                f"none of the tasks {_listed(self.tasks)} encodes its texts apart; {_apart(pairs or ['NAME'])}"
            )
        if len(found) > 1:
            raise UserError(
                f"several tasks encode their texts apart, each in its own way: name one of {_listed(found)}"
            )
        return found[0]

    def _agreed(self, name: str, answering: list[str]) -> Task:
        """The task as those who answer it know it: they may encode pairs in ways of their own, and no more."""
        for member in answering:
            if name not in self.members[member].tasks:
                raise UserError(f"member {member}: does not know task {name}, which the ensemble asks it; {AGAIN}")
        first, *others = [self.members[member].tasks[name] for member in answering]
        if any((other.kind, other.target) != (first.kind, first.target) for other in others):
            raise UserError(f"task {name}: members {_listed(answering)} do not mean the same by it; {AGAIN}")
        return first


def read_ensemble(folder: str | Path) -> Ensemble:
    """How the members in `folder`/../members make an ensemble.

    Raises:
        UserError: if the file is not there, or damaged.
    """
    path = need(Path(folder) / ENSEMBLE)
    try:
        found = Ensemble.model_validate(read_json(path))
    except (OSError, ValueError, RecursionError) as error:  # pydantic's ValidationError is a ValueError
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path}: does not describe an ensemble ({reason}); {AGAIN}") from None
    if found.combine not in RULES:
        raise UserError(
            f"{path}: combine: found {found.combine!r}, expected one of {_listed(RULES)}; a soup has a "
            f"{CONFIG_FILE} beside it; {AGAIN}"
        )
    for task, shares in found.weights.items():
        if not set(shares) <= set(found.members) or not _are_weights(shares.values(), found.combine):
            raise UserError(f"{path}: weights.{task}: found {shares}, expected members' shares, of sum 1; {AGAIN}")
    return found


def _are_weights(shares: Collection[float], how: str) -> bool:
    """Whether they are what an ensemble of this kind has: of sum 1, and with `greedy` made by picks."""
    try:
        return bool(picks_of(list(shares))) if how == "greedy" else min(shares) > 0 and abs(sum(shares) - 1) < 1e-3
    except ValueError:
        return False


def _check_arguments(device: str, precision: str, batch_size: int) -> None:
    if not DEVICE.fullmatch(device):
        raise UserError(f"device: found {device!r}, expected auto, cpu, mps, cuda or cuda:N")
    if precision not in PRECISIONS:
        raise UserError(f"precision: found {precision!r}, expected one of {_listed(PRECISIONS)}")
    if batch_size < 1:
        raise UserError(f"batch_size: found {batch_size}, expected 1 or more")


def _table(columns: tuple[str, ...], rows: Iterable[Row]) -> pd.DataFrame:
    """Texts, or pairs of texts if there are two columns, as a table.

    Raises:
        UserError: naming the first row that is of the wrong shape or without text.
    """
    if isinstance(rows, (str, bytes)):
        raise UserError(f"rows: found one text, expected a list, each item {WANTED[len(columns)]}")
    clean = [_clean(place, row, len(columns)) for place, row in enumerate(rows)]
    texts = zip(*clean) if clean else [()] * len(columns)
    return pd.DataFrame({name: pd.Series(column, dtype=object) for name, column in zip(columns, texts)})


def _clean(place: int, row: Any, count: int) -> tuple[str, ...]:
    texts = (row,) if count == 1 else row
    if not isinstance(texts, (tuple, list)) or len(texts) != count:
        raise UserError(f"rows[{place}]: found {_shown(row)}, expected {WANTED[count]}")
    try:
        return tuple(clean_text(text) for text in texts)
    except Unusable as problem:
        raise UserError(f"rows[{place}]: {problem}: found {_shown(row)}, expected {WANTED[count]}") from None


def _why_no_vectors(task: Task) -> str:
    if task.kind == "single":
        return "it reads one text and compares none; expected a pair task with encoding bi"
    return f"it reads both texts together and has no vector of one alone; {_apart([task.name])}"


def _apart(tasks: list[str]) -> str:
    """What to set for a task that encodes its texts apart."""
    return f"train with tasks.{tasks[-1]}.encoding: bi and tasks.{tasks[-1]}.head: cosine, or another for two vectors"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
