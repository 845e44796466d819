"""What is exported loads with sentence-transformers alone, and says what the model says."""

import pytest
import torch

sentence_transformers = pytest.importorskip("sentence_transformers", reason="needs the extra sentence-transformers")

from bertrio.core.errors import UserError  # noqa: E402
from bertrio.inference.export.export import export_model  # noqa: E402
from bertrio.inference.export.source import Source  # noqa: E402

TEXTS = ["a good film", "bad", "why is this the question ? the film is good", "a bad question " * 20]
PAIRS = list(zip(TEXTS, TEXTS[1:] + TEXTS[:1]))
POOLINGS = ("cls", "mean", "pooler")


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_cross_encoder_gives_scores_and_probabilities_of_yes(models, tmp_path, pooling):
    source = Source.open(models[pooling])
    for task in ("sts", "qqp"):
        export_model(models[pooling], tmp_path / task, "cross-encoder", task)
        outputs = source.outputs(source.tasks[task], PAIRS)[:, 0]
        expected = outputs.sigmoid() if task == "qqp" else outputs
        model = sentence_transformers.CrossEncoder(str(tmp_path / task), device="cpu")
        assert torch.allclose(torch.from_numpy(model.predict(PAIRS)), expected, atol=1e-5)


def test_a_cross_encoder_gives_the_logits_of_classes_and_has_hidden_layers(make_model, tmp_path):
    deep = {"head": "mlp", "head_options": {"depth": 2, "width": 12, "activation": "gelu"}}
    task = {"kind": "pair", "target": "classes", "classes": 3, "encoding": "cross", "loss": "cross_entropy",
            "range": None} | deep  # fmt: skip
    folder = make_model(tasks={"sts": task})
    export_model(folder, tmp_path / "out", "cross-encoder", "sts")
    source = Source.open(folder)
    model = sentence_transformers.CrossEncoder(str(tmp_path / "out"), device="cpu")
    found = torch.from_numpy(model.predict(PAIRS))
    assert found.shape == (4, 3)
    assert torch.allclose(found, source.outputs(source.tasks["sts"], PAIRS), atol=1e-5)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("projection", [False, True])
def test_cosines_of_vectors_are_those_that_the_head_compares(make_model, tmp_path, pooling, projection):
    options = {"scaling": "affine", "projection": projection, "activation": "leaky_relu"}
    apart = {"encoding": "bi", "head": "cosine", "head_options": options}
    folder = make_model(tasks={"sts": apart}, encoder={"pooling": pooling})
    export_model(folder, tmp_path / "out", "sentence-transformer", "sts")
    source = Source.open(folder)
    model = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    first, second = (model.encode(list(texts), convert_to_tensor=True) for texts in zip(*PAIRS))
    with torch.inference_mode():
        cosines = source.model("sts", source.tokens(source.tasks["sts"], PAIRS)).cosine
    assert torch.allclose(model.similarity_pairwise(first, second), cosines, atol=1e-5)
    assert torch.allclose(first, source.vectors(source.tasks["sts"], list(next(zip(*PAIRS)))), atol=1e-5)


def test_what_compares_no_vectors_is_refused_with_the_reason(models, apart, tmp_path):
    for folder, format, task, message in (
        (models["mean"], "sentence-transformer", "sts", "reads both texts of a pair together"),
        (models["mean"], "sentence-transformer", "sst", "reads one text"),
        (models["mean"], "cross-encoder", "sst", "reads single sentences"),
        (apart, "cross-encoder", "sts", "encodes the texts of a pair apart"),
    ):
        with pytest.raises(UserError, match=f"task {task}: {message}"):
            export_model(folder, tmp_path / "out", format, task)
    assert not list(tmp_path.iterdir())


@pytest.mark.shared
def test_minilm_as_a_sentence_transformer(make_model, shared, tmp_path):
    apart = {"encoding": "bi", "head": "cosine", "head_options": {"scaling": "relu"}}
    folder = make_model(tasks={"sts": apart}, encoder={"name": str(shared / "models/all-MiniLM-L6-v2")})
    assert export_model(folder, tmp_path / "out", "sentence-transformer", "sts").difference < 1e-5
