"""The routes of the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from bertrio import __version__
from bertrio.inference.serve.batching import Batcher, Full, Stopped
from bertrio.inference.serve.edge import Edge
from bertrio.inference.serve.metrics import Metrics
from bertrio.inference.serve.requests import BODIES, Limits, Refused, read_body, read_rows, shown
from bertrio.inference.serve.schemas import Answers, Health, Refusal, TaskFacts, Tasks

if TYPE_CHECKING:
    from bertrio.inference.predictor import Prediction, Predictor, Row

T = TypeVar("T")
PAGE = Path(__file__).parent / "page"
FILES = {  # of the page: route, file, media type
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
WARM_WORDS = (1, 8, 24, 80)  # of a text: the first pass at a new length is slow
RETRY = {"Retry-After": "1"}  # seconds
REASONS = {400: "no JSON", 404: "no such task", 408: "too slow", 413: "too much", 415: "not said to be JSON"}
REASONS |= {422: "not of the form that the task takes", 503: "too busy, or about to stop: see Retry-After"}


def build_app(predictor: Predictor, limits: Limits) -> FastAPI:
    """The server's application. It takes requests only once the model has answered a first one of each task.

    Args:
        predictor: the model.
        limits: what a request may ask for, and how requests are joined.
    """
    metrics = Metrics()
    batcher = Batcher(predictor.predict, limits.max_batch, limits.max_wait, limits.queue, metrics.batch)
    metrics.watch_waiting(lambda: batcher.waiting)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(warm, predictor)
        async with batcher:
            yield

    app = FastAPI(
        title="bertrio",
        version=__version__,
        description="Predictions of one model for several sentence tasks.",
        lifespan=lifespan,
        docs_url=None,  # its scripts come from elsewhere, which the policy refuses
        redoc_url=None,
        redirect_slashes=False,  # /predict/sst/ is a path that there is not, and the answer says so
    )
    app.add_middleware(Edge, metrics=metrics)
    app.add_exception_handler(Refused, _refuse)
    app.add_exception_handler(HTTPException, _refuse_route)
    _add_predict(app, predictor, batcher, limits)
    _add_facts(app, predictor, batcher, metrics)
    for path, (name, media_type) in FILES.items():
        _add_file(app, path, (PAGE / name).read_bytes(), media_type)
    return app


def warm(predictor: Predictor) -> None:
    """Predicts a few texts of several lengths for each task."""
    for name, task in predictor.tasks.items():
        for words in WARM_WORDS:
            text = " ".join(["film"] * words)
            predictor.predict(name, [text if task.kind == "single" else (text, text)])


def _add_predict(app: FastAPI, predictor: Predictor, batcher: Batcher, limits: Limits) -> None:
    # FastAPI parses no body here, and so has none to describe
    schema = {"anyOf": [model.model_json_schema() for model in BODIES.values()]}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}

    @app.post(
        "/predict/{task}",
        summary="Predictions for some rows of a task",
        response_model=Answers,
        responses={status: {"model": Refusal, "description": reason} for status, reason in REASONS.items()},
        openapi_extra={"requestBody": body},
    )
    async def predict(task: str, request: Request) -> Answers:
        if task not in predictor.tasks:
            raise Refused(404, "task", repr(shown(task)), f"one of {', '.join(predictor.tasks)}")
        rows = read_rows(await read_body(request, limits.max_bytes), predictor.tasks[task], limits)
        return Answers.of(task, await while_there(request, _predicted(batcher, task, rows)))


async def _predicted(batcher: Batcher, task: str, rows: list[Row]) -> list[Prediction]:
    """The predictions, or a refusal.

    Raises:
        Refused: with status 503, if there is no room or the server is about to end.
    """
    try:
        return await batcher.predict(task, rows)
    except Full as full:
        raise Refused(503, "server", f"{full.waiting} rows waiting", "fewer; try again in a second", RETRY) from None
    except Stopped:
        raise Refused(503, "server", "that it is about to stop", "another one; try again", RETRY) from None


async def while_there(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled if the client goes away. The request's body has been read.

    Raises:
        ClientDisconnect: if it does.
    """
    working, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _add_facts(app: FastAPI, predictor: Predictor, batcher: Batcher, metrics: Metrics) -> None:
    @app.get("/tasks", summary="The tasks of the model", response_model=Tasks)
    async def tasks() -> Tasks:
        return Tasks(tasks=[TaskFacts.of(task) for task in predictor.tasks.values()])

    @app.get(
        "/health",
        summary="Whether requests are answered",
        response_model=Health,
        responses={503: {"model": Health, "description": "not yet, or no more"}},
    )
    async def health(response: Response) -> Health:
        if batcher.running:
            return Health(status="ready")
        response.status_code = 503
        return Health(status="not ready")

    @app.get("/metrics", summary="Counts and times, for Prometheus", response_class=Response)
    async def numbers() -> Response:
        return Response(metrics.text(), media_type=metrics.content_type)


def _add_file(app: FastAPI, path: str, content: bytes, media_type: str) -> None:
    @app.get(path, include_in_schema=False)
    async def file() -> Response:
        return Response(content, media_type=media_type)


async def _refuse(request: Request, refused: Refused) -> JSONResponse:
    body = Refusal(error=str(refused), where=refused.where, found=refused.found, expected=refused.expected)
    return JSONResponse(body.model_dump(), refused.status, refused.headers)


async def _refuse_route(request: Request, error: HTTPException) -> JSONResponse:
    """For paths that there are none of, and methods that a path has not."""
    headers = dict(error.headers or {})
    expected = f"method {headers['Allow']}" if "Allow" in headers else "one of the paths in /openapi.json"
    found = f"{request.method} {shown(request.url.path)}"
    return await _refuse(request, Refused(error.status_code, "request", found, expected, headers))
