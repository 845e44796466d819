import hashlib
import json
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from bertrio.core.errors import UserError
from bertrio.core.files import write_json
from bertrio.core.gender import gender_swapped
from bertrio.core.tasks import TEXT_COLUMNS
from bertrio.data.prepare import split_data
from bertrio.data.table import read_table, write_table
from tests.reading import Reads
from tests.small_bert import save_bert


@pytest.fixture
def raw(tmp_path, monkeypatch, tasks):
    """The outputs of `download`, with fake baselines."""
    baselines = SimpleNamespace(simple_baselines=lambda splits, tasks: {"sst": 0.5})
    monkeypatch.setitem(sys.modules, "bertrio.data.baselines", baselines)
    rng = np.random.default_rng(0)
    for task in tasks.values():
        for split, count in (("train", 80), ("dev", 10), ("test", 10)):
            frame = pd.DataFrame({"id": [f"{split}{i}" for i in range(count)]})
            for name in TEXT_COLUMNS[task.kind]:
                frame[name] = [f"{split} text {a} and {b}" for a, b in rng.integers(0, 99, (count, 2))]
            write_table(frame.assign(label=1.0), tmp_path / "raw" / task.name / f"{split}.parquet")
    write_json(tmp_path / "raw/facts.json", {"source": "files", "origin": {}, "rejects": {"sst": {"total": 0}}})
    return tmp_path / "raw"


def prepare(params, raw, out="out"):
    folder = raw.parent / out
    return folder, split_data(params, raw, folder / "splits", folder / "tokenizer", folder / "data.json")


def test_outputs_and_a_split_rule_of_one_task(params, raw):
    rule = {"strategy": "random", "fractions": [0.5, 0.25, 0.25]}
    out, facts = prepare(params(encoder={"tiny": {"vocab_size": 200}}, data={"split": {"tasks": {"sst": rule}}}), raw)
    assert [len(read_table(out / f"splits/{name}.parquet")) for name in ("qqp/train", "sts/test")] == [80, 10]
    assert (out / "tokenizer/tokenizer.json").is_file()
    assert json.loads((out / "data.json").read_text()) == facts
    assert facts["source"] == "files" and facts["rejects"] == {"sst": {"total": 0}}
    assert facts["simple_baselines"] == {"sst": 0.5} and facts["tasks"]["qqp"]["dev"]["labels"] == {"yes": 10}
    assert [facts["tasks"]["sst"][split]["rows"] for split in ("train", "dev", "test")] == [50, 25, 25]


def test_hub_encoder_is_recorded_with_commit_and_file_hashes(params, raw, monkeypatch):
    folder = raw.parent / "snapshots" / ("c" * 40)
    save_bert(folder)
    revisions = []
    monkeypatch.setattr("bertrio.model.names.fetch_encoder", lambda _, revision: revisions.append(revision) or folder)
    _, facts = prepare(params(encoder={"name": "org/bert", "revision": "v1"}), raw)
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    assert facts["encoder"] == {"id": "org/bert", "commit": folder.name, "files": digests}
    assert revisions == ["v1", folder.name]


def test_failed_encoder_keeps_earlier_outputs(params, raw):
    out, _ = prepare(params(encoder={"tiny": {"vocab_size": 200}}), raw)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="there is no config.json"):
        prepare(params(encoder={"name": str(raw)}), raw)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_extra_rows_join_train_before_subsampling(params, raw):
    extra = pd.DataFrame({"id": ["1", "2"], "text_a": ["new", "same"], "text_b": ["pair", "same"], "label": 0.0})
    dev = read_table(raw / "qqp/dev.parquet")
    dev.loc[0, "text_a"] = "a text\rwith a carriage return"
    write_table(dev, raw / "qqp/dev.parquet")
    write_table(pd.concat([extra, dev.iloc[:3].assign(id=["x", "y", "z"])]), raw / "qqp/extra_train.parquet")
    data = {"extra_train": {"qqp": {"train": "more.tsv"}}, "split": {"keep": {"train": 0.5}}}
    for name in ("one", "two"):  # both have a row of dev
        unlabelled = pd.concat([extra.iloc[:1].assign(text_b=["alone", name][name == "two"]), dev.iloc[:1]])
        write_table(unlabelled.assign(id=["1", "2"], label=np.nan), raw / f"qqp/unlabelled-{name}.parquet")
    out, facts = prepare(params(encoder={"tiny": {"vocab_size": 200}}, data=data), raw)
    assert facts["unlabelled"] == {"qqp": {"unlabelled-one": 1}}, "subsampled with the share of train"
    assert read_table(out / "splits/qqp/unlabelled.parquet")["text_b"].tolist() == ["alone"]
    assert read_table(out / "splits/qqp/train.parquet")["source"].value_counts().to_dict() == {"extra_train": 1}
    assert facts["extra_left_out"] == {"qqp": {"also in dev": 3}}
    assert facts["tasks"]["qqp"]["train"]["rows"] == 41 and facts["tasks"]["sts"]["train"]["rows"] == 40
    left_out = pd.read_csv(out / "splits/qqp/left_out.csv")
    assert left_out["id"].tolist() == ["x", "y", "z"] and set(left_out["reason"]) == {"also in dev"}
    assert left_out["text_a"].tolist() == dev["text_a"].iloc[:3].tolist()
    assert not (out / "splits/sts/left_out.csv").exists()


def test_gender_swapped_copies_join_train_unless_in_dev(params, raw, monkeypatch):
    texts = {"train": ["she is funny", "a film", "He sang"], "dev": ["she sang"]}
    for split, rows in texts.items():
        frame = pd.DataFrame({"id": [str(row) for row in range(len(rows))], "text": rows})
        write_table(frame.assign(label=np.arange(len(rows), dtype=float)), raw / f"sst/{split}.parquet")
    data = {"extra_train": {"sst": {"gender_swapped": True}}}
    out, facts = prepare(params(encoder={"tiny": {"vocab_size": 200}}, data=data), raw)
    train = read_table(out / "splits/sst/train.parquet")
    assert train["text"].tolist() == ["she is funny", "a film", "He sang", "he is funny"]
    assert train["label"].tolist() == [0, 1, 2, 0] and train["id"].iloc[3] == "swapped-0"
    assert facts["extra_left_out"] == {"sst": {"also in dev": 1}}
    write_table(pd.DataFrame({"id": ["0"], "text": ["her play"], "label": [3.0]}), raw / "sst/extra_train.parquet")
    reads = Reads(monkeypatch)
    out, _ = prepare(params(encoder={"tiny": {"vocab_size": 200}}, data=data), raw, "more")
    ids = read_table(out / "splits/sst/train.parquet")["id"].tolist()
    assert ids == ["0", "1", "2", "extra-0", "swapped-0", "swapped-extra-0"]
    assert {"data.extra_train"} <= reads.names and not [name for name in reads.untracked("split") if "extra" in name]


def test_words_of_other_alphabets_stay():
    assert gender_swapped("H\u0130S h\u0131s hi\u017f His") == "H\u0130S h\u0131s hi\u017f Her"
