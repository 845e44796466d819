"""Fixtures shared by all tests."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.linear_heads import LINEAR_HEADS
from tests.warm_python import WarmPython

ROOT = Path(__file__).resolve().parent.parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run slow files first, so that no worker is left with one of them at the end."""
    heavy = {item.path for item in items if item.get_closest_marker("heavy")}
    items.sort(key=lambda item: item.path not in heavy)


@pytest.fixture(scope="session", autouse=True)
def isolated(tmp_path_factory) -> Iterator[None]:
    """Keep checkpoints in a temporary folder and skip os.fsync; tests of syncing patch os.fsync themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERTRIO_CHECKPOINTS", str(tmp_path_factory.mktemp("checkpoints")))
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> Iterator[None]:
    """Handle signals that the parent ignores (under `nohup`, or in the background), since children inherit SIG_IGN."""
    numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
    ignored = [number for number in numbers if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, lambda *_: None)  # exec resets a handler, but keeps SIG_IGN
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture(scope="session")
def warm(tmp_path_factory) -> Iterator[WarmPython]:
    """The commands `python` and `dvc` with the libraries already imported."""
    warm = WarmPython(tmp_path_factory.mktemp("warm"))
    yield warm
    warm.close()


@pytest.fixture
def shared() -> Path:
    """The folder of real data and models: BERTRIO_SHARED, or `../shared` next to the repository."""
    folder = Path(os.environ.get("BERTRIO_SHARED", ROOT.parent / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip(f"there is no folder {folder / 'data'}; set BERTRIO_SHARED to the one that holds data/cs224n")
    return folder


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture
def run(tmp_path, root, monkeypatch):
    """A small run in the current directory, see tests/small_run.py."""
    from tests.small_run import Run

    monkeypatch.chdir(tmp_path)
    return Run(tmp_path, root / "params.yaml")


@pytest.fixture(scope="session")
def default_params():
    """The project's params.yaml with linear heads."""
    from bertrio.config import merged, read_yaml
    from bertrio.config.loading import validate_params

    return validate_params(merged(read_yaml(ROOT / "params.yaml"), LINEAR_HEADS), "params.yaml")


@pytest.fixture(scope="session")
def default_tasks(default_params):
    """The tasks of params.yaml."""
    from bertrio.config import build_tasks

    return build_tasks(default_params)


@pytest.fixture(scope="session")
def tokenizer_folder(default_params, tmp_path_factory):
    """The folder of a small WordPiece tokenizer."""
    from bertrio.model.tokenizer import build_tokenizer

    texts = ["a good film", "a bad film", "why is this a good question", "the question is bad"] * 5
    folder = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer(default_params.encoder, texts, folder)
    return folder


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder):
    """A small WordPiece tokenizer."""
    from bertrio.model.tokenizer import load_tokenizer

    return load_tokenizer(tokenizer_folder)
