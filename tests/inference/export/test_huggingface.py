"""Exported encoders and classifiers load with transformers alone and give the outputs of the model."""

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer, pipeline

from bertrio.inference.export.export import export_model
from tests.inference.export.conftest import PAIRS, POOLINGS, SINGLE, TEXTS


def logits(folder, texts):
    columns = [texts[name].tolist() for name in texts]
    tokens = AutoTokenizer.from_pretrained(folder)(*columns, truncation=True, padding=True, return_tensors="pt")
    with torch.inference_mode():
        return AutoModelForSequenceClassification.from_pretrained(folder)(**tokens).logits.numpy()


def test_encoder_loads_as_auto_model_with_its_tokenizer(models, load, tmp_path):
    assert export_model(models["mean"], tmp_path / "out", "encoder") < 1e-6
    tokens = AutoTokenizer.from_pretrained(tmp_path / "out")(TEXTS, truncation=True, padding=True, return_tensors="pt")
    with torch.inference_mode():
        hidden = AutoModel.from_pretrained(tmp_path / "out")(**tokens).last_hidden_state
    mask = tokens["attention_mask"].unsqueeze(-1)
    assert tokens["input_ids"].shape[1] == 24  # the model's own max_length
    np.testing.assert_allclose((hidden * mask).sum(1) / mask.sum(1), load(models["mean"]).encode(TEXTS), atol=1e-6)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_classifier_gives_class_logits_or_a_score(models, load, tmp_path, pooling):
    for task, texts in (("sst", SINGLE), ("sts", PAIRS)):
        export_model(models[pooling], tmp_path / task, "classifier", task)
        expected = load(models[pooling]).outputs(task, texts)
        np.testing.assert_allclose(logits(tmp_path / task, texts), expected, atol=1e-5)
    config = AutoModelForSequenceClassification.from_pretrained(tmp_path / "sts").config
    assert (config.num_labels, config.problem_type, config.id2label) == (1, "regression", {0: "score"})


def test_pipeline_gives_the_probabilities_and_classes(models, load, tmp_path):
    export_model(models["mean"], tmp_path / "out", "classifier", "qqp")
    expected = load(models["mean"]).predict("qqp", PAIRS)
    classify = pipeline("text-classification", model=str(tmp_path / "out"), truncation=True, device="cpu")
    rows = [{"text": first, "text_pair": second} for first, second in PAIRS.itertuples(index=False)]
    for entries, yes, value in zip(classify(rows, top_k=None), expected.probabilities[:, 1], expected.values):
        assert {entry["label"]: entry["score"] for entry in entries}["yes"] == pytest.approx(yes, abs=1e-6)
        assert entries[0]["label"] == ("no", "yes")[int(value)]


def test_classes_are_named_and_exports_are_deterministic(make_model, tmp_path):
    names = ["very bad", "bad", "so-so", "good", "very good"]
    folder = make_model(tasks={"sst": {"classes": names}})
    for name in ("one", "two"):
        export_model(folder, tmp_path / name / "out", "classifier", "sst")
    config = AutoModelForSequenceClassification.from_pretrained(tmp_path / "one/out").config
    assert config.id2label == dict(enumerate(names)) and config.problem_type == "single_label_classification"
    for path in (tmp_path / "one/out").iterdir():
        assert path.read_bytes() == (tmp_path / "two/out" / path.name).read_bytes(), path.name
