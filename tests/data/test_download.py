import csv
import json

import pytest

from bertrio.core.errors import UserError
from bertrio.data.download import download
from bertrio.data.table import read_table


@pytest.fixture
def source(tmp_path, params, data_params):
    """Return params for two files of sst, with one bad row after `good` good ones, and for corpora of 2,500 rows."""

    def source(good=200, most=0.01, mlm=False, **rows_by_corpus):
        rows = [f"a text {i},{i % 5}\n" for i in range(good)]
        (tmp_path / "train.csv").write_text("text,label\n" + "".join(rows) + "bad,9\n")
        (tmp_path / "dev.csv").write_text("text,label\nfine,1\n")
        (tmp_path / "imdb.tsv").write_text("text\n" + "some text\n" * 2500)
        (tmp_path / "multinli.tsv").write_text("premise\thypothesis\n" + "some\ttext\n" * 2500 + "\t\none\n")
        data = data_params(
            source="files", path=str(tmp_path), corpora_path=str(tmp_path), max_reject_fraction=most,
            files={"sst": {"train": "train.csv", "dev": "dev.csv"}},
        )  # fmt: skip
        base = params(mlm={"enabled": mlm, "rows": {"imdb": 2200, "multinli": 9000, "sick": 0, **rows_by_corpus}})
        return base.model_copy(update={"data": data, "tasks": {"sst": base.tasks["sst"]}})

    return source


@pytest.fixture
def run_download(tmp_path):
    out = tmp_path / "out"
    return lambda params: download(params, out / "raw", out / "rejects", out / "corpora") or out


def test_tables_facts_and_rejects_are_written(source, run_download):
    out = run_download(source())
    assert len(read_table(out / "raw/sst/train.parquet")) == 200 and len(read_table(out / "raw/sst/dev.parquet")) == 1
    facts = json.loads((out / "raw/facts.json").read_text())
    assert facts["source"] == "files"
    assert facts["rejects"] == {"sst": {"total": 1, "train": {"label_out_of_range": 1}}}
    with open(out / "rejects/sst.csv", newline="") as file:
        header, row = csv.reader(file)
    assert header == ["task", "split", "file", "row", "reason", "raw"]
    assert row == ["sst", "train", "train.csv", "202", "label out of range", "bad,9"]


def test_extra_rows_have_their_own_table_and_reject_counts(source, run_download, tmp_path):
    (tmp_path / "more.csv").write_text("sentence,degree\nanother,3\nempty,\n")
    params = source(most=0.5)
    block = {"sst": {"train": "more.csv", "columns": {"text": "sentence", "label": "degree"}}}
    more = {"bare": {"task": "sst", "path": "more.csv", "columns": {"text": "sentence", "label": "degree"}}}
    blocks = {"extra_train": block, "unlabelled": more}
    data = params.data.model_validate({**params.data.model_dump(by_alias=True), **blocks})
    out = run_download(params.model_copy(update={"data": data}))
    bare = read_table(out / "raw/sst/unlabelled-bare.parquet")
    assert bare["text"].tolist() == ["another", "empty"] and bare["label"].isna().all(), "labels are not read"
    more = read_table(out / "raw/sst/extra_train.parquet")
    assert more.values.tolist() == [["extra_train-2", "another", 3.0]]
    rejects = json.loads((out / "raw/facts.json").read_text())["rejects"]["sst"]
    assert rejects["extra_train"] == {"missing_label": 1} and rejects["total"] == 2


def test_second_download_produces_the_same_bytes_and_removes_old_files(source, run_download):
    out = run_download(source())
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    (out / "raw/sst/test.parquet").write_text("old")
    run_download(source())
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_too_many_rejects_are_an_error_after_they_are_written(source, run_download, tmp_path):
    with pytest.raises(UserError, match=r"train\.csv: 1 of 6 rows.*1 label out of range.*sst\.csv\n.*max_reject_frac"):
        run_download(source(good=5))
    assert "label out of range" in (tmp_path / "out/rejects/sst.csv").read_text()
    assert not list((tmp_path / "out/raw").rglob("*.parquet"))
    run_download(source(good=5, most=0.2))


def test_corpora_are_written_only_for_mlm(source, run_download, capsys, tmp_path):
    out = run_download(source(mlm=True))
    assert {path.name for path in (out / "corpora").iterdir()} == {"imdb.parquet", "multinli.parquet", "rows.json"}
    assert len(read_table(out / "corpora/imdb.parquet")) == 2200
    assert read_table(out / "corpora/multinli.parquet")["text"].tolist() == ["some text"] * 2500
    assert json.loads((out / "raw/facts.json").read_text())["corpora"] == {
        "imdb": {"rows": 2200},
        "multinli": {"rows": 2500, "skipped": {"empty_text": 1, "wrong_number_of_columns": 1}},
    }
    assert "all there are; mlm.rows.multinli asks for 9000; skipped 2 rows (1 empty text," in capsys.readouterr().err
    (tmp_path / "mine.tsv").write_text("text\nof my own\n")
    assert read_table(run_download(source(mlm=True, mine=9)) / "corpora/mine.parquet")["text"].tolist() == ["of my own"]
    assert [path.name for path in (run_download(source()) / "corpora").iterdir()] == ["rows.json"]
