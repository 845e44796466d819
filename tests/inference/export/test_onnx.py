"""The graph computes what the model computes, in batches of every size and length, in any ONNX runtime."""

import json

import numpy as np
import pytest
import torch

pytest.importorskip("onnx", reason="needs the extra onnx")
pytest.importorskip("onnxscript", reason="needs the extra onnx")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")

from bertrio.inference.export.export import export_model  # noqa: E402
from bertrio.inference.export.onnx import expected_answers, quantize, read_graph  # noqa: E402
from bertrio.inference.export.source import Source  # noqa: E402

pytestmark = pytest.mark.heavy  # the exporter takes many seconds
SHAPES = [(1, 1), (1, 24), (2, 7), (33, 3)]


@pytest.fixture(scope="module")
def exported(models, apart, tmp_path_factory):
    """By task, its graph's folder and the model: sst of single sentences, sts of pairs encoded apart."""
    folders = tmp_path_factory.mktemp("onnx")
    found = {}
    for task, model in (("sst", models["mean"]), ("sts", apart)):
        export_model(model, folders / task, "onnx", task)
        found[task] = folders / task, Source.open(model)
    return found


def tokens(batch, length, fields, seed):
    """Random tokens, the first row half of them padding."""
    ids = torch.randint(5, 60, (batch, length), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    mask[0, -(-length // 2) :] = 0
    values = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    return {field: values[field] for field in fields}


def run(folder, texts):
    """What onnxruntime says of the tokens of one text, or of two."""
    about = json.loads((folder / "export.json").read_text())
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    values = [value.numpy() for text in texts for value in text.values()]
    return session.run([about["output"]], dict(zip(about["inputs"], values, strict=True)))[0]


@pytest.mark.parametrize(("batch", "length"), SHAPES)
def test_probabilities_are_the_models_at_every_shape(exported, batch, length):
    folder, source = exported["sst"]
    text = tokens(batch, length, source.fields, seed=batch)
    with torch.inference_mode():
        outputs = source.model("sst", (text,)).outputs
    expected = source.tasks["sst"].target.predict(outputs.double().numpy()).probabilities
    np.testing.assert_allclose(run(folder, [text]), expected, atol=1e-4)


@pytest.mark.parametrize(("batch", "length"), SHAPES)
def test_two_texts_apart_may_differ_in_length(exported, batch, length):
    folder, source = exported["sts"]
    texts = tokens(batch, length, source.fields, seed=1), tokens(batch, 25 - length, source.fields, seed=2)
    with torch.inference_mode():
        outputs = source.model("sts", texts).outputs
    expected = source.tasks["sts"].target.predict(outputs.double().numpy()).values
    np.testing.assert_allclose(run(folder, texts), expected, atol=1e-4)


def test_eight_bits_are_smaller_and_near(exported, models, tmp_path):
    folder, source = exported["sst"]
    task, rows = source.tasks["sst"], source.probes(source.tasks["sst"])
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    quantize(tmp_path)
    before, after = ((where / "model.onnx").stat().st_size for where in (folder, tmp_path))
    assert after < before
    found = read_graph(source, task, tmp_path, rows)
    assert 0 < (found - expected_answers(source, task, rows)).abs().max() < 0.05
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in folder.iterdir())


def test_the_graph_says_nothing_of_where_it_was_made(exported, root):
    for folder, _ in exported.values():
        raw = (folder / "model.onnx").read_bytes()
        assert str(root).encode() not in raw
        assert b"site-packages" not in raw


@pytest.mark.slow
def test_the_same_model_gives_the_same_bytes(exported, models, tmp_path):
    export_model(models["mean"], tmp_path / "out", "onnx", "sst")
    assert (tmp_path / "out/model.onnx").read_bytes() == (exported["sst"][0] / "model.onnx").read_bytes()


@pytest.mark.slow
@pytest.mark.shared
def test_minilm_and_its_eight_bits(make_model, shared, tmp_path):
    folder = make_model(encoder={"name": str(shared / "models/all-MiniLM-L6-v2")})
    assert export_model(folder, tmp_path / "out", "onnx", "qqp", int8=True).difference < 0.1
    assert (tmp_path / "out/model.onnx").stat().st_size < 25e6
