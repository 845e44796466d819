"""The ONNX graph gives the outputs of the model, for batches of any size and length."""

import json
import shutil

import numpy as np
import pytest
import torch

pytest.importorskip("onnx", reason="needs the extra onnx")
pytest.importorskip("onnxscript", reason="needs the extra onnx")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")

from bertrio.inference.export.export import export_model  # noqa: E402
from bertrio.inference.export.onnx import quantize  # noqa: E402

pytestmark = pytest.mark.heavy  # the exporter takes many seconds


@pytest.fixture(scope="module")
def exported(models, bi_model, load, tmp_path_factory):
    """By task, the folder of the graph and the model: sst of single sentences, sts of bi-encoded pairs."""
    folders = tmp_path_factory.mktemp("onnx")
    for task, model in (("sst", models["mean"]), ("sts", bi_model)):
        export_model(model, folders / task, "onnx", task)
    return {"sst": (folders / "sst", load(models["mean"])), "sts": (folders / "sts", load(bi_model))}


def tokens(batch, length, seed):
    """Random tokens; half of the first row is padding."""
    ids = torch.randint(5, 60, (batch, length), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    mask[0, -(-length // 2) :] = 0
    return {"input_ids": ids, "token_type_ids": torch.zeros_like(ids), "attention_mask": mask}


def run(folder, texts, output=None):
    """Run onnxruntime on the tokens of one text or two; return the predictions or another output."""
    about = json.loads((folder / "export.json").read_text())
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    sides = ("",) if len(texts) == 1 else ("_a", "_b")
    feed = {name + side: value.numpy() for side, text in zip(sides, texts) for name, value in text.items()}
    assert set(about["inputs"]) == set(feed)
    return session.run([output or about["output"]], feed)[0]


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (1, 24), (2, 7), (33, 3)])
def test_predictions_match_the_model_at_every_shape(exported, batch, length):
    for task, lengths in (("sst", [length]), ("sts", [length, 25 - length])):
        folder, model = exported[task]
        texts = tuple(tokens(batch, size, seed=size) for size in lengths)
        with torch.inference_mode():
            outputs = model.network(task, texts).outputs
        expected = model.tasks[task].target.predict(outputs.double().numpy())
        values = expected.values if expected.probabilities is None else expected.probabilities
        np.testing.assert_allclose(run(folder, texts), values, atol=1e-4)
        np.testing.assert_allclose(run(folder, texts, "logits"), outputs, atol=1e-4)


def test_int8_is_smaller_and_close(exported, tmp_path):
    folder, _ = exported["sst"]
    shutil.copytree(folder, tmp_path / "int8")
    quantize(tmp_path / "int8")
    assert (tmp_path / "int8/model.onnx").stat().st_size < (folder / "model.onnx").stat().st_size
    text = [tokens(8, 12, seed=0)]
    assert 0 < np.abs(run(folder, text) - run(tmp_path / "int8", text)).max() < 0.05


def test_graph_holds_no_local_paths(exported, root):
    for folder, _ in exported.values():
        raw = (folder / "model.onnx").read_bytes()
        assert str(root).encode() not in raw and b"site-packages" not in raw


@pytest.mark.slow
@pytest.mark.shared
def test_minilm_in_int8(make_model, shared, tmp_path):
    folder = make_model(encoder={"name": str(shared / "models/all-MiniLM-L6-v2")})
    assert export_model(folder, tmp_path / "out", "onnx", "qqp", int8=True) < 0.1
    assert (tmp_path / "out/model.onnx").stat().st_size < 25e6
