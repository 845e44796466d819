"""A small finished run on disk, see tests/small_run.py."""

import pytest

from tests.small_run import Run


@pytest.fixture
def run(tmp_path, root, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Run(tmp_path, root / "params.yaml")


@pytest.fixture
def finished(run):
    """A run of one member, up to its predictions."""
    run.train()
    run.combine()
    return run
