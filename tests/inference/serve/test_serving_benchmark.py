"""The load test runs as a whole."""

from __future__ import annotations

import json
import subprocess

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")
pytest.importorskip("prometheus_client", reason="needs the extra serve")

TINY = ["--hidden", "16", "--layers", "1", "--rows", "24", "--device", "cpu", "--max-length", "32"]


@pytest.mark.heavy
def test_it_runs_as_a_whole(root, tmp_path, warm):
    command = [warm.python, "benchmarks/serving.py", *TINY, "--rates", "5", "--seconds", "2", "--threads", "1"]
    done = subprocess.run([*command, "--out", str(tmp_path)], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (case,) = json.loads((tmp_path / "serving.json").read_text())["cases"]
    (run,) = case["runs"]
    assert run["rows"] == 10 and run["errors"] == run["dropped"] == 0
    assert 0 < run["p50_ms"] <= run["p99_ms"] <= run["max_ms"]
    assert "| 5 requests/s |" in (tmp_path / "serving.md").read_text()
