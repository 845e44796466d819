"""The real client against a fake hub on the loopback address."""

import io
import json
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertrio.core.errors import UserError
from bertrio.data.sources import hub
from tests.data.sources import conftest as fake_hub

A, B, C, D = (letter * 40 for letter in "abcd")  # commits
SCORES = ["3", " 5 ", "7", "", None, "-1", "high", "nan"]


def parquet(**columns):
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def json_lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """A fake hub with data sets and a corpus."""
    make = fake_hub.Repository
    sst = {
        "train.jsonl": json_lines(*({"text": f"row {i} ", "label": i % 5} for i in range(6))),
        "dev.jsonl": json_lines({"text": "dev", "label": 1}, {"text": "dev", "label": 7}),
        "test.jsonl": json_lines({"text": "test", "label": -1}),
    }
    newer = {**sst, "dev.jsonl": json_lines({"text": "newer", "label": 2})}
    sick = {
        "default/train/0000.parquet": parquet(sentence_A=["a ", None, "b", "c"], sentence_B=["x", " ", None, "z"]),
        "default/test/0000.parquet": parquet(sentence_A=["no"], sentence_B=["no"]),
    }
    scored = [{"sentence1": f"a{i}", "sentence2": "b", "score": score} for i, score in enumerate(SCORES)]
    hidden = [{"sentence1": "a", "sentence2": "b", "score": "-1"}]
    texts = {"train.jsonl": json_lines(*scored), "test.jsonl": json_lines(*hidden)}
    repositories = {
        "SetFit/sst5": make({A: sst, B: newer}, {"main": B, "v1": A}),
        "nobody/moved": make({A: sst, B: {}}, {"main": B, "v1": A}),  # B has no files
        "nobody/texts": make({D: texts}, {"main": D}),
        "RobZamp/sick": make({C: sick}, {"refs/convert/parquet": C}),
    }
    with fake_hub.serve(repositories) as (url, _), fake_hub.client(url, tmp_path_factory.mktemp("hub")):
        yield


@pytest.fixture
def load(client, data_params, tasks):
    """Load a task with overrides of its block."""

    def load(task, **block):
        blocks = {task: {**hub.PRESETS.tasks[task].model_dump(), "revision": None, **block}}
        data = hub.load_tasks(data_params(source="hub", hub={"tasks": blocks}), {task: tasks[task]})
        tables = {split: json.loads(table.to_json(orient="values")) for split, table in data.tables[task].items()}
        return tables, data

    return load


def test_json_lines_with_hidden_labels(load):
    tables, data = load("sst", revision="v1")
    assert tables["train"][1] == ["train-2", "row 1", 1.0] and len(tables["train"]) == 6
    assert tables["dev"] == [["dev-1", "dev", 1.0]] and data.rejects[0].reason == "label out of range"
    assert tables["test"] == [["test-1", "test", None]]


@pytest.mark.parametrize(("revision", "commit", "text"), [(None, B, "newer"), ("v1", A, "dev"), (A, A, "dev")])
def test_commit_of_a_revision_is_loaded_and_recorded(load, revision, commit, text):
    tables, data = load("sst", revision=revision)
    expected = {"id": "SetFit/sst5", "commit": commit} | ({"revision": revision} if revision else {})
    assert data.facts == {"sst": expected} and tables["dev"][0][1] == text


def test_cached_rows_of_another_commit_are_not_used(load):
    assert load("sst", id="nobody/moved", revision="v1")
    with pytest.raises(UserError, match=f"commit {B} can't be loaded, and the cache has {A}"):
        load("sst", id="nobody/moved")


def test_local_folder_with_the_name_of_a_data_set_is_not_used(load, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "SetFit/sst5").mkdir(parents=True)
    (tmp_path / "SetFit/sst5/train.jsonl").write_bytes(json_lines({"text": "own", "label": 1}))
    with pytest.raises(UserError, match="there is a local folder SetFit/sst5"):
        load("sst")


def test_scores_may_be_text_and_invalid_ones_are_rejected(load):
    tables, data = load("sts", id="nobody/texts", splits={"train": "train", "test": "test"})
    assert [row[-1] for row in tables["train"]] == [3.0, 5.0]
    reasons = ["label out of range", "missing label", "missing label", "label out of range"]
    assert [reject.reason for reject in data.rejects[:4]] == reasons
    assert [json.loads(reject.raw)["score"] for reject in data.rejects] == SCORES[2:]
    assert [row[-1] for row in tables["test"]] == [None]  # hidden


def test_corpus_is_streamed_from_a_ref_and_truncated(client, data_params):
    params = data_params(source="hub", hub={"corpora": {"mine": hub.PRESETS.corpora["sick"].model_dump()}})
    texts = list(hub.load_corpus(params, "sick", 9, skipped := Counter()))
    assert sorted(texts) == ["a x", "b", "c z"] and skipped == {"empty text": 1}
    assert list(hub.load_corpus(params, "mine", 2, Counter())) == texts[:2]
    facts = {"id": "RobZamp/sick", "revision": "refs/convert/parquet", "commit": C}
    assert hub.corpus_facts(params, "sick") == hub.corpus_facts(params, "mine") == facts


@pytest.mark.parametrize(
    ("block", "named"),
    [
        ({"id": "SetFit/none"}, ["SetFit/none", "revision newest", "data.source=files", "data.source=cs224n"]),
        ({"revision": "v9"}, ["SetFit/sst5", "revision v9", "data.source=files"]),
        ({"splits": {"train": "training"}}, ["splits.train", "training", "validation"]),
        ({"columns": {"text": "txt", "label": "label"}}, ["'text', 'label'", "did you mean 'text'"]),
    ],
)
def test_missing_id_revision_split_or_column_is_an_error(load, block, named):
    with pytest.raises(UserError, match="data.hub.tasks.sst") as error:
        load("sst", **block)
    assert all(part in str(error.value) for part in named), error.value


def test_network_error_suggests_local_files(load, tmp_path):
    with fake_hub.client("http://127.0.0.1:9", tmp_path), pytest.raises(UserError) as error:
        load("sst")
    assert all(part in str(error.value) for part in ("SetFit/sst5", "network", "data.source=files"))
