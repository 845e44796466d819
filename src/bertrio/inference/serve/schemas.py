"""Limits of the server, and the JSON of requests and responses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, Field, create_model


@dataclass(frozen=True)
class Limits:
    """Limits of the server.

    Args:
        max_batch: rows in a batch.
        max_wait: seconds that a request waits for others to join its batch.
        max_rows: rows in a request.
        max_bytes: bytes in a request's body.
        queue: rows in the queue.
        hosts: names by which requests may call the server; none allows all.
    """

    max_batch: int = 64
    max_wait: float = 0.005
    max_rows: int = 256
    max_bytes: int = 2_000_000
    queue: int = 1024
    hosts: tuple[str, ...] = ()


def rows_model(max_rows: int) -> type[BaseModel]:
    """Return the pydantic model of a request's body."""
    rows = Field(min_length=1, max_length=max_rows, examples=[["A warm and funny film.", "Awful."]])
    return create_model("Rows", rows=(Annotated[list[str | tuple[str, str]], rows], ...))


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
