"""The load test benchmarks/serving.py runs."""

import json
import subprocess

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")

TINY = "--hidden 16 --layers 1 --rows 24 --device cpu --max-length 32 --rates 5 --seconds 2 --threads 1 --hostile"


@pytest.mark.slow
def test_load_test_runs(root, tmp_path, warm):
    command = [warm.python, "benchmarks/serving.py", *TINY.split(), "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    cases = json.loads((tmp_path / "serving.json").read_text())["cases"]
    assert [case["name"] for case in cases] == ["5 requests/s, own connections", "5 requests/s, kept connections"]
    for (run,) in (case["runs"] for case in cases):
        assert run["rows"] == 10 and run["errors"] == run["dropped"] == 0
        assert 0 < run["p50_ms"] <= run["p99_ms"] <= run["max_ms"]
    assert "| 5 requests/s, own connections |" in (tmp_path / "serving.md").read_text()
