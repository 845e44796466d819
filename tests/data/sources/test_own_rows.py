"""Tasks that say themselves where their rows are, beside those of `data.source`."""

import csv
import json

import pytest

from bertrio.config import build_tasks
from bertrio.config.loading import validate_params
from bertrio.core.errors import UserError
from bertrio.data.download import download
from bertrio.data.sources import hub, load_rows

TASK = {
    "kind": "single",
    "target": "classes",
    "labels": ["no", "maybe", "yes"],
    "head": "linear",
    "loss": "cross_entropy",
    "batch_size": 8,
    "dropout": 0.1,
}
HUB = {"id": "some/rows", "splits": {"train": "train", "dev": "dev"}, "columns": {"label": "gold"}}


@pytest.fixture
def load(params, tmp_path, monkeypatch):
    """Params with one more task, of the rows that `data` says."""
    monkeypatch.chdir(tmp_path)

    def make(data, tasks=("sst",), source="sample", **task):
        raw = params().model_dump(by_alias=True)
        raw["tasks"] = {name: raw["tasks"][name] for name in tasks} | {"own": {**TASK, "data": data, **task}}
        raw["data"] |= {"source": source}
        raw["data"]["sample"] |= {"train_rows": 12, "dev_rows": 4, "test_rows": 4}
        raw["schedule"]["until"] = "shortest"
        return validate_params(raw, "params.yaml")

    return make


def write(path, *rows, header=("text", "label")):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def test_rows_of_the_source_and_rows_of_ones_own_stand_side_by_side(load):
    write("train.csv", ("a", "yes"), ("b", "no"), ("c", "2"))
    write("dev.csv", ("d", "maybe"))
    write("test.csv", ("e", ""), ("f", ""))
    params = load({"train": "train.csv", "dev": "dev.csv", "test": "test.csv"})
    data = load_rows(params, build_tasks(params))
    assert list(data.tables) == ["sst", "own"] and len(data.tables["sst"]["train"]) == 12
    assert data.tables["own"]["train"]["label"].tolist() == [2, 0, 2]
    assert data.tables["own"]["test"]["label"].isna().all() and not data.rejects
    assert data.facts == {"seed": 0, "own": {"files": {"train": "train.csv", "dev": "dev.csv", "test": "test.csv"}}}


def test_the_three_can_have_rows_of_ones_own_and_a_source_that_nobody_asks_is_not_looked_at(load):
    write("a.csv", ("a", "yes"))
    params = load({"train": "a.csv", "dev": "a.csv"}, tasks=(), source="cs224n")  # data.path is null
    assert list(load_rows(params, build_tasks(params)).tables) == ["own"]


def test_a_task_that_files_say_nothing_of_needs_no_block_there_if_it_has_its_own(load):
    write("a.csv", ("a", "yes"))
    load({"train": "a.csv", "dev": "a.csv"}, tasks=(), source="files")
    with pytest.raises(UserError, match=r"data\.files: found no block for task sst, and tasks\.sst\.data says nothing"):
        load({"train": "a.csv", "dev": "a.csv"}, source="files")


def test_labels_that_are_no_class_are_rejected_and_the_message_says_what_the_classes_are(load, tmp_path):
    write("a.csv", *[(f"text {i}", "yes") for i in range(8)], ("b", "Yes"), ("c", "7"))
    params = load({"train": "a.csv", "dev": "a.csv"})
    with pytest.raises(UserError) as error:
        download(params, "raw", "rejects", "corpora")
    assert "own: a.csv: 2 of 10 rows can't be used (1 label out of range, 1 unknown label)" in str(error.value)
    assert "tasks.own.labels names the classes no, maybe, yes" in str(error.value)
    with open("rejects/own.csv", newline="") as file:
        assert [row["reason"] for row in csv.DictReader(file)][:2] == ["unknown label", "label out of range"]


def test_words_without_names_for_them_are_answered_by_where_to_name_them(load):
    write("a.csv", ("a", "yes"))
    params = load({"train": "a.csv", "dev": "a.csv"}, labels=None, classes=3)
    with pytest.raises(UserError, match=r"Where labels are words, tasks\.own\.labels says which they are"):
        download(params, "raw", "rejects", "corpora")


def test_a_label_called_minus_one_is_a_label_and_no_hidden_one(load):
    rows = [{"text": "a", "label": -1}, {"text": "b", "label": 1}]
    for name in ("train", "test"):
        with open(f"{name}.jsonl", "w") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    with open("hidden.jsonl", "w") as file:
        file.write(json.dumps({"text": "a", "label": -1}) + "\n")
    names = {"labels": ["-1", "0", "1"]}
    params = load({"train": "train.jsonl", "dev": "train.jsonl", "test": "hidden.jsonl"}, **names)
    tables = load_rows(params, build_tasks(params)).tables["own"]
    assert tables["train"]["label"].tolist() == [0, 2] and tables["test"]["label"].tolist() == [0]


def test_a_data_set_on_the_hub_is_asked_for_as_the_block_says(load, monkeypatch):
    asked = []
    monkeypatch.setattr(hub, "read_task", lambda task, entry, place, data: asked.append((task.name, entry.id, place)))
    params = load({"hub": HUB})
    load_rows(params, build_tasks(params))
    assert asked == [("own", "some/rows", "tasks.own.data.hub")]
    assert (params.source_of("own"), params.source_of("sst")) == ("hub", "sample")


def test_a_file_that_is_missing_is_named_with_its_place(load):
    params = load({"train": "gone.csv", "dev": "gone.csv"})
    with pytest.raises(
        UserError, match=r"tasks\.own\.data\.train: gone\.csv: there is no such file; relative paths start"
    ):
        load_rows(params, build_tasks(params))
