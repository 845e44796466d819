"""What may come in: limits, the body of a request, and the rows in it. Everything else is refused, with the reason."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from bertrio.core.tasks import Task
from bertrio.data.table import Unusable, clean_text

if TYPE_CHECKING:
    from bertrio.inference.predictor import Row

BODY_SECONDS = 10.0  # for a body to arrive: a client that stalls does not hold its connection for longer
SHOWN = 80  # characters of what was found that an answer repeats
WORDS = {type(None): "null", bool: "true or false", int: "a number", float: "a number", str: "a text", list: "a list"}


@dataclass(frozen=True)
class Limits:
    """What the server takes on.

    Args:
        max_batch: rows that are predicted together.
        max_wait: seconds that a row waits for others to join it.
        max_rows: rows of a request.
        max_chars: characters of a text.
        max_bytes: of a request's body.
        queue: rows of all requests together that wait.
    """

    max_batch: int = 64
    max_wait: float = 0.005
    max_rows: int = 256
    max_chars: int = 10_000
    max_bytes: int = 2_000_000
    queue: int = 1024


class Refused(Exception):
    """A request that gets no answer but the reason.

    Args:
        status: of HTTP.
        where: the part of the request that is meant, such as `rows[3]`.
        found: what is there.
        expected: what should be, or what to do.
        headers: of the response.
    """

    def __init__(
        self, status: int, where: str, found: str, expected: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(f"{where}: found {found}, expected {expected}")
        self.status, self.where, self.found, self.expected, self.headers = status, where, found, expected, headers


class SingleRows(BaseModel):
    """Texts for a task of kind `single`."""

    model_config = ConfigDict(
        extra="forbid", strict=True, json_schema_extra={"examples": [{"rows": ["A warm and funny film."]}]}
    )
    rows: list[str] = Field(description="one text a row", min_length=1, fail_fast=True)


Pair = Annotated[list[str], Field(min_length=2, max_length=2)]


class PairRows(BaseModel):
    """Pairs of texts for a task of kind `pair`."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"rows": [["How do I learn to cook?", "What is the best way to cook?"]]}]},
    )
    rows: list[Pair] = Field(description="a list of two texts a row", min_length=1, fail_fast=True)


BODIES: dict[str, type[BaseModel]] = {"single": SingleRows, "pair": PairRows}


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The body of a JSON request, read no further than the limit, whatever its header says of its length.

    Raises:
        Refused: if it is not said to be JSON (415), is too large (413) or does not arrive (408).
        ClientDisconnect: if the client goes away.
    """
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, "content-type", shown(kind) if kind else "none", "application/json")
    try:
        return await asyncio.wait_for(_read(request, max_bytes), BODY_SECONDS)
    except asyncio.TimeoutError:
        message = f"all of it within {BODY_SECONDS:.0f} seconds"
        raise Refused(408, "body", "no end", message, {"Connection": "close"}) from None


async def _read(request: Request, max_bytes: int) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise Refused(
                413, "body", f"more than {max_bytes} bytes", f"at most {max_bytes}; send fewer rows at a time"
            )
    return bytes(body)


def read_rows(body: bytes, task: Task, limits: Limits) -> list[Row]:
    """The rows of a request.

    Raises:
        Refused: if the body is not JSON (400), not of the form that the task takes (422) or beyond a limit (413).
    """
    try:
        value = from_json(body)
    except ValueError as error:
        raise Refused(400, "body", f"no JSON ({error})", f"JSON such as {_example(task)}") from None
    if isinstance(value, dict):
        _check_fields(value, task, limits.max_rows)
    try:
        rows = BODIES[task.kind].model_validate(value).rows
    except ValidationError as error:
        raise _refused(error, task) from None
    for place, row in enumerate(rows):
        for text in [row] if isinstance(row, str) else row:
            _check_text(text, f"rows[{place}]", limits.max_chars)
    return [row if isinstance(row, str) else (row[0], row[1]) for row in rows]


def _check_text(text: str, where: str, max_chars: int) -> None:
    if len(text) > max_chars:
        raise Refused(413, where, f"a text of {len(text)} characters", f"at most {max_chars}")
    try:
        clean_text(text)
    except Unusable as reason:
        raise Refused(422, where, str(reason), "characters that are not white space, and are Unicode") from None


def _check_fields(body: dict[str, Any], task: Task, max_rows: int) -> None:
    """That there is a field rows, no other one and no row too many, before pydantic looks at each of them: a body of
    nothing but unknown fields would hold up every other request for most of a second.

    Raises:
        Refused: for the first thing that is not so.
    """
    if "rows" not in body:
        raise Refused(422, "body", "no field rows", f"an object such as {_example(task)}")
    for name in body:
        if name != "rows":
            raise Refused(422, _place([name]), _in_words(body[name]), "no field but rows")
    if isinstance(body["rows"], list) and len(body["rows"]) > max_rows:
        raise Refused(413, "rows", f"{len(body['rows'])} rows", f"at most {max_rows}; send fewer at a time")


def _refused(error: ValidationError, task: Task) -> Refused:
    """The first thing that is wrong with a body that is an object with rows alone, or no object, in words."""
    first, example = error.errors(include_url=False)[0], _example(task)
    where, found = _place(first["loc"]), _in_words(first["input"])
    texts = "two texts, [a, b]" if task.kind == "pair" else "a text"
    expected = (  # of the body, of rows, of a row, of a text in a row
        f"an object such as {example}",
        f"a list of one row or more, as in {example}",
        f"{texts}, as task {task.name} is of kind {task.kind}",
        "a text",
    )
    return Refused(422, where, found, expected[len(first["loc"])])


def _example(task: Task) -> str:
    return json.dumps(BODIES[task.kind].model_config["json_schema_extra"]["examples"][0])


def _place(parts: Sequence[str | int]) -> str:
    """`("rows", 0, 1)` as `rows[0][1]`."""
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return shown(path.removeprefix(".")) if path else "body"


def _in_words(value: Any) -> str:
    """The kind of a JSON value; of a list its length as well."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return WORDS.get(type(value), "an object")


def shown(text: str) -> str:
    """The start of what a client sent."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
