"""Encoders from the hub: the real client against a fake hub."""

import hashlib
import json

import pytest

from bertrio.core.errors import UserError
from bertrio.model.encoder import initial_transformer
from bertrio.model.names import PINNED, fetch_encoder, hub_origin
from bertrio.model.tokenizer import build_tokenizer, pinned
from tests.data.sources.conftest import Repository, client, serve
from tests.small_bert import save_bert

A, B = ("a" * 40, "b" * 40)  # commits


def encoder_files(folder, bias):
    """Return the files of a small BERT whose pooler has this bias, and a few unrelated files."""
    save_bert(folder, bias=bias)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return files | {"pytorch_model.bin": b"pickle", "own.py": b"code", "onnx/config.json": b"{}", "README.md": b"-"}


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    files = {commit: encoder_files(tmp_path_factory.mktemp("bert"), bias) for commit, bias in ((A, 1.0), (B, 2.0))}
    return Repository(files, {"main": A})


@pytest.fixture
def requests(repository, tmp_path):
    """Requests that reached the hub."""
    with serve({"org/bert": repository}) as (url, requests), client(url, tmp_path / "hub"):
        yield requests


@pytest.fixture
def encoder(default_params):
    """Return params of an encoder from the hub."""
    return lambda name="org/bert", **other: default_params.encoder.model_copy(update={"name": name, **other})


def test_tokenizer_and_weights_are_of_one_commit(requests, encoder, repository, tmp_path, monkeypatch):
    folder = tmp_path / "tokenizer"
    assert len(build_tokenizer(encoder(), [], folder)) == 7
    assert json.loads((folder / "source.json").read_text()) == {"id": "org/bert", "commit": A}
    monkeypatch.setitem(repository.refs, "main", B)
    params = pinned(encoder(), folder)
    model = initial_transformer(params, 7)
    assert model.pooler.dense.bias[0] == 1.0
    files = {name: hashlib.sha256(content).hexdigest() for name, content in repository.files[A].items()}
    loaded = {name: files[name] for name in files if name.endswith((".json", ".safetensors")) and "/" not in name}
    assert hub_origin(params.name, params.revision) == {"id": "org/bert", "commit": A, "files": loaded}
    assert not [line for line in requests if line.endswith((".bin", ".py", "onnx/config.json"))]
    model.save_pretrained(folder / "saved")
    assert str(tmp_path) not in (folder / "saved/config.json").read_text()


@pytest.mark.parametrize(("revision", "commit"), [(None, B), ("main", A)])
def test_commit_of_a_known_encoder_is_pinned(requests, monkeypatch, revision, commit):
    monkeypatch.setitem(PINNED, "org/bert", B)
    assert fetch_encoder("org/bert", revision).name == commit


@pytest.mark.parametrize(("name", "revision"), [("org/none", None), ("org/bert", "v9"), ("not an id", None)])
def test_missing_encoder_is_an_error(requests, encoder, tmp_path, name, revision):
    with pytest.raises(UserError, match=f"encoder.name: {name}: can't be loaded.*without a network"):
        build_tokenizer(encoder(name, revision=revision), [], tmp_path)
