"""Routes of the server."""

from __future__ import annotations

import asyncio
import reprlib
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect

from bertrio import __version__
from bertrio.core.tasks import Task
from bertrio.inference.serve.batching import Batcher, Unavailable
from bertrio.inference.serve.edge import GONE, HEADERS, Edge
from bertrio.inference.serve.metrics import Metrics
from bertrio.inference.serve.schemas import Answers, Health, Limits, Refusal, TaskFacts, Tasks, rows_model

if TYPE_CHECKING:
    from bertrio.inference.predictor import Predictor

T = TypeVar("T")
PAGE = Path(__file__).parent / "page"
PAGE_FILES = {"/": "index.html", "/page.css": "page.css", "/page.js": "page.js"}
WARM_UP_WORDS = (1, 8, 24, 80)  # lengths of texts; the first pass at a new length is slow
REASONS = {400: "no JSON", 408: "too slow", 413: "too many bytes", 422: "not the rows that the task takes"}
REASONS |= {503: "too busy, or about to stop: see Retry-After"}


def build_app(predictor: Predictor, limits: Limits) -> FastAPI:
    """Build the application. It takes requests once the model has predicted a few rows of each task.

    Args:
        predictor: the model.
        limits: limits of requests and batches.
    """
    metrics = Metrics()
    batcher = Batcher(predictor.predict, limits.max_batch, limits.max_wait, limits.queue, metrics.batch)
    metrics.watch_waiting(lambda: batcher.waiting)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(warm_up, predictor)
        async with batcher:
            yield

    app = FastAPI(
        title="bertrio",
        version=__version__,
        description="Predictions of one model for several sentence tasks.",
        lifespan=lifespan,
        docs_url=None,  # its scripts come from another host, which the policy refuses
        redoc_url=None,
        redirect_slashes=False,
    )
    app.add_middleware(Edge, metrics=metrics, max_bytes=limits.max_bytes)
    _add_error_handlers(app)
    models = {kind: rows_model(kind, limits) for kind in ("single", "pair")}
    for task in predictor.tasks.values():
        _add_predict(app, batcher, task, models[task.kind])

    @app.post("/predict/{task}", include_in_schema=False)
    async def unknown_task(task: str) -> None:
        raise HTTPException(404, f"task: found {reprlib.repr(task)}, expected one of {', '.join(predictor.tasks)}")

    _add_facts(app, predictor, batcher, metrics)
    for path, name in PAGE_FILES.items():
        _add_file(app, path, PAGE / name)
    return app


def warm_up(predictor: Predictor) -> None:
    """Predict texts of several lengths for each task."""
    for name, task in predictor.tasks.items():
        for words in WARM_UP_WORDS:
            text = " ".join(["film"] * words)
            predictor.predict(name, [text if task.kind == "single" else (text, text)])


def _add_predict(app: FastAPI, batcher: Batcher, task: Task, model: Any) -> None:
    async def predict(request: Request, body: Any) -> dict[str, Any]:
        predictions = await cancel_on_disconnect(request, batcher.predict(task.name, body.rows))
        return {"task": task.name, "predictions": predictions}  # FastAPI makes `Answers` of it

    predict.__annotations__["body"] = model  # FastAPI validates by it
    app.post(
        f"/predict/{task.name}",
        summary=f"Predict rows of task {task.name}",
        response_model=Answers,
        responses={status: {"model": Refusal, "description": reason} for status, reason in REASONS.items()},
    )(predict)


async def cancel_on_disconnect(request: Request, work: Awaitable[T]) -> T:
    """Return the result of `work`, which is cancelled if the client disconnects. The body has been read.

    Raises:
        ClientDisconnect: if it does.
    """

    async def disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(disconnect())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()


def _add_facts(app: FastAPI, predictor: Predictor, batcher: Batcher, metrics: Metrics) -> None:
    @app.get("/tasks", summary="Tasks of the model")
    async def tasks() -> Tasks:
        return Tasks(tasks=[TaskFacts.of(task) for task in predictor.tasks.values()])

    @app.get("/health", summary="State of the server", responses={503: {"model": Health, "description": "not ready"}})
    async def health(response: Response) -> Health:
        response.status_code = 200 if batcher.running else 503
        return Health(status="ready" if batcher.running else "not ready")

    @app.get("/metrics", summary="Counts and times, for Prometheus", response_class=Response)
    async def read_metrics() -> Response:
        return Response(metrics.text(), media_type=metrics.content_type)


def _add_file(app: FastAPI, path: str, file: Path) -> None:
    @app.get(path, include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(file)


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return JSONResponse({"error": f"body: no JSON ({first['ctx']['error']})"}, 400)
        place = "".join(f"[{part}]" if isinstance(part, int) else str(part) for part in first["loc"][1:]) or "body"
        return JSONResponse({"error": f"{place}: {first['msg']}; found {reprlib.repr(first['input'])}"}, 422)

    @app.exception_handler(StarletteHTTPException)
    async def refused(request: Request, error: StarletteHTTPException) -> JSONResponse:
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    @app.exception_handler(Unavailable)
    async def unavailable(request: Request, error: Unavailable) -> JSONResponse:
        return JSONResponse({"error": f"{error}; try again in a second"}, 503, {"Retry-After": "1"})

    @app.exception_handler(ClientDisconnect)
    async def disconnected(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=GONE)  # nobody reads it

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> JSONResponse:  # uvicorn logs the error
        return JSONResponse({"error": "an error of the server"}, 500, HEADERS)
