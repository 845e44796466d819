"""Each export has a card that the hub can parse and whose code runs; uploads go to a fake hub."""

import base64
import json
import re
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from huggingface_hub import ModelCard, constants

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
    """A member's folder in the models of a run, with the run's card."""
    shutil.copytree(models["mean"], tmp_path / "models/members/base")
    (tmp_path / "models/README.md").write_text(RUN)
    return tmp_path / "models/members/base"


@pytest.mark.parametrize("form", ["encoder", "classifier", "cross-encoder", "onnx", "sentence-transformer", "onnx-bi"])
def test_card_code_runs_and_metrics_are_those_of_the_run(run, bi_model, tmp_path, monkeypatch, capsys, form):
    task = {"encoder": None, "sentence-transformer": "sts", "onnx-bi": "sts"}.get(form, "qqp")
    export_model(bi_model if task == "sts" else run, tmp_path / "out", form.removesuffix("-bi"), task)
    card = ModelCard.load(tmp_path / "out/README.md")
    assert card.data.library_name in ("transformers", "sentence-transformers", "onnx") and card.data.pipeline_tag
    if task == "qqp":
        assert card.data.eval_results[0].metric_value == 0.75 and card.data.license == "apache-2.0"
        assert '{"0": "no", "1": "yes"}' in card.text and "| 0.750 |" in card.text and "By bertrio" not in card.text
        config = json.loads((tmp_path / "out/config.json").read_text())
        assert list(config["id2label"].values()) == (["yes"] if form == "cross-encoder" else ["no", "yes"])
    elif task == "sts":
        assert card.data.license == "unknown" and "did not lie beside the model" in card.text
    monkeypatch.chdir(tmp_path)
    exec(re.search(r"```python\n(.*?)```", card.text, re.DOTALL)[1], {})
    assert capsys.readouterr().out.strip()


def test_card_of_one_of_several_members_has_no_metrics(run, tmp_path):
    (run.parent / "second").mkdir()
    export_model(run, tmp_path / "out", "classifier", "qqp")
    card = ModelCard.load(tmp_path / "out/README.md")
    assert card.data.eval_results is None and "this is its member base" in card.text


class Hub(BaseHTTPRequestHandler):
    """A fake hub that records its requests: path, token and lines of JSON."""

    refuses = False

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        content = [json.loads(line) for line in body.splitlines()]
        self.server.requests.append((self.path, self.headers["Authorization"], content))
        url = f"http://127.0.0.1:{self.server.server_port}/me/qqp"
        modes = {"uploadMode": "regular", "shouldIgnore": False}
        files = [{"path": file["path"], **modes} for file in content[0].get("files", [])]
        answer = {"url": url, "files": files, "commitUrl": f"{url}/commit/1", "commitOid": "1", "success": True}
        self.send_response(403 if self.refuses else 200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps({"error": "no right to write"} if self.refuses else answer).encode())

    def do_GET(self):
        self.send_error(404)

    def log_message(self, *words):
        pass


@pytest.fixture
def hub(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.requests = []
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def push(model, to, *words):
    return main(["export", "--model", str(model), "--to", str(to), "--format", "classifier", "--task", "qqp", *words])


def test_export_is_uploaded_with_its_card(run, hub, tmp_path, capsys):
    assert push(run, tmp_path / "out", "--push-to-hub", "me/qqp", "--private") == 0
    assert f"uploaded it to {constants.ENDPOINT}/me/qqp" in capsys.readouterr().out
    requests = {path: content for path, _, content in hub.requests}
    assert {token for _, token, _ in hub.requests} == {"Bearer hf_secret"}
    assert requests["/api/repos/create"][0] == {"name": "qqp", "organization": "me", "visibility": "private"}
    files = {line["value"]["path"]: line["value"]["content"] for line in requests["/api/models/me/qqp/commit/main"][1:]}
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= set(files)
    card = base64.b64decode(files["README.md"]).decode()
    assert card == (tmp_path / "out/README.md").read_text() and 'model="me/qqp"' in card


@pytest.mark.parametrize(
    ("repository", "patched", "value", "message"),
    [
        ("me/qqp", "huggingface_hub.constants.HF_HUB_OFFLINE", True, "offline mode is enabled"),
        ("me/qqp", "huggingface_hub.utils._headers.get_token", lambda: None, "no token found"),
        ("me/qqp", "tests.inference.export.test_hub.Hub.refuses", True, "no right to write"),
        ("a/b/c", "huggingface_hub.constants.HF_HUB_OFFLINE", False, "a/b/c"),
    ],
)
def test_failed_uploads_name_the_reason(run, hub, tmp_path, monkeypatch, capsys, repository, patched, value, message):
    monkeypatch.setattr(patched, value)
    assert push(run, tmp_path / "out", "--push-to-hub", repository) == 2
    assert "was not uploaded (" in (error := capsys.readouterr().err) and message in error
    assert (tmp_path / "out/README.md").exists()
