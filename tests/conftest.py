"""What all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def shared() -> Path:
    """The folder of real data and models: BERTRIO_SHARED, or `../shared` beside the repository."""
    folder = Path(os.environ.get("BERTRIO_SHARED", ROOT.parent / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip(f"there is no folder {folder / 'data'}; set BERTRIO_SHARED to the one that holds data/cs224n")
    return folder


@pytest.fixture
def root() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def default_params():
    """The project's own params.yaml."""
    from bertrio.params import load_params

    return load_params(ROOT / "params.yaml")


@pytest.fixture(scope="session")
def default_tasks(default_params):
    """The tasks of params.yaml."""
    from bertrio.params import build_tasks

    return build_tasks(default_params)


@pytest.fixture(scope="session")
def tokenizer(default_params, tmp_path_factory):
    """A small WordPiece tokenizer."""
    from bertrio.model.tokenizer import build_tokenizer

    texts = ["a good film", "a bad film", "why is this a good question", "the question is bad"] * 5
    return build_tokenizer(default_params.encoder, texts, tmp_path_factory.mktemp("tokenizer"))
