"""The real client against a stand-in hub on the loopback address."""

import io
import json
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertrio.config import DataParams
from bertrio.core.errors import UserError
from bertrio.data.sources import hub
from tests.data.sources import conftest as stand_in

A, B, C, D = (letter * 40 for letter in "abcd")  # commits
SCORES = ["0.6", " 1 ", "2", "", None, "-1", "high", "nan"]  # as text, of 1 at most


@pytest.fixture
def ask(client, tasks):
    """The function that answers an order, in plain values."""

    def ask(order):
        params = DataParams.model_validate(order["params"])
        if "task" not in order:
            skipped = Counter()
            texts = list(hub.load_corpus(params, order["corpus"], order["rows"], skipped))
            return {"texts": texts, "skipped": skipped, "facts": hub.corpus_facts(params, order["corpus"])}
        data = hub.load_tasks(params, {order["task"]: tasks[order["task"]]})
        read = data.tables[order["task"]].items()
        tables = {split: json.loads(table.to_json(orient="values")) for split, table in read}
        raw = [json.loads(reject.raw) for reject in data.rejects]
        return {"tables": tables, "rejects": [one.reason for one in data.rejects], "facts": data.facts, "raw": raw}

    return ask


def parquet(**columns):
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def json_lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.fixture(scope="module")
def repositories():
    make = stand_in.Repository
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
    written = [{"sentence1": f"a{i}", "sentence2": "b", "score": score} for i, score in enumerate(SCORES)]
    hidden = [{"sentence1": "a", "sentence2": "b", "score": "-1"}]
    texts = {"train.jsonl": json_lines(*written), "test.jsonl": json_lines(*hidden)}
    return {
        "SetFit/sst5": make({A: sst, B: newer}, {"main": B, "v1": A}),
        "nobody/moved": make({A: sst, B: {}}, {"main": B, "v1": A}),  # B has no files
        "nobody/texts": make({D: texts}, {"main": D}),
        "RobZamp/sick": make({C: sick}, {"refs/convert/parquet": C}),
    }


@pytest.fixture(scope="module")
def client(repositories, tmp_path_factory):
    with stand_in.serve(repositories) as (url, _), stand_in.client(url, tmp_path_factory.mktemp("hub")):
        yield


@pytest.fixture
def order(data_params):
    """Make an order to load a task with overrides of its block."""

    def order(task, **block):
        params = data_params(source="hub").model_dump()
        params["hub"]["tasks"][task] = {**hub.TASKS[task].model_dump(), **block}
        return {"params": params, "task": task}

    return order


def test_json_lines_are_loaded_and_hidden_labels_seen_as_none(ask, order):
    result = ask(order("sst", revision="v1"))
    assert result["tables"]["train"][1] == ["train-2", "row 1", 1.0] and len(result["tables"]["train"]) == 6
    assert result["tables"]["dev"] == [["dev-1", "dev", 1.0]] and result["rejects"] == ["label out of range"]
    assert result["tables"]["test"] == [["test-1", "test", None]]


@pytest.mark.parametrize(("revision", "commit", "text"), [(None, B, "newer"), ("v1", A, "dev"), (A, A, "dev")])
def test_the_commit_that_a_revision_stands_for_is_loaded_and_recorded(ask, order, revision, commit, text):
    result = ask(order("sst", revision=revision))
    expected = {"id": "SetFit/sst5", "commit": commit} | ({"revision": revision} if revision else {})
    assert result["facts"] == {"sst": expected} and result["tables"]["dev"][0][1] == text


def test_cached_rows_of_another_commit_are_not_taken(ask, order):
    assert ask(order("sst", id="nobody/moved", revision="v1"))["tables"]
    with pytest.raises(UserError, match=f"commit {B} can't be loaded, and the cache has {A}"):
        ask(order("sst", id="nobody/moved"))


def test_a_local_folder_that_is_called_like_a_data_set_is_not_taken_for_it(ask, order, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "SetFit/sst5").mkdir(parents=True)
    (tmp_path / "SetFit/sst5/train.jsonl").write_bytes(json_lines({"text": "own", "label": 1}))
    with pytest.raises(UserError, match="there is a local folder SetFit/sst5"):
        ask(order("sst"))


def test_scores_that_stand_there_as_text_are_scaled_and_what_is_none_is_rejected_as_it_stood(ask, order):
    result = ask(order("sts", id="nobody/texts", splits={"train": "train", "test": "test"}, label_scale=5.0))
    assert [row[-1] for row in result["tables"]["train"]] == [3.0, 5.0]
    assert result["rejects"][:4] == ["label out of range", "missing label", "missing label", "label out of range"]
    assert [row["score"] for row in result["raw"]] == SCORES[2:]
    assert [row[-1] for row in result["tables"]["test"]] == [None]  # hidden


def test_a_corpus_is_streamed_from_a_ref_and_as_many_texts_drawn(ask, data_params):
    params = data_params(source="hub", hub={"corpora": {"mine": hub.CORPORA["sick"].model_dump()}}).model_dump()
    facts = {"id": "RobZamp/sick", "revision": "refs/convert/parquet", "commit": C}
    for name in ("sick", "mine"):
        every, two = (ask({"params": params, "corpus": name, "rows": rows}) for rows in (None, 2))
        assert every == {"texts": every["texts"], "skipped": {"empty text": 1}, "facts": facts}
        assert sorted(every["texts"]) == ["a x", "b", "c z"] and two["texts"] == every["texts"][:2]


@pytest.mark.parametrize(
    ("block", "named"),
    [
        ({"id": "SetFit/none"}, ["SetFit/none", "revision newest", "data.source=files", "data.source=cs224n"]),
        ({"revision": "v9"}, ["SetFit/sst5", "revision v9", "data.source=files"]),
        ({"splits": {"train": "training"}}, ["splits.train", "training", "validation"]),
        ({"columns": {"text": "txt", "label": "label"}}, ["'text', 'label'", "did you mean 'text'"]),
    ],
)
def test_what_the_hub_does_not_have_is_an_error_that_names_it(ask, order, block, named):
    with pytest.raises(UserError, match="data.hub.tasks.sst") as error:
        ask(order("sst", **block))
    assert all(part in str(error.value) for part in named), error.value


def test_a_missing_network_is_an_error_that_names_the_local_alternative(ask, order, tmp_path):
    with stand_in.client("http://127.0.0.1:9", tmp_path), pytest.raises(UserError) as error:
        ask(order("sst"))
    assert all(part in str(error.value) for part in ("SetFit/sst5", "network", "data.source=files"))
