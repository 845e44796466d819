"""That the load test runs as a whole, and that its arrivals are those of an open loop."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import subprocess
import sys
import time

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")
pytest.importorskip("prometheus_client", reason="needs the extra serve")

import numpy as np

from tests.inference.serve.conftest import TASKS, FakePredictor, running

TINY = ["--hidden", "16", "--layers", "1", "--rows", "24", "--device", "cpu", "--max-length", "32"]


@pytest.fixture
def serving(root, monkeypatch):
    """The benchmark as a module; its neighbours are found as they are when it is run."""
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    yield importlib.import_module("serving")
    for name in ("serving", "case", "common"):
        sys.modules.pop(name, None)


def test_arrivals_are_as_many_as_asked_in_order_and_the_same_each_time(serving):
    due = serving.arrivals(50, 10, 1)
    assert len(due) == 500 and (np.diff(due) >= 0).all() and due[0] >= 0 and due[-1] <= 10
    np.testing.assert_array_equal(due, serving.arrivals(50, 10, 1))
    assert abs(np.diff(due).std() / np.diff(due).mean() - 1) < 0.15  # as independent clients come


def test_requests_do_not_wait_for_each_other_and_latency_counts_from_when_they_were_due(serving):
    """A server that stands still for half a second: none is sent late, and all tell of it."""
    from bertrio.inference.serve.app import build_app
    from bertrio.inference.serve.schemas import Limits

    class Slow(FakePredictor):
        def predict(self, task, rows):
            time.sleep(0.5 if "stop" in rows else 0)
            return super().predict(task, rows)

    with running(build_app(Slow(TASKS), Limits(max_wait=0))) as client:
        due = np.array([0.0, 0.1, 0.2, 0.3])
        outcomes, dropped, lag = asyncio.run(serving.bombard(client.port, "sst", ["stop", "a", "b", "c"], due))
    assert [of.status for of in outcomes] == [200] * 4 and dropped == 0 and lag < 100
    longest = sorted((of.latency for of in outcomes), reverse=True)
    assert longest[0] >= 500 and longest[1] >= 300 and longest[3] >= 100


def test_errors_and_requests_that_could_not_be_sent_are_counted(serving, monkeypatch):
    from bertrio.inference.serve.app import build_app
    from bertrio.inference.serve.schemas import Limits

    with running(build_app(FakePredictor(TASKS), Limits())) as client:
        outcomes, _, _ = asyncio.run(serving.bombard(client.port, "sst", ["a", "explode"], np.zeros(4)))
        assert sorted(of.status for of in outcomes) == [200, 200, 500, 500]
        with monkeypatch.context() as patch:
            patch.setattr(serving, "IN_FLIGHT", 0)
            assert asyncio.run(serving.bombard(client.port, "sst", ["a"], np.zeros(4)))[:2] == ([], 4)
    (gone,), _, _ = asyncio.run(serving.bombard(client.port, "sst", ["a"], np.zeros(1)))
    assert gone.status is None


@pytest.mark.heavy
def test_it_runs_as_a_whole(root, tmp_path):
    command = [sys.executable, "benchmarks/serving.py", *TINY, "--rates", "5", "--seconds", "2", "--threads", "1"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], cwd=root, capture_output=True, text=True, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr
    (case,) = json.loads((tmp_path / "serving.json").read_text())["cases"]
    (run,) = case["runs"]
    assert run["rows"] == 10 and run["errors"] == run["dropped"] == 0
    assert 0 < run["p50_ms"] <= run["p99_ms"] <= run["max_ms"]
    assert "| 5 requests/s |" in (tmp_path / "serving.md").read_text()
