"""That the load test runs as a whole, and that its arrivals are those of an open loop."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")
pytest.importorskip("prometheus_client", reason="needs the extra serve")

import numpy as np

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


@pytest.mark.heavy
def test_it_runs_as_a_whole(root, tmp_path, warm):
    command = [warm.python, "benchmarks/serving.py", *TINY, "--rates", "5", "--seconds", "2", "--threads", "1"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], cwd=root, capture_output=True, text=True, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr
    (case,) = json.loads((tmp_path / "serving.json").read_text())["cases"]
    (run,) = case["runs"]
    assert run["rows"] == 10 and run["errors"] == run["dropped"] == 0
    assert 0 < run["p50_ms"] <= run["p99_ms"] <= run["max_ms"]
    assert "| 5 requests/s |" in (tmp_path / "serving.md").read_text()
