"""What is exported loads with transformers alone, and says what the model says."""

import pytest
import torch
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer, pipeline

from bertrio.core.errors import UserError
from bertrio.inference.export.export import export_model
from bertrio.inference.export.source import Source

TEXTS = ["a good film", "bad", "why is this the question ? the film is good", "a bad question " * 20]
PAIRS = list(zip(TEXTS, TEXTS[1:] + TEXTS[:1]))
POOLINGS = ("cls", "mean", "pooler")


def logits(folder, rows):
    """What the exported classifier says."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    columns = [list(column) for column in zip(*[(row,) if isinstance(row, str) else row for row in rows])]
    tokens = tokenizer(*columns, truncation=True, padding=True, return_tensors="pt")
    with torch.inference_mode():
        return AutoModelForSequenceClassification.from_pretrained(folder)(**tokens).logits


def test_the_encoder_loads_as_auto_model_with_its_tokenizer(models, tmp_path):
    done = export_model(models["mean"], tmp_path / "out", "encoder")
    source = Source.open(models["mean"])
    tokens = AutoTokenizer.from_pretrained(tmp_path / "out")(TEXTS, truncation=True, padding=True, return_tensors="pt")
    with torch.inference_mode():
        hidden = AutoModel.from_pretrained(tmp_path / "out")(**tokens).last_hidden_state
    mask = tokens["attention_mask"].unsqueeze(-1)
    assert tokens["input_ids"].shape[1] == 24  # the model's own max_length
    assert torch.allclose((hidden * mask).sum(1) / mask.sum(1), source.pooled(TEXTS), atol=1e-6)
    assert done.difference < 1e-6


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_classifier_gives_the_logits_of_the_classes(models, tmp_path, pooling):
    export_model(models[pooling], tmp_path / "out", "classifier", "sst")
    source = Source.open(models[pooling])
    expected = source.outputs(source.tasks["sst"], TEXTS)
    assert expected.shape == (4, 5)
    assert torch.allclose(logits(tmp_path / "out", TEXTS), expected, atol=1e-5)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_score_is_one_logit_of_a_regression(models, tmp_path, pooling):
    export_model(models[pooling], tmp_path / "out", "classifier", "sts")
    source = Source.open(models[pooling])
    assert torch.allclose(logits(tmp_path / "out", PAIRS), source.outputs(source.tasks["sts"], PAIRS), atol=1e-5)
    config = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").config
    assert (config.num_labels, config.problem_type, config.id2label) == (1, "regression", {0: "score"})


@pytest.mark.parametrize("pooling", POOLINGS)
def test_the_pipeline_gives_the_probability_of_yes_and_the_same_answer(models, tmp_path, pooling):
    export_model(models[pooling], tmp_path / "out", "classifier", "qqp")
    source = Source.open(models[pooling])
    target = source.tasks["qqp"].target
    expected = target.predict(source.outputs(source.tasks["qqp"], PAIRS).double().numpy())
    ask = pipeline("text-classification", model=str(tmp_path / "out"), truncation=True, device="cpu")
    rows = [{"text": first, "text_pair": second} for first, second in PAIRS]
    for found, yes, answer in zip(ask(rows, top_k=None), expected.probabilities[:, 1], expected.values):
        by_label = {entry["label"]: entry["score"] for entry in found}
        assert by_label["yes"] == pytest.approx(yes, abs=1e-6)
        assert found[0]["label"] == ("no", "yes")[int(answer)]


def test_classes_are_called_what_the_task_calls_them(make_model, tmp_path):
    names = ["very bad", "bad", "so-so", "good", "very good"]
    folder = make_model(tasks={"sst": {"classes": 5, "labels": names}})
    export_model(folder, tmp_path / "out", "classifier", "sst")
    config = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").config
    assert config.id2label == dict(enumerate(names))
    assert config.problem_type == "single_label_classification"


def test_the_same_model_gives_the_same_bytes(models, tmp_path):
    for name in ("one", "two"):
        export_model(models["mean"], tmp_path / name, "classifier", "sst")
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert {"config.json", "model.safetensors", "tokenizer.json", "export.json"} <= set(files)
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name


def test_hidden_layers_and_pairs_apart_are_refused_with_the_reason(make_model, apart, tmp_path):
    deep = make_model(tasks={"sst": {"head": "mlp"}})
    with pytest.raises(UserError, match="task sst: only a head linear .* --format onnx"):
        export_model(deep, tmp_path / "out", "classifier", "sst")
    with pytest.raises(UserError, match="task sts: encodes the texts of a pair apart, .* sentence-transformer"):
        export_model(apart, tmp_path / "out", "classifier", "sts")
    assert not list(tmp_path.iterdir())


def test_more_classes_than_there_is_room_for_are_refused(make_model, tmp_path):
    folder = make_model(tasks={"sst": {"target": "classes", "classes": 8}}, encoder={"pooling": "mean"})
    with pytest.raises(UserError, match="8 logits do not fit into a hidden size of 16"):
        export_model(folder, tmp_path / "out", "classifier", "sst")
