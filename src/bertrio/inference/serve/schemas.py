"""What goes out: the JSON of answers, tasks, health and refusals, as OpenAPI describes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from bertrio.core.tasks import TARGETS, Task

if TYPE_CHECKING:
    from bertrio.inference.predictor import Prediction


def _with(example: dict[str, Any]) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [example]})


ANSWER = {"label": 4, "probabilities": [0.01, 0.02, 0.05, 0.22, 0.7], "score": None}
TASK = {
    "name": "sst",
    "kind": "single",
    "encoding": "cross",
    "target": "ordered",
    "count": 5,
    "labels": None,
    "low": None,
    "high": None,
}
REFUSAL = {"where": "rows[0]", "found": "a number", "expected": "a text, as task sst is of kind single"}


class Answer(BaseModel):
    """The prediction for one row."""

    model_config = _with(ANSWER)
    label: int | float = Field(
        description="the class from 0 on, 0 for no and 1 for yes, or the score within the task's range"
    )
    probabilities: list[float] | None = Field(description="of each class; null for scores")
    score: float | None = Field(description="the raw score, which may lie outside of the range; null for classes")


class Answers(BaseModel):
    """The predictions of a request, in the order of its rows."""

    model_config = _with({"task": "sst", "predictions": [ANSWER]})
    task: str
    predictions: list[Answer]

    @classmethod
    def of(cls, task: str, predictions: Sequence[Prediction]) -> Answers:
        """The body for these predictions."""
        found = [
            Answer(
                label=one.label,
                probabilities=None if one.probabilities is None else list(one.probabilities),
                score=one.score,
            )
            for one in predictions
        ]
        return cls(task=task, predictions=found)


class TaskFacts(BaseModel):
    """What a task takes and gives."""

    model_config = _with(TASK)
    name: str
    kind: str = Field(description="single: a row is one text; pair: a list of two")
    encoding: str = Field(description="of pairs: cross (one sequence) or bi (each text alone)")
    target: str = Field(description="classes, ordered (classes with an order), binary (no, yes) or score")
    count: int | None = Field(description="of classes")
    labels: list[str] | None = Field(description="names of the classes, where they have names")
    low: float | None = Field(description="the lowest score")
    high: float | None = Field(description="the highest score")

    @classmethod
    def of(cls, task: Task) -> TaskFacts:
        """The facts of `task`."""
        target = task.target
        return cls(
            name=task.name,
            kind=task.kind,
            encoding=task.encoding,
            target=next(name for name, kind in TARGETS.items() if kind is type(target)),
            count=getattr(target, "count", None),
            labels=list(target.labels) or None,
            low=getattr(target, "low", None),
            high=getattr(target, "high", None),
        )


class Tasks(BaseModel):
    """All tasks of the model."""

    model_config = _with({"tasks": [TASK]})
    tasks: list[TaskFacts]


class Health(BaseModel):
    """Whether requests are answered."""

    model_config = _with({"status": "ready"})
    status: str = Field(description="ready; with status 503: not ready")


class Refusal(BaseModel):
    """Why a request got no answer."""

    model_config = _with({"error": "rows[0]: found a number, expected a text", **REFUSAL})
    error: str = Field(description="the reason in one line")
    where: str = Field(description="the part of the request that is meant")
    found: str
    expected: str
