"""Tasks with their own data block, next to those of `data.source`."""

import json
from pathlib import Path

import pytest

from bertrio.config import build_tasks
from bertrio.config.loading import validate_params
from bertrio.core.errors import UserError
from bertrio.data.download import download
from bertrio.data.sources import load_rows

TASK = {"kind": "single", "target": "classes", "classes": ["no", "maybe", "yes"], "head": "linear"}
TASK |= {"loss": "cross_entropy", "batch_size": 8, "dropout": 0.1}


@pytest.fixture
def load(params, tmp_path, monkeypatch):
    """Return params with the additional task `own`, whose rows are in `data`."""
    monkeypatch.chdir(tmp_path)

    def make(data, **task):
        raw = params().model_dump(by_alias=True)
        raw["tasks"] = {"sst": raw["tasks"]["sst"], "own": {**TASK, "data": data, **task}}
        raw["data"]["sample"] |= {"train_rows": 12, "dev_rows": 4, "test_rows": 4}
        raw["schedule"]["until"] = "shortest"
        return validate_params(raw, "params.yaml")

    return make


def test_unknown_label_error_lists_the_classes(load):
    rows = [*(f"text {i},yes" for i in range(8)), "b,Yes", "c,7"]
    Path("a.csv").write_text("\n".join(["text,label", *rows]))
    params = load({"train": "a.csv", "dev": "a.csv"})
    with pytest.raises(UserError, match=r"2 of 10 rows .*1 unknown label.*\n.*own\.classes names .*: no, maybe, yes"):
        download(params, "raw", "rejects", "corpora")


def test_class_named_minus_one_is_not_a_hidden_label(load):
    rows = [{"text": "a", "label": -1}, {"text": "b", "label": 1}]
    for name, count in (("train", 2), ("test", 1)):
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:count]))
    data = {"train": "train.jsonl", "dev": "train.jsonl", "test": "test.jsonl"}
    params = load(data, classes=["-1", "0", "1"])
    tables = load_rows(params, build_tasks(params)).tables["own"]
    assert tables["train"]["label"].tolist() == [0, 2] and tables["test"]["label"].tolist() == [0]
