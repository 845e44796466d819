"""A small finished run on disk, see tests/small_run.py."""

import pytest


@pytest.fixture
def finished(run):
    """A run of one member, up to its predictions."""
    run.train()
    run.combine()
    return run
