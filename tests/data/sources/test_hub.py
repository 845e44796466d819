"""The real client against a stand-in hub on the loopback address, in a process of its own that reads HF_ENDPOINT."""

import hashlib
import io
import json
import os
import subprocess
import sys
from zipfile import ZipFile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertrio.data.sources import hub

A, B, C, D, E, F = (letter * 40 for letter in "abcdef")  # commits
SCORES = ["0.6", " 1 ", "2", "", None, "-1", "high", "nan"]  # as text, of 1 at most

CLIENT = """
import json, os, sys
from collections import Counter
from bertrio.data.sources import hub
from bertrio.core.errors import UserError
from bertrio.config import DataParams
from bertrio.core.tasks import Task, build_target

TASKS = {
    "sst": Task("sst", "single", "cross", build_target("ordered", 5)),
    "qqp": Task("qqp", "pair", "cross", build_target("binary")),
    "sts": Task("sts", "pair", "cross", build_target("score", limits=(0, 5))),
}
here = os.getcwd()
for line in sys.stdin:
    order = json.loads(line)
    os.chdir(order.get("folder", here))
    params = DataParams.model_validate(order["params"])
    try:
        if "task" in order:
            data = hub.load_tasks(params, {order["task"]: TASKS[order["task"]]})
            found = data.tables[order["task"]].items()
            tables = {split: json.loads(table.to_json(orient="values")) for split, table in found}
            answer = {"tables": tables, "rejects": [reject.reason for reject in data.rejects], "facts": data.facts}
            answer |= {"downloads": data.downloads, "raw": [json.loads(reject.raw) for reject in data.rejects]}
        else:
            skipped = Counter()
            texts = list(hub.load_corpus(params, order["corpus"], order["rows"], skipped))
            answer = {"texts": texts, "skipped": skipped, "facts": hub.corpus_facts(params, order["corpus"])}
    except UserError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
"""


def parquet(**columns):
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def zipped(**files):
    buffer = io.BytesIO()
    with ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def json_lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def card(**configs):
    block = "- config_name: {}\n  data_files:\n  - split: train\n    path: {}\n"
    lines = [block.format(*config) for config in configs.items()]
    return f"---\nconfigs:\n{''.join(lines)}---\n".encode()


@pytest.fixture(scope="module")
def repositories(stand_in_hub):
    make = stand_in_hub.Repository
    sst = {
        "train.jsonl": json_lines(*({"text": f"row {i} ", "label": i % 5, "label_text": "x"} for i in range(6))),
        "dev.jsonl": json_lines(
            {"text": "dev", "label": 1, "label_text": "x"}, {"text": "dev", "label": 7, "label_text": "x"}
        ),
        "test.jsonl": json_lines({"text": "test", "label": -1, "label_text": "x"}),
    }
    newer = {**sst, "dev.jsonl": json_lines({"text": "newer", "label": 2, "label_text": "x"})}
    pairs = {
        "README.md": card(**{"pair-class": "pair-class/train-*", "pair": "pair/train-*"}),
        "pair-class/train-00000-of-00001.parquet": parquet(sentence1=["a", "b"], sentence2=["c", "d"], label=[0, 1]),
        "pair/train-00000-of-00001.parquet": parquet(anchor=["a"], positive=["b"]),
    }
    scores = {
        "data/train-00000-of-00001.parquet": parquet(sentence1=["a", "b"], sentence2=["c", "d"], score=[0.76, 1.0])
    }
    sick = {
        "default/train/0000.parquet": parquet(sentence_A=["a ", None, "b", "c"], sentence_B=["x", " ", None, "z"]),
        "default/test/0000.parquet": parquet(sentence_A=["no"], sentence_B=["no"]),
    }
    written = [{"sentence1": f"a{i}", "sentence2": "b", "score": score} for i, score in enumerate(SCORES)]
    hidden = [{"sentence1": "a", "sentence2": "b", "score": "-1"}]
    texts = {"train.jsonl": json_lines(*written), "test.jsonl": json_lines(*hidden)}
    archive = {"README.md": card(default="rows.zip"), "rows.zip": zipped(**{"train.jsonl": sst["train.jsonl"]})}
    return {
        "nobody/archive": make({A: archive}, {"main": A}),
        "SetFit/sst5": make({A: sst, B: newer}, {"main": B, "v1": A}),
        "sentence-transformers/quora-duplicates": make({C: pairs}, {"main": C}),
        "sentence-transformers/stsb": make({D: scores}, {"main": D}),
        "nobody/texts": make({F: texts}, {"main": F}),
        "RobZamp/sick": make({E: sick}, {"refs/convert/parquet": E}),
    }


@pytest.fixture(scope="module")
def ask(stand_in_hub, repositories, tmp_path_factory):
    with stand_in_hub.serve(repositories) as (url, _), client(url, tmp_path_factory.mktemp("hub")) as process:

        def ask(order):
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield ask
        process.stdin.close()


def client(url, home):
    names = {"HF_ENDPOINT": url, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", CLIENT], env={**os.environ, **names}, text=True, **pipes)


@pytest.fixture
def order(data_params):
    """An order to load a task whose block has these overrides."""

    def order(task, **block):
        params = data_params(source="hub").model_dump()
        params["hub"]["tasks"][task] = {**hub.TASKS[task].model_dump(), **block}
        return {"params": params, "task": task}

    return order


def test_json_lines_are_loaded_and_hidden_labels_seen_as_none(ask, order):
    found = ask(order("sst", revision="v1"))
    assert found["tables"]["train"][1] == ["train-2", "row 1", 1.0] and len(found["tables"]["train"]) == 6
    assert found["tables"]["dev"] == [["dev-1", "dev", 1.0]] and found["rejects"] == ["label out of range"]
    assert found["tables"]["test"] == [["test-1", "test", None]]


@pytest.mark.parametrize(("revision", "commit", "text"), [(None, B, "newer"), ("v1", A, "dev"), (A, A, "dev")])
def test_the_commit_that_a_revision_stands_for_is_loaded_and_recorded(ask, order, revision, commit, text):
    found = ask(order("sst", revision=revision))
    expected = {"id": "SetFit/sst5", "commit": commit} | ({"revision": revision} if revision else {})
    assert found["facts"] == {"sst": expected} and found["tables"]["dev"][0][1] == text


def test_every_file_that_was_fetched_is_hashed(ask, order, repositories):
    files = repositories["SetFit/sst5"].files[A]
    expected = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    assert ask(order("sst", revision="v1"))["downloads"] == {"sst": expected}


def test_an_archive_is_refused_and_not_unpacked(ask, order):
    message = ask(order("sst", id="nobody/archive", splits={"train": "train"}))["error"]
    assert "nobody/archive has its rows in rows.zip" in message and "never unpacked" in message


def test_a_local_folder_that_is_called_like_a_data_set_is_not_taken_for_it(ask, order, tmp_path):
    (tmp_path / "SetFit/sst5").mkdir(parents=True)
    (tmp_path / "SetFit/sst5/train.jsonl").write_bytes(json_lines({"text": "own", "label": 1}))
    message = ask({**order("sst"), "folder": str(tmp_path)})["error"]
    assert f"expected them at hf://datasets/SetFit/sst5@{B}" in message


def test_a_config_of_several_is_loaded(ask, order):
    columns = {"text_a": "sentence1", "text_b": "sentence2", "label": "label"}
    block = {
        "id": "sentence-transformers/quora-duplicates",
        "config": "pair-class",
        "splits": {"train": "train"},
        "columns": columns,
    }
    assert ask(order("qqp", **block))["tables"] == {"train": [["train-1", "a", "c", 0.0], ["train-2", "b", "d", 1.0]]}
    assert "pair-class" in ask(order("qqp", **{**block, "config": "pears"}))["error"]  # the client lists what there is


def test_scores_are_scaled(ask, order):
    found = ask(order("sts", id="sentence-transformers/stsb", splits={"train": "train"}, label_scale=5.0))
    assert [row[-1] for row in found["tables"]["train"]] == [3.8, 5.0]


def test_scores_that_stand_there_as_text_are_scaled_and_what_is_none_is_rejected_as_it_stood(ask, order):
    found = ask(order("sts", id="nobody/texts", splits={"train": "train", "test": "test"}, label_scale=5.0))
    assert [row[-1] for row in found["tables"]["train"]] == [3.0, 5.0]
    assert found["rejects"] == [
        "label out of range",
        "missing label",
        "missing label",
        "label out of range",
        "label is not a number",
        "label is not a number",
    ]
    assert [row["score"] for row in found["raw"]] == SCORES[2:]
    assert [row[-1] for row in found["tables"]["test"]] == [None]  # hidden


@pytest.mark.parametrize(
    ("rows", "texts", "skipped"),
    [(None, ["a x", "b", "c z"], {"empty text": 1}), (2, ["a x", "b"], {"empty text": 1}), (1, ["a x"], {})],
)
def test_a_corpus_is_streamed_from_a_ref_until_there_are_as_many_texts(ask, data_params, rows, texts, skipped):
    found = ask({"params": data_params(source="hub").model_dump(), "corpus": "sick", "rows": rows})
    facts = {"id": "RobZamp/sick", "revision": "refs/convert/parquet", "commit": E}
    assert found == {"texts": texts, "skipped": skipped, "facts": facts}


@pytest.mark.parametrize(
    ("block", "named"),
    [
        ({"id": "SetFit/none"}, ["SetFit/none", "revision newest", "data.source=files", "data.source=cs224n"]),
        ({"revision": "v9"}, ["SetFit/sst5", "revision v9", "data.source=files"]),
        ({"splits": {"train": "training"}}, ["splits.train", "training", "validation"]),
        ({"columns": {"text": "txt", "label": "label"}}, ["'text', 'label', 'label_text'", "did you mean 'text'"]),
    ],
)
def test_what_the_hub_does_not_have_is_an_error_that_names_it(ask, order, block, named):
    message = ask(order("sst", **block))["error"]
    assert "data.hub.tasks.sst" in message and all(part in message for part in named), message


def test_a_missing_network_is_an_error_that_names_the_local_alternative(order, tmp_path):
    with client("http://127.0.0.1:9", tmp_path) as process:
        out, _ = process.communicate(json.dumps(order("sst")) + "\n", timeout=60)
    message = json.loads(out)["error"]
    assert "SetFit/sst5" in message and "network" in message and "data.source=files" in message
