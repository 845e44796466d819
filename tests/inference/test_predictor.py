import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from bertrio import Predictor
from bertrio.core.errors import UserError
from bertrio.core.files import read_json, write_json
from bertrio.data.table import read_table
from bertrio.evaluation.ensembling import RULES
from bertrio.evaluation.predictions import read_predictions
from tests.small_run import Run

SIAMESE = {"sts": {"encoding": "bi", "head": "siamese"}}
MIXED = {"base": {}, "second": {"encoder": {"max_length": 32}, "tasks": SIAMESE}, "third": {"answers": ["sst", "qqp"]}}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory, root):
    """A run of unlike members."""
    folder = tmp_path_factory.mktemp("mixed")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run = Run(folder, root / "params.yaml")
        run.params(ensemble={"members": MIXED})
        for name in MIXED:
            run.train(name)
    return run


@pytest.fixture
def finished(mixed, monkeypatch):
    monkeypatch.chdir(mixed.root)
    mixed.combine("vote")
    return mixed


def load(path="models", **options):
    return Predictor.load(path, **{"device": "cpu", "precision": "float32", **options})


def rows_of(task, split="dev"):
    frame = read_table(f"data/splits/{task}/{split}.parquet")
    columns = [name for name in frame.columns if name.startswith("text")]
    texts = [tuple(row) for row in frame[columns].itertuples(index=False)]
    return [row[0] for row in texts] if len(columns) == 1 else texts


def check_equal(predictor, table):
    """Check the predictions of dev against a table, which is in the order of the data."""
    for task, expected in table[table["split"] != "test"].groupby("task"):
        labels, probabilities, scores, names = zip(*predictor.predict(task, rows_of(task)))
        if task == "sts":
            assert set(map(type, labels)) == {float} and set(probabilities) == set(names) == {None}
            assert np.allclose([labels, scores], expected[["prediction", "score"]].T, atol=1e-5)
        else:
            assert set(map(type, labels)) == {int} and set(scores) == {None}
            assert list(labels) == expected["prediction"].tolist()
            assert list(names) == [predictor.tasks[task].target.class_names[label] for label in labels]
            assert np.allclose(probabilities, np.stack(expected["probabilities"]), atol=1e-5)


@pytest.mark.parametrize("rule", RULES)
def test_predictions_match_the_ensemble(mixed, monkeypatch, rule):
    monkeypatch.chdir(mixed.root)
    mixed.combine(rule)
    check_equal(load(), read_predictions("predictions/ensemble.parquet"))
    weights = read_json("models/ensemble/ensemble.json")["weights"]
    assert "third" not in weights["sts"]
    if rule == "greedy":  # the weights differ
        assert len({share for shares in weights.values() for share in shares.values()}) > 2
    monkeypatch.chdir("models/ensemble")
    assert set(load(".").members) == set(load("..").members)


def test_predictions_match_the_soup(run):
    for rule in ("uniform_soup", "greedy_soup"):
        run.two_members(rule)
        for path in ("models", "models/ensemble"):
            check_equal(load(path), read_predictions("predictions/ensemble.parquet"))


def test_a_moved_member_folder_predicts_the_same(finished, tmp_path):
    shutil.copytree("models/members/second", tmp_path / "moved")
    check_equal(load(tmp_path / "moved"), read_predictions("predictions/members/second/predictions.parquet"))


def test_predictions_follow_row_order_and_do_not_depend_on_other_rows(finished):
    predictor, rows = load(batch_size=3), rows_of("qqp")
    order = np.random.default_rng(0).permutation(len(rows))
    first = np.array([row.probabilities for row in predictor.predict("qqp", rows)])
    second = [row.probabilities for row in predictor.predict("qqp", [rows[index] for index in order])]
    assert np.allclose(second, first[order], atol=1e-5)
    assert predictor.predict("qqp", rows[:1])[0].probabilities == pytest.approx(first[0], abs=1e-5)
    assert predictor.predict("qqp", []) == [] == predictor.predict("sst", iter(()))


def test_white_space_is_stripped_and_pairs_may_be_lists(finished):
    predictor = load("models/members/base")
    assert predictor.predict("sst", ["  a good film\n"]) == predictor.predict("sst", ["a good film"])
    assert predictor.predict("sts", [["a ", "\tb"]]) == predictor.predict("sts", [("a", "b")])


def test_threads_get_the_same_predictions(finished):
    predictor, rows = load(batch_size=4), rows_of("sst")
    batches = [rows[start::8] for start in range(8)] * 3
    expected = [predictor.predict("sst", batch) for batch in batches]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda batch: predictor.predict("sst", batch), batches)) == expected


@pytest.mark.parametrize(
    ("task", "rows", "message"),
    [
        ("sst", "a good film", r"rows: found one text, expected a list, each item a text"),
        ("sst", ["a", 3], r"rows\[1\]: text is not a string: found 3, expected a text"),
        ("qqp", [("a", "b"), "ab"], r"rows\[1\]: not a pair: found 'ab', expected a pair of texts"),
    ],
)
def test_invalid_rows_are_an_error(finished, task, rows, message):
    with pytest.raises(UserError, match=message):
        load().predict(task, rows)


def test_untrained_tasks_are_an_error(run):
    run.params(ensemble={"members": {"base": {"schedule": {"tasks": ["sst"], "until": "longest"}}}})
    run.train()
    predictor = load("models/members/base")
    with pytest.raises(UserError, match="task 'qqp': no such task, expected one of sst, which were trained"):
        predictor.predict("qqp", [("a", "b")])


def test_encoded_texts_have_the_cosine_of_the_head(run):
    run.params(tasks={"sts": {"encoding": "bi", "head": "cosine", "head_options": {"projection": True}}})
    run.train()
    predictor, pairs = load("models/members/base"), rows_of("sts")
    a, b = (predictor.encode(list(texts), "sts") for texts in zip(*pairs))
    assert a.shape == (len(pairs), 16) and a.dtype == np.float32
    cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    scores = [prediction.score for prediction in predictor.predict("sts", pairs)]
    assert np.allclose(5 * np.maximum(cosine, 0), scores, atol=1e-4)  # the head's scaling is relu
    assert np.array_equal(predictor.encode([pair[0] for pair in pairs]), a)  # sts is the only bi-encoded task
    assert predictor.encode([]).shape == (0, 16)
    with pytest.raises(UserError, match="task: found qqp, expected .* apart: sts; .*NAME.encoding: bi"):
        predictor.encode(["a"], "qqp")


def test_vectors_of_different_models_are_not_mixed(finished):
    with pytest.raises(UserError, match="task: found None, expected a task that encodes its texts apart: none here"):
        load("models/members/base").encode(["a"])
    mean = {"combine": "mean", "members": ["second", "base"], "weights": {"sts": {"second": 0.5, "base": 0.5}}}
    write_json("models/ensemble/ensemble.json", mean)
    with pytest.raises(UserError, match="task sts: 2 models predict it, and vectors of unlike models"):
        load().encode(["a"])


def half(content):
    return content[: len(content) // 2]


def replaced(before, after):
    return lambda content: content.replace(before, after)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("members/base/bertrio.json", half, r"bertrio.json: does not describe a model \("),
        ("members/base/bertrio.json", replaced(b'"format": 1', b'"format": 2'), "format"),
        ("members/base/heads.safetensors", None, "heads.safetensors: is missing"),
        ("members/base/encoder/tokenizer.json", None, "encoder/tokenizer.json: is missing"),
        ("members/base/encoder/model.safetensors", half, "encoder: can't be loaded"),
        ("members/base/encoder/config.json", lambda content: b"[]", "config.json: can't be loaded"),
        ("ensemble/ensemble.json", replaced(b'"vote"', b'"soup"'), "an ensemble .* one of vote, .*found 'soup'"),
        ("ensemble/ensemble.json", replaced(b'"base"', b'"../base"'), "ensemble.json: does not describe an ensemble"),
        ("ensemble/ensemble.json", replaced(b'"third"', b'"fourth"'), "members/fourth: is missing"),
        ("ensemble/ensemble.json", None, "ensemble: found neither bertrio.json nor ensemble.json there, expected a"),
    ],
)
def test_damaged_folders_are_an_error(finished, tmp_path, file, change, message):
    shutil.copytree("models", tmp_path / "models")
    path = tmp_path / "models" / file
    path.write_bytes(change(path.read_bytes())) if change else path.unlink()
    with pytest.raises(UserError, match=message):
        load(tmp_path / "models")
