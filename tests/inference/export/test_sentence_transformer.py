"""Exports load with sentence-transformers alone and give the outputs of the model."""

import json

import numpy as np
import pytest
import transformers

sentence_transformers = pytest.importorskip("sentence_transformers", reason="needs the extra sentence-transformers")

from bertrio.inference.export.export import export_model  # noqa: E402
from tests.inference.export.conftest import PAIRS, POOLINGS, bi_encoded  # noqa: E402

ROWS = list(PAIRS.itertuples(index=False, name=None))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_cross_encoder_gives_scores_or_the_probability_of_yes(models, load, tmp_path, pooling):
    for task in ("sts", "qqp"):
        export_model(models[pooling], tmp_path / task, "cross-encoder", task)
        predicted = load(models[pooling]).predict(task, PAIRS)
        expected = predicted.probabilities[:, 1] if task == "qqp" else predicted.scores
        model = sentence_transformers.CrossEncoder(str(tmp_path / task), device="cpu")
        np.testing.assert_allclose(model.predict(ROWS), expected, atol=1e-5)


def test_cross_encoder_with_hidden_layers_gives_class_logits(make_model, load, tmp_path):
    deep = {"head": "mlp", "head_options": {"depth": 2, "width": 12, "activation": "gelu"}}
    task = {"kind": "pair", "target": "classes", "classes": 3, "encoding": "cross", "loss": "cross_entropy",
            "range": None} | deep  # fmt: skip
    folder = make_model(tasks={"sts": task})
    export_model(folder, tmp_path / "out", "cross-encoder", "sts")
    model = sentence_transformers.CrossEncoder(str(tmp_path / "out"), device="cpu")
    np.testing.assert_allclose(model.predict(ROWS), load(folder).outputs("sts", PAIRS), atol=1e-5)


@pytest.mark.parametrize("task", [{"head": "mlp"}, {}], ids=["mlp", "mpnet"])
def test_models_that_fit_no_classifier_are_exported_as_modules(make_model, tmp_path, monkeypatch, task):
    if not task:
        monkeypatch.setattr("bertrio.inference.export.sequence_classifier.FAMILIES", {})
    export_model(make_model(tasks={"sts": task}), tmp_path / "out", "cross-encoder", "sts")
    assert (tmp_path / "out/modules.json").exists() and not (tmp_path / "out/config.json").exists()
    with pytest.raises((OSError, ValueError), match=r"config\.json"):  # as sentence-transformers 5 loads it
        transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")


def test_layout_is_that_of_sentence_transformers_2_to_5(models, bi_model, tmp_path):
    """text-embeddings-inference reads it as well."""
    export_model(models["mean"], tmp_path / "pair", "cross-encoder", "qqp")
    classifier = transformers.AutoModelForSequenceClassification
    pair, loading = classifier.from_pretrained(tmp_path / "pair", output_loading_info=True)
    assert pair.config.num_labels == 1 and not any(loading.values()) and not (tmp_path / "pair/modules.json").exists()
    export_model(bi_model, tmp_path / "vectors", "sentence-transformer", "sts")
    modules = json.loads((tmp_path / "vectors/modules.json").read_text())
    assert [module["path"] for module in modules] == ["", "1_Pooling", "2_Dense"]
    pooling = json.loads((tmp_path / "vectors/1_Pooling/config.json").read_text())
    assert pooling["pooling_mode_mean_tokens"] and not pooling["pooling_mode_cls_token"]
    assert sentence_transformers.SentenceTransformer(str(tmp_path / "vectors"), device="cpu").max_seq_length == 24


@pytest.mark.parametrize("pooling", POOLINGS)
def test_cosines_of_vectors_match_the_head(make_model, load, tmp_path, pooling):
    bi = bi_encoded(scaling="affine", projection=pooling != "cls", activation="leaky_relu")
    folder = make_model(tasks=bi, encoder={"pooling": pooling})
    export_model(folder, tmp_path / "out", "sentence-transformer", "sts")
    model = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    first, second = (model.encode(list(texts), convert_to_tensor=True) for texts in zip(*ROWS))
    scores = load(folder).predict("sts", PAIRS).scores  # 0 at cosine -1, 5 at 1
    np.testing.assert_allclose(model.similarity_pairwise(first, second), scores / 2.5 - 1, atol=1e-5)
