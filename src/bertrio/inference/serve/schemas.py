"""The JSON of requests and responses."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, FailFast, Field


class Rows(BaseModel):
    """Texts, or pairs of texts, to predict."""

    rows: Annotated[  # FailFast, as a million wrong rows would otherwise make two million errors
        list[str | tuple[str, str]], FailFast(), Field(min_length=1, examples=[["A warm and funny film.", "Awful."]])
    ]


class Answer(BaseModel):
    """Prediction for one row."""

    label: int | float | list[int] = Field(
        description="class from 0 on, 0 for no and 1 for yes, score within the task's range, or multi-label the classes"
    )
    probabilities: list[float] | None = Field(description="one a class; null for scores")
    score: float | None = Field(description="raw score, which may lie outside of the range; null for classes")
    name: str | list[str] | None = Field(description="name of the class, or names of the classes; null for scores")


class Answers(BaseModel):
    """Predictions of a request, in the order of its rows."""

    task: str
    predictions: list[Answer]


class Refusal(BaseModel):
    """Reason why a request has no answer."""

    error: str
