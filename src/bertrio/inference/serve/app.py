"""Routes of the server."""

from __future__ import annotations

import reprlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException as StarletteHTTPException

from bertrio import __version__
from bertrio.core.errors import UserError
from bertrio.core.tasks import TARGETS, Task
from bertrio.inference.predictor import Predictor, text_table
from bertrio.inference.serve.batching import Batcher
from bertrio.inference.serve.limits import LimitMiddleware, Limits
from bertrio.inference.serve.metrics import Metrics
from bertrio.inference.serve.schemas import Answers, Refusal, Rows

PAGE = Path(__file__).parent / "page"
WARM_UP_WORDS = (1, 8, 24, 80)  # lengths of texts; the first pass at a new length is slow


def build_app(predictor: Predictor, limits: Limits, name: str = "models") -> FastAPI:
    """Build the application, which accepts requests once the model has predicted a few rows of each task.

    Args:
        predictor: the model.
        limits: limits of requests and batches.
        name: name of the model, for the page.
    """
    metrics = Metrics()
    batcher = Batcher(predictor.predict, limits, metrics)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        warm_up(predictor)
        async with batcher:
            yield

    app = FastAPI(
        title="bertrio",
        version=__version__,
        description="Predictions of one model for several sentence tasks.",
        lifespan=lifespan,
        docs_url=None,  # FastAPI's loads scripts from another host, which the security policy forbids
        redoc_url=None,
    )
    app.add_middleware(LimitMiddleware, metrics=metrics, limits=limits)
    _add_error_handlers(app, limits.max_rows)
    _add_predict(app, predictor, batcher, limits.max_rows)
    _add_facts(app, predictor, batcher, metrics, name)
    app.mount("/", StaticFiles(directory=PAGE, html=True))
    return app


def warm_up(predictor: Predictor) -> None:
    """Predict texts of several lengths for each task."""
    for name, task in predictor.tasks.items():
        for words in WARM_UP_WORDS:
            text = " ".join(["film"] * words)
            predictor.predict(name, [text if task.kind == "single" else (text, text)])


def _add_predict(app: FastAPI, predictor: Predictor, batcher: Batcher, max_rows: int) -> None:
    refusals: dict[int | str, Any] = {status: {"model": Refusal} for status in (400, 404, 408, 413, 422, 503)}

    @app.post("/predict/{task}", summary="Predict rows of a task", response_model=Answers, responses=refusals)
    async def predict(task: str, body: Rows) -> dict[str, Any]:
        if task not in predictor.tasks:
            raise HTTPException(404, f"task: found {reprlib.repr(task)}, expected one of {', '.join(predictor.tasks)}")
        if len(body.rows) > max_rows:
            raise HTTPException(422, f"rows: found {len(body.rows)}, expected {max_rows} at most in one request")
        try:
            text_table(predictor.tasks[task].text_columns, body.rows)
        except UserError as error:
            raise HTTPException(422, str(error)) from None
        return {"task": task, "predictions": await batcher.predict(task, body.rows)}  # FastAPI converts it to `Answers`

    @app.get("/predict/{task}", include_in_schema=False)
    async def refuse() -> None:
        raise HTTPException(405, "use POST", headers={"Allow": "POST"})


def _add_facts(app: FastAPI, predictor: Predictor, batcher: Batcher, metrics: Metrics, name: str) -> None:
    @app.get("/tasks", summary="The model and its tasks")
    async def tasks() -> dict[str, Any]:
        model = {"name": name, "encoders": predictor.encoders}
        return {"model": model, "tasks": [_facts(task) for task in predictor.tasks.values()]}

    @app.get("/docs", include_in_schema=False)
    async def docs() -> FileResponse:
        return FileResponse(PAGE / "docs.html")

    @app.get("/health", summary="State of the server: ready, or 503")
    async def health(response: Response) -> dict[str, str]:
        response.status_code = 200 if batcher.running else 503
        return {"status": "ready" if batcher.running else "not ready"}

    @app.get("/metrics", summary="Counts and times, for Prometheus", response_class=Response)
    async def read_metrics() -> Response:
        metrics.waiting_rows.set(batcher.waiting)
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _facts(task: Task) -> dict[str, Any]:
    """Return a description of a task; fields that do not apply (classes and their names, a range) are None."""
    target = task.target
    return {
        **{name: getattr(task, name) for name in ("name", "kind", "encoding")},
        "target": next(name for name, kind in TARGETS.items() if kind is type(target)),
        "labels": list(target.class_names) or None,
        **{name: getattr(target, name, None) for name in ("count", "low", "high")},
    }


def _add_error_handlers(app: FastAPI, max_rows: int) -> None:
    expected = f'{{"rows": [...]}} with 1 to {max_rows} rows, each a text or a list of two texts'

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return JSONResponse({"error": f"body: is not valid JSON ({first['ctx']['error']})"}, 422)
        place = "".join(f"[{part}]" if isinstance(part, int) else part for part in first["loc"][1:3]) or "body"
        found = f"{place}: found {reprlib.repr(first['input'])}"
        return JSONResponse({"error": f"{found}; expected {expected}, with Content-Type: application/json"}, 422)

    @app.exception_handler(StarletteHTTPException)
    async def refused(request: Request, error: StarletteHTTPException) -> JSONResponse:
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)
