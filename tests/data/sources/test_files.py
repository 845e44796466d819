import pandas as pd
import pytest

from bertrio.core.errors import UserError
from bertrio.data.sources import files

TEXTS = {"first": [" Is it? ", "Why, then?"], "second": ['He said "no".', "Why?"]}
ROWS = pd.DataFrame({"key": ["x1", "x2"], **TEXTS, "same": [0, 1]})
COLUMNS = {"id": "key", "text_a": "first", "text_b": "second", "label": "same"}


def serialized(frame: pd.DataFrame, ending: str) -> bytes:
    """Return the content of a data file with this ending."""
    if ending == ".parquet":
        return frame.to_parquet()
    if ending in (".jsonl", ".ndjson"):
        return frame.to_json(orient="records", lines=True).encode()
    return frame.to_csv(index=False, sep="\t" if ending == ".tsv" else ",").encode()


def load(data_params, tasks, name, **block):
    params = data_params(source="files", path=block.pop("path", None), files={name: block})
    return files.load_tasks(params, {name: tasks[name]})


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "ndjson", "parquet", "CSV"])
def test_every_file_format_gives_the_same_table(tmp_path, data_params, tasks, ending):
    (tmp_path / f"a.{ending}").write_bytes(serialized(ROWS, f".{ending.lower()}"))
    data = load(data_params, tasks, "qqp", path=str(tmp_path), train=f"a.{ending}", columns=COLUMNS)
    rows = [["x1", "Is it?", 'He said "no".', 0.0], ["x2", "Why, then?", "Why?", 1.0]]
    assert data.tables["qqp"]["train"].values.tolist() == rows


def test_absolute_paths_and_default_columns(tmp_path, data_params, tasks):
    (tmp_path / "a.csv").write_text("text,label\na,1\nb,3\n")
    table = load(data_params, tasks, "sst", path="/elsewhere", train=str(tmp_path / "a.csv")).tables["sst"]["train"]
    assert table["label"].tolist() == [1.0, 3.0]
    assert table["id"].tolist() == ["train-2", "train-3"]  # lines of the file


def test_rows_that_are_not_json_objects_are_rejected(tmp_path, data_params, tasks):
    (tmp_path / "a.jsonl").write_bytes(
        b'{"text": "a", "label": 1}\n{"text": \n\n[1]\n{"text": "caf\xe9", "label": 1}\n{"label": 2}\n'
        + b'{"text": "caf\xe9 \xef\xbf\xbd", "label": 1}\n'  # next to a real replacement character
    )
    data = load(data_params, tasks, "sst", train=str(tmp_path / "a.jsonl"))
    assert len(data.tables["sst"]["train"]) == 1
    reasons = {2: "not valid JSON", 4: "not a JSON object", 5: "not UTF-8", 6: "missing field", 7: "not UTF-8"}
    assert {reject.row: reject.reason for reject in data.rejects} == reasons
    assert data.rejects[-2].raw == '{"label": 2}'


def test_unknown_column_error_suggests_the_nearest(tmp_path, data_params, tasks):
    (tmp_path / "a.csv").write_bytes(serialized(ROWS, ".csv"))
    with pytest.raises(UserError, match=r"'key', 'first', .*expected 'frist'; did you mean 'first'\?.*files\.qqp"):
        load(data_params, tasks, "qqp", train=str(tmp_path / "a.csv"), columns={**COLUMNS, "text_a": "frist"})


@pytest.mark.parametrize(("name", "message"), [("none.csv", "can't be read"), ("b.parquet", "as Parquet")])
def test_unreadable_file_is_an_error(tmp_path, data_params, tasks, name, message):
    (tmp_path / "b.parquet").write_text("no parquet")
    with pytest.raises(UserError, match=message):
        load(data_params, tasks, "sst", path=str(tmp_path), train=name)


@pytest.mark.shared
def test_tsv_written_without_quoting_loses_few_rows(shared, data_params, tasks):
    columns = {"text_a": "question1", "text_b": "question2", "label": "is_duplicate"}
    data = load(data_params, tasks, "qqp", train=str(shared / "data" / "qqp-extra.tsv"), columns=columns)
    assert {reject.reason for reject in data.rejects} == {"damaged quoting"} and len(data.rejects) == 5
