import json
import time
import weakref

import numpy as np
import pandas as pd
import pytest

from bertrio.core.errors import UserError
from bertrio.data.formats import RawRow, RawTable
from bertrio.data.reading import build_table, check_columns
from bertrio.data.table import is_labelled, read_table, write_table


def rows(*values):
    return [RawRow(number, {"id": f"r{number}", **value}) for number, value in enumerate(values, start=1)]


def build(task, rows, split="train", columns=("id", "text", "text_a", "text_b", "label")):
    return build_table(RawTable(list(columns), lambda: iter(rows)), {}, task, split, "some.csv", "data.files")


def reasons(rejects):
    return [(reject.row, reject.reason) for reject in rejects]


def test_table_round_trip_with_reproducible_bytes(tmp_path):
    frame = pd.DataFrame({"id": ["1", "2"], "text": ["a", "ü\n\t\"'"], "label": [1.0, np.nan]})
    write_table(frame, tmp_path / "a.parquet")
    write_table(frame.set_index(pd.Index([7, 3], name="other")), tmp_path / "b.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    pd.testing.assert_frame_equal(read_table(tmp_path / "a.parquet"), frame, check_dtype=False)


def test_thirty_thousand_columns_are_checked_fast():
    began, names = time.process_time(), [f"c{number}" for number in range(30_000)]
    check_columns("a.csv", names, names)
    assert time.process_time() - began < 1


def test_table_without_rows_keeps_its_columns(tmp_path, tasks):
    frame, _ = build(tasks["qqp"], [], "test")
    write_table(frame, tmp_path / "t.parquet")
    read_back = read_table(tmp_path / "t.parquet")
    assert list(read_back.columns) == ["id", "text_a", "text_b", "label"] and len(read_back) == 0
    assert read_back["label"].dtype == np.float64 and not is_labelled(read_back)


@pytest.mark.parametrize(
    ("task", "value", "reason"),
    [
        ("sst", {"text": "a", "label": "good"}, "label is not a number"),
        ("sst", {"text": "a", "label": "5"}, "label out of range"),
        ("sst", {"text": "a", "label": " "}, "missing label"),
        ("sst", {"text": "a", "label": float("nan")}, "missing label"),
        ("sst", {"text": " \t ", "label": "1"}, "empty text"),
        ("sst", {"label": "1"}, "missing field"),
        ("sst", {"text": 7, "label": "1"}, "text is not a string"),
        ("sst", {"text": "a\ud800", "label": "1"}, "text is not Unicode"),
        ("sst", {"id": " ", "text": "a", "label": "1"}, "missing id"),
        ("sst", {"id": "r1", "text": "a", "label": "1"}, "duplicate id"),
        ("qqp", {"text_a": "a", "text_b": "", "label": "1"}, "empty text"),
    ],
)
def test_unusable_row_is_rejected_with_a_reason(tasks, task, value, reason):
    good = {"text": " x\t", "text_a": "x", "text_b": "y", "label": " 1 "}
    table, rejects = build(tasks[task], rows(good, value))
    assert table["id"].tolist() == ["r1"] and table["label"].tolist() == [1.0] and reasons(rejects) == [(2, reason)]
    assert table[tasks[task].text_columns[0]].tolist() == ["x"]
    assert (rejects[0].task, rejects[0].split, rejects[0].file) == (task, "train", "some.csv")
    assert "id" in json.loads(rejects[0].raw)


def test_id_of_a_rejected_row_stays_free(tasks):
    same = {"id": "x", "label": "1"}
    table, rejects = build(tasks["sst"], rows({**same, "text": ""}, {**same, "text": "a"}))
    assert len(table) == 1 and reasons(rejects) == [(1, "empty text")]


@pytest.mark.parametrize("label", ["", None, "-1", -1, -1.0])
def test_test_file_with_hidden_labels_is_unlabelled(tasks, label):
    hidden = rows({"text": "a", "label": label}, {"text": "b", "label": label})
    table, rejects = build(tasks["sst"], hidden, "test")
    assert len(table) == 2 and table["label"].isna().all() and rejects == []
    with pytest.raises(UserError, match=r"sst: some\.csv: found no labels, expected them in dev"):
        build(tasks["sst"], hidden, "dev")


def test_rows_are_read_in_batches(tasks):
    alive, counts = weakref.WeakSet(), []

    class Values(dict):
        __hash__ = object.__hash__

    def read():
        for number in range(1, 12_001):
            values = Values(id=f"r{number}", text=f"text {number}", label="-1" if number < 1500 else "1")
            alive.add(values)
            counts.append(len(alive))
            yield RawRow(number, values)

    source = RawTable(["id", "text", "label"], read)
    table, rejects = build_table(source, {}, tasks["sst"], "test", "f", "p")
    assert table["id"].tolist() == [f"r{number}" for number in range(1500, 12_001)] and len(rejects) == 1499
    assert max(counts) < 3000
