"""A server on loopback with a fake model of known predictions."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any, NamedTuple

import pytest

from bertrio.core.tasks import Task, build_target
from bertrio.inference.predictor import Prediction
from tests.waiting import wait_until


class FakePredictor:
    """A fake model whose predictions follow from the length of the texts.

    The text `explode` raises an error. While `hold` is not set, predictions wait for it. `batches` collects task and
    rows of every call.
    """

    encoders = ("tiny",)

    def __init__(self, tasks: dict[str, Task]) -> None:
        self.tasks, self.batches = tasks, []
        self.hold, self.threads = threading.Event(), set()
        self.hold.set()

    def task(self, name: str) -> Task:
        return self.tasks[name]

    def predict(self, task: str, rows: list[Any]) -> list[Prediction]:
        self.batches.append((task, list(rows)))
        self.threads.add(threading.current_thread().name)
        assert self.hold.wait(20)
        texts = [text for row in rows for text in ([row] if isinstance(row, str) else row)]
        if "explode" in texts:
            raise RuntimeError("secret of the inside")
        return [self.answer(task, row) for row in rows]

    def answer(self, task: str, row: Any) -> Prediction:
        length = len(row) if isinstance(row, str) else sum(map(len, row))
        target = self.tasks[task].target
        if not target.discrete:
            return Prediction(min(length / 10, target.high), None, length / 10)
        count = getattr(target, "count", 2)
        shares = [0.5 / (count - 1)] * count
        shares[length % count] = 0.5
        return Prediction(length % count, tuple(shares), None, self.tasks[task].target.class_names[length % count])


TASKS = {
    "sst": Task("sst", "single", "cross", build_target("ordered", 5)),
    "qqp": Task("qqp", "pair", "cross", build_target("binary")),
    "sts": Task("sts", "pair", "cross", build_target("score", limits=(0.0, 5.0))),
    "nli": Task("nli", "pair", "bi", build_target("classes", ["entailed", "neutral", "contradicted"])),
}


@pytest.fixture
def predictor() -> FakePredictor:
    return FakePredictor(TASKS)


class Client(NamedTuple):
    """A client that sends each request over a new connection."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def send(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None):
        """Return status, headers and body of the response; JSON is parsed."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            content = response.read()
        is_json = response.getheader("content-type", "").startswith("application/json")
        return response.status, dict(response.getheaders()), json.loads(content) if is_json else content.decode()

    def get(self, path: str):
        return self.send("GET", path)

    def predict(self, task: str, rows: Any):
        """Return status and body of the response."""
        body = json.dumps({"rows": rows}).encode()
        status, _, answer = self.send("POST", f"/predict/{task}", body, {"content-type": "application/json"})
        return status, answer

    def metric(self, name: str) -> float:
        """Return the value of a metric, named with its labels; 0 if there is none."""
        _, _, text = self.get("/metrics")
        return next((float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(f"{name} ")), 0.0)


@contextmanager
def running(predictor: FakePredictor, **limits: Any) -> Iterator[Client]:
    """Run a server for `predictor` in a thread, on a free port of loopback, and check that it stops in time."""
    from bertrio.inference.serve.app import build_app
    from bertrio.inference.serve.limits import Limits
    from bertrio.inference.serve.server import bind, server_for

    with bind("127.0.0.1", 0) as bound:
        server = server_for(build_app(predictor, Limits(**limits)))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        wait_until(lambda: server.started or not thread.is_alive())
        assert server.started
        try:
            yield Client(bound.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A client of a server with default limits, shared by the tests of a module."""
    with running(FakePredictor(TASKS)) as client:
        yield client


@pytest.fixture
def served(predictor):
    """`served(**limits)`: serve the fake model until the test ends, and return a client."""
    with ExitStack() as stack:

        def serve(**limits: Any) -> Client:
            client = stack.enter_context(running(predictor, **limits))
            predictor.batches.clear()  # of the warm-up
            return client

        yield serve
        predictor.hold.set()
