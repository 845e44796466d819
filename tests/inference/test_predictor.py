import json
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
from bertrio.training.soup import SOUPS
from tests.small_run import Run

UNLIKE = {
    "base": {},
    "second": {"encoder": {"max_length": 32}, "tasks": {"sts": {"encoding": "bi", "head": "siamese"}}},
    "third": {"answers": ["sst", "qqp"]},
}
ALIKE = {"base": {}, "second": {}}
BI = {"tasks": {"sts": {"encoding": "bi", "head": "cosine", "head_options": {"projection": True}}}}


def trained(folder, root, members, **overrides):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run = Run(folder, root / "params.yaml")
        run.params(ensemble={"members": members}, **overrides)
        for name in members:
            run.train(name)
        return run


@pytest.fixture(scope="module")
def unlike(tmp_path_factory, root):
    return trained(tmp_path_factory.mktemp("unlike"), root, UNLIKE)


@pytest.fixture(scope="module")
def alike(tmp_path_factory, root):
    return trained(tmp_path_factory.mktemp("alike"), root, ALIKE)


@pytest.fixture(scope="module")
def bi(tmp_path_factory, root):
    return trained(tmp_path_factory.mktemp("bi"), root, {"base": {}}, **BI)


@pytest.fixture
def finished(unlike, monkeypatch):
    monkeypatch.chdir(unlike.folder)
    unlike.combine("vote")
    return unlike


def load(path="models", **options):
    return Predictor.load(path, **{"device": "cpu", "precision": "float32", **options})


def rows_of(task, split="dev"):
    frame = read_table(f"data/splits/{task}/{split}.parquet")
    columns = [name for name in frame.columns if name.startswith("text")]
    texts = [tuple(row) for row in frame[columns].itertuples(index=False)]
    return [row[0] for row in texts] if len(columns) == 1 else texts


def check_equal(predictor, table):
    """The predictor says of the rows of dev what the table says of them, which is in the order of the data."""
    table = table[table["split"] != "test"]
    for task in table["task"].unique():
        expected = table[table["task"] == task]
        found = predictor.predict(task, rows_of(task))
        assert len(found) == len(expected) > 0
        if expected["probabilities"].notna().all():
            assert [one.label for one in found] == expected["prediction"].tolist()
            assert all(isinstance(one.label, int) and one.score is None for one in found)
            assert np.allclose([one.probabilities for one in found], np.stack(expected["probabilities"]), atol=1e-5)
        else:
            assert all(isinstance(one.label, float) and one.probabilities is None for one in found)
            assert np.allclose([one.label for one in found], expected["prediction"], atol=1e-5)
            assert np.allclose([one.score for one in found], expected["score"], atol=1e-5)


@pytest.mark.parametrize("how", RULES)
def test_it_says_of_the_rows_of_dev_what_the_ensemble_said(unlike, monkeypatch, how):
    monkeypatch.chdir(unlike.folder)
    unlike.combine(how)
    check_equal(load(), read_predictions("predictions/ensemble.parquet"))
    weights = read_json("models/ensemble/ensemble.json")["weights"]
    assert "third" not in weights["sts"]
    if how == "greedy":  # there is something to be seen
        assert len({share for shares in weights.values() for share in shares.values()}) > 2


@pytest.mark.parametrize("how", SOUPS)
def test_and_what_a_soup_said(alike, monkeypatch, how):
    monkeypatch.chdir(alike.folder)
    alike.combine(how)
    for path in ("models", "models/ensemble"):
        check_equal(load(path), read_predictions("predictions/ensemble.parquet"))


def test_and_what_one_member_said_whatever_lies_beside_its_folder(finished, tmp_path):
    shutil.copytree("models/members/second", tmp_path / "alone")
    check_equal(load(tmp_path / "alone"), read_predictions("predictions/members/second/predictions.parquet"))


def test_a_folder_may_be_named_from_within(finished, monkeypatch):
    monkeypatch.chdir("models/ensemble")
    assert set(load(".").members) == set(UNLIKE) == set(load("..").members)


def test_answers_come_in_the_order_of_the_rows_and_the_company_makes_no_difference(finished):
    predictor, rows = load(batch_size=3), rows_of("qqp")
    order = np.random.default_rng(0).permutation(len(rows))
    one, other = predictor.predict("qqp", rows), predictor.predict("qqp", [rows[place] for place in order])
    for place, found in zip(order, other):
        assert np.allclose(found.probabilities, one[place].probabilities, atol=1e-5)
    assert predictor.predict("qqp", rows[:1])[0].probabilities == pytest.approx(one[0].probabilities, abs=1e-5)
    assert predictor.predict("qqp", []) == [] == predictor.predict("sst", iter(()))


def test_outer_white_space_is_no_part_of_a_text_and_lists_are_pairs_too(finished):
    predictor = load("models/members/base")
    assert predictor.predict("sst", ["  a good film\n"]) == predictor.predict("sst", ["a good film"])
    assert predictor.predict("sts", [["a ", "\tb"]]) == predictor.predict("sts", [("a", "b")])


def test_many_threads_get_what_one_gets(finished):
    predictor, rows = load(batch_size=4), rows_of("sst")
    asked = [rows[start::8] for start in range(8)] * 3
    expected = [predictor.predict("sst", some) for some in asked]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda some: predictor.predict("sst", some), asked)) == expected


@pytest.mark.parametrize(
    ("task", "rows", "message"),
    [
        ("sst", "a good film", r"rows: found one text, expected a list, each item a text"),
        ("sst", ["a", 3], r"rows\[1\]: text is not a string: found 3, expected a text"),
        ("sst", ["a", " \n"], r"rows\[1\]: empty text: found ' \\n', expected a text"),
        ("qqp", [("a", "b"), "ab"], r"rows\[1\]: not a pair: found 'ab', expected a pair of texts"),
        ("qqp", [("a", "")], r"rows\[0\]: empty text: found \('a', ''\), expected a pair of texts"),
        ("qpq", [], r"task 'qpq': no such task, expected one of sst, qqp, sts"),
    ],
)
def test_what_can_not_be_answered_is_an_error_that_names_the_row(finished, task, rows, message):
    with pytest.raises(UserError, match=message):
        load().predict(task, rows)


def test_tasks_that_were_not_trained_are_not_answered(tmp_path, root, monkeypatch):
    trained(tmp_path, root, {"base": {"schedule": {"tasks": ["sst"], "until": "longest"}}})
    monkeypatch.chdir(tmp_path)
    predictor = load("models/members/base")
    with pytest.raises(UserError, match="task 'qqp': no such task, expected one of sst, which were trained"):
        predictor.predict("qqp", [("a", "b")])


def test_encoded_texts_have_the_cosine_that_the_head_sees(bi, monkeypatch):
    monkeypatch.chdir(bi.folder)
    predictor, pairs = load("models/members/base"), rows_of("sts")
    one, other = (predictor.encode([pair[side] for pair in pairs], "sts") for side in (0, 1))
    assert one.shape == (len(pairs), 16) and one.dtype == np.float32
    cosine = (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    scores = [found.score for found in predictor.predict("sts", pairs)]
    assert np.allclose(5 * np.maximum(cosine, 0), scores, atol=1e-4)  # the head's scaling is relu
    assert np.array_equal(predictor.encode([pair[0] for pair in pairs]), one)  # the only task that has vectors
    assert predictor.encode([]).shape == (0, 16)
    with pytest.raises(UserError, match="task: found qqp, expected .* apart: sts; .*NAME.encoding: bi"):
        predictor.encode(["a"], "qqp")


def test_vectors_of_unlike_models_are_not_mixed(finished):
    with pytest.raises(UserError, match="task: found None, expected a task that encodes its texts apart: none here"):
        load("models/members/base").encode(["a"])
    write_json("models/ensemble/ensemble.json", {
        "combine": "mean", "members": ["second", "base"], "weights": {"sts": {"second": 0.5, "base": 0.5}},
    })  # fmt: skip
    with pytest.raises(UserError, match="task sts: 2 models predict it, and vectors of unlike models"):
        load().encode(["a"])


def half(content):
    return content[: len(content) // 2]


def about(**changed):
    return lambda content: json.dumps({**json.loads(content), **changed}).encode()


def with_nli(content):
    raw = json.loads(content)
    return json.dumps({**raw, "tasks": {**raw["tasks"], "nli": raw["tasks"]["qqp"]}}).encode()


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("bertrio.json", half, r"bertrio.json: does not describe a model \("),
        ("bertrio.json", about(format=2), "format"),
        ("bertrio.json", with_nli, r"heads.safetensors: lacks nli\."),
        ("heads.safetensors", None, "heads.safetensors: is missing"),
        ("encoder/tokenizer.json", None, "encoder/tokenizer.json: is missing"),
        ("encoder/model.safetensors", half, "encoder: can't be loaded"),
        ("encoder/config.json", lambda content: b"[]", "config.json: can't be read"),
    ],
)
def test_damage_is_an_error_that_names_the_file(finished, tmp_path, file, change, message):
    shutil.copytree("models/members/base", tmp_path / "model")
    path = tmp_path / "model" / file
    path.write_bytes(change(path.read_bytes())) if change else path.unlink()
    with pytest.raises(UserError, match=message):
        load(tmp_path / "model")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"combine": "uniform_soup"}, "does not describe an ensemble .*expected one of vote, .*found 'uniform_soup'"),
        ({"members": ["../base"]}, "does not describe an ensemble"),
        ({"weights": {"sst": {"fourth": 1.0}}}, "members/fourth: is missing"),
    ],
)
def test_a_damaged_ensemble_is_an_error_that_names_the_file(finished, change, message):
    path = finished.folder / "models/ensemble/ensemble.json"
    path.write_text(json.dumps({**read_json(path), **change}))
    with pytest.raises(UserError, match=message):
        load()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "nowhere"}, "nowhere: found neither bertrio.json nor ensemble.json there, expected a run's"),
        ({"device": "gpu"}, "gpu is not on this machine; use auto or cpu"),
        ({"precision": "fp16"}, "precision: found 'fp16', expected one of auto, float32, bf16"),
    ],
)
def test_what_is_asked_of_load_is_checked(finished, options, message):
    with pytest.raises(UserError, match=message):
        load(**options)
