"""Each export has a card that the hub reads and whose code runs; uploads are what the hub's client is asked for."""

import json
import re
import shutil
from unittest.mock import ANY, Mock, call

import pytest
from huggingface_hub import ModelCard, RepoUrl, constants
from huggingface_hub.errors import HfHubHTTPError

from bertrio.cli.main import main
from bertrio.inference.export.export import export_model

pytest.importorskip("sentence_transformers", reason="needs the extra sentence-transformers")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")

RUN = """---
license: apache-2.0
library_name: bertrio
model-index:
- name: bertrio
  results:
  - task: {type: text-classification, name: qqp}
    dataset: {name: rows, type: rows, split: dev}
    metrics: [{type: accuracy, value: 0.75}]
---

# bertrio

| qqp | accuracy | 0.750 |

## How to load

By bertrio.
"""


@pytest.fixture
def run(models, tmp_path):
    """The folder models of a run: a member, and the run's card."""
    shutil.copytree(models["mean"], tmp_path / "models/members/base")
    (tmp_path / "models/README.md").write_text(RUN)
    return tmp_path / "models/members/base"


@pytest.mark.parametrize(
    "format", ["encoder", "classifier", "cross-encoder", "onnx", "sentence-transformer", "onnx-bi"]
)
def test_a_card_says_how_to_load_the_export_and_what_the_run_measured(
    run, apart, tmp_path, monkeypatch, capsys, format
):
    task = {"encoder": None, "sentence-transformer": "sts", "onnx-bi": "sts"}.get(format, "qqp")
    export_model(apart if task == "sts" else run, tmp_path / "out", format.removesuffix("-bi"), task)
    card = ModelCard.load(tmp_path / "out/README.md")
    assert card.data.library_name in ("transformers", "sentence-transformers", "onnx") and card.data.pipeline_tag
    if task == "qqp":
        assert card.data.eval_results[0].metric_value == 0.75 and card.data.license == "apache-2.0"
        assert '{"0": "no", "1": "yes"}' in card.text and "| 0.750 |" in card.text and "By bertrio" not in card.text
        config = json.loads((tmp_path / "out/config.json").read_text())
        assert list(config["id2label"].values()) == (["yes"] if format == "cross-encoder" else ["no", "yes"])
    elif task == "sts":
        assert card.data.license == "unknown" and "did not lie beside the model" in card.text
    monkeypatch.chdir(tmp_path)
    exec(re.search(r"```python\n(.*?)```", card.text, re.DOTALL)[1], {})
    assert capsys.readouterr().out.strip()


def test_of_one_of_several_members_the_card_claims_no_figures(run, tmp_path):
    (run.parent / "second").mkdir()
    export_model(run, tmp_path / "out", "classifier", "qqp")
    card = ModelCard.load(tmp_path / "out/README.md")
    assert card.data.eval_results is None and "this is its member base" in card.text


def push(model, to, *words):
    return main(["export", "--model", str(model), "--to", str(to), "--format", "classifier", "--task", "qqp", *words])


def test_an_export_is_uploaded_with_its_card(run, tmp_path, monkeypatch, capsys):
    client = Mock()
    client.return_value.create_repo.return_value = RepoUrl("https://huggingface.co/me/qqp")
    monkeypatch.setattr("huggingface_hub.HfApi", client)
    assert push(run, tmp_path / "out", "--push-to-hub", "me/qqp", "--private") == 0
    assert "uploaded it to https://huggingface.co/me/qqp" in capsys.readouterr().out
    assert client.mock_calls == [
        call(token=True),
        call().create_repo("me/qqp", private=True, exist_ok=True),
        call().upload_folder(repo_id="me/qqp", folder_path=str(tmp_path / "out"), commit_message=ANY),
    ]
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= files
    assert 'model="me/qqp"' in (tmp_path / "out/README.md").read_text()


REFUSED = Mock(side_effect=HfHubHTTPError("no right to write", response=Mock()))


@pytest.mark.parametrize(
    ("repository", "patched", "value", "message"),
    [
        ("me/qqp", "huggingface_hub.constants.HF_HUB_OFFLINE", True, "offline mode is enabled"),
        ("me/qqp", "huggingface_hub.utils._headers.get_token", lambda: None, "no token found"),
        ("me/qqp", "huggingface_hub.HfApi.create_repo", REFUSED, "no right to write"),
        ("a/b/c", "huggingface_hub.constants.HF_HUB_OFFLINE", False, "a/b/c"),
    ],
)
def test_why_nothing_is_uploaded_is_said(run, tmp_path, monkeypatch, capsys, repository, patched, value, message):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(patched, value)
    assert push(run, tmp_path / "out", "--push-to-hub", repository) == 2
    assert "was not uploaded (" in (error := capsys.readouterr().err) and message in error
    assert (tmp_path / "out/README.md").exists()
