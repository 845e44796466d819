"""An export loads with sentence-transformers alone and computes what the model computes."""

import numpy as np
import pytest

sentence_transformers = pytest.importorskip("sentence_transformers", reason="needs the extra sentence-transformers")

from bertrio.inference.export.export import export_model  # noqa: E402
from tests.inference.export.conftest import PAIRS, POOLINGS, apart_by  # noqa: E402

ROWS = list(PAIRS.itertuples(index=False, name=None))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_cross_encoder_gives_scores_and_probabilities_of_yes(models, load, tmp_path, pooling):
    for task in ("sts", "qqp"):
        export_model(models[pooling], tmp_path / task, "cross-encoder", task)
        predicted = load(models[pooling]).predict(task, PAIRS)
        expected = predicted.probabilities[:, 1] if task == "qqp" else predicted.scores
        model = sentence_transformers.CrossEncoder(str(tmp_path / task), device="cpu")
        np.testing.assert_allclose(model.predict(ROWS), expected, atol=1e-5)


def test_a_cross_encoder_gives_the_logits_of_classes_and_has_hidden_layers(make_model, load, tmp_path):
    deep = {"head": "mlp", "head_options": {"depth": 2, "width": 12, "activation": "gelu"}}
    task = {"kind": "pair", "target": "classes", "classes": 3, "encoding": "cross", "loss": "cross_entropy",
            "range": None} | deep  # fmt: skip
    folder = make_model(tasks={"sts": task})
    export_model(folder, tmp_path / "out", "cross-encoder", "sts")
    model = sentence_transformers.CrossEncoder(str(tmp_path / "out"), device="cpu")
    np.testing.assert_allclose(model.predict(ROWS), load(folder).outputs("sts", PAIRS), atol=1e-5)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_cosines_of_vectors_are_those_that_the_head_compares(make_model, load, tmp_path, pooling):
    bi = apart_by(scaling="affine", projection=pooling != "cls", activation="leaky_relu")
    folder = make_model(tasks=bi, encoder={"pooling": pooling})
    export_model(folder, tmp_path / "out", "sentence-transformer", "sts")
    model = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    first, second = (model.encode(list(texts), convert_to_tensor=True) for texts in zip(*ROWS))
    scores = load(folder).predict("sts", PAIRS).scores  # 0 at cosine -1, 5 at 1
    np.testing.assert_allclose(model.similarity_pairwise(first, second), scores / 2.5 - 1, atol=1e-5)
