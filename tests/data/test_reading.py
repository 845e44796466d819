import json

import numpy as np
import pandas as pd
import pytest

from bertrio.core.errors import UserError
from bertrio.data.formats import RawRow
from bertrio.data.reading import normalise
from bertrio.data.table import is_labelled, read_table, write_table


def rows(*values, **same):
    return [RawRow(number, {"id": f"r{number}", **same, **value}) for number, value in enumerate(values, start=1)]


def reasons(found):
    return [(reject.row, reject.reason) for reject in found]


def test_a_table_comes_back_as_it_was_written(tmp_path):
    frame = pd.DataFrame({"id": ["1", "2"], "text": ["a", "ü\n\t\"'"], "label": [1.0, np.nan]})
    write_table(frame, tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(read_table(tmp_path / "t.parquet"), frame, check_dtype=False)


def test_the_same_rows_give_the_same_bytes_whatever_the_index(tmp_path):
    frame = pd.DataFrame({"id": ["1", "2"], "text": ["a", "b"], "label": [0.0, 1.0]})
    write_table(frame, tmp_path / "a.parquet")
    write_table(frame.set_index(pd.Index([7, 3], name="other")), tmp_path / "b.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    assert b"pandas" not in (tmp_path / "a.parquet").read_bytes()


def test_a_table_without_rows_keeps_its_columns(tmp_path, tasks):
    frame, _ = normalise([], tasks["qqp"], "test", labelled=False, file="f")
    write_table(frame, tmp_path / "t.parquet")
    again = read_table(tmp_path / "t.parquet")
    assert list(again.columns) == ["id", "text_a", "text_b", "label"] and len(again) == 0
    assert again["label"].dtype == np.float64 and not is_labelled(again)


def test_a_missing_table_is_an_error_that_says_what_to_run(tmp_path):
    with pytest.raises(UserError, match=r"t\.parquet: is missing; an earlier stage makes it"):
        read_table(tmp_path / "t.parquet")


def test_texts_are_stripped_and_labels_parsed(tasks):
    found, rejects = normalise(
        rows({"text": " a  b\t", "label": " 3 "}, {"text": "c", "label": 4}), tasks["sst"], "train", True, "f"
    )
    assert found["text"].tolist() == ["a  b", "c"] and found["label"].tolist() == [3.0, 4.0] and rejects == []


@pytest.mark.parametrize(
    ("task", "value", "reason"),
    [
        ("sst", {"text": "a", "label": "good"}, "label is not a number"),
        ("sst", {"text": "a", "label": "nan"}, "label is not a number"),
        ("sst", {"text": "a", "label": "5"}, "label out of range"),
        ("sst", {"text": "a", "label": "2.5"}, "label out of range"),
        ("sst", {"text": "a", "label": [1]}, "label is not a number"),
        ("sst", {"text": "a", "label": " "}, "missing label"),
        ("sst", {"text": "a", "label": float("nan")}, "missing label"),
        ("sst", {"text": "a"}, "missing label"),
        ("sst", {"text": " \t ", "label": "1"}, "empty text"),
        ("sst", {"text": None, "label": "1"}, "missing field"),
        ("sst", {"label": "1"}, "missing field"),
        ("sst", {"text": 7, "label": "1"}, "text is not a string"),
        ("sst", {"text": "a\ud800", "label": "1"}, "text is not Unicode"),
        ("sst", {"id": " ", "text": "a", "label": "1"}, "missing id"),
        ("sst", {"id": "r1", "text": "a", "label": "1"}, "duplicate id"),
        ("qqp", {"text_a": "a", "text_b": "", "label": "1"}, "empty text"),
        ("qqp", {"text_a": "a", "text_b": "b", "label": "2"}, "label out of range"),
        ("sts", {"text_a": "a", "text_b": "b", "label": "5.01"}, "label out of range"),
    ],
)
def test_a_row_that_cannot_be_used_is_rejected_with_its_reason(tasks, task, value, reason):
    good = {"text": "x", "text_a": "x", "text_b": "y", "label": "1"}
    found, rejects = normalise(rows(good, value), tasks[task], "train", True, "some.csv")
    assert found["id"].tolist() == ["r1"] and reasons(rejects) == [(2, reason)]
    assert (rejects[0].task, rejects[0].split, rejects[0].file) == (task, "train", "some.csv")
    assert "id" in json.loads(rejects[0].raw)


def test_a_rejected_row_does_not_use_up_its_id(tasks):
    found, rejects = normalise(
        [RawRow(1, {"id": "x", "text": "", "label": "1"}), RawRow(2, {"id": "x", "text": "a", "label": "1"})],
        tasks["sst"], "train", True, "f",
    )  # fmt: skip
    assert len(found) == 1 and reasons(rejects) == [(1, "empty text")]


@pytest.mark.parametrize("label", ["", None, "-1", -1, -1.0])
def test_a_test_file_whose_labels_are_all_hidden_is_unlabelled(tasks, label):
    found, rejects = normalise(
        rows({"text": "a", "label": label}, {"text": "b", "label": label}), tasks["sst"], "test", True, "f"
    )
    assert len(found) == 2 and found["label"].isna().all() and rejects == []


def test_hidden_labels_are_no_labels_to_train_on(tasks):
    with pytest.raises(UserError, match="sst: f: found no labels, expected them in dev"):
        normalise(rows({"text": "a", "label": "-1"}), tasks["sst"], "dev", True, "f")
    with pytest.raises(UserError, match="found no labels"):
        normalise(rows({"text": "a"}), tasks["sst"], "train", False, "f")


def test_a_test_file_with_some_labels_loses_the_rows_without(tasks):
    found, rejects = normalise(
        rows({"text": "a", "label": "-1"}, {"text": "b", "label": "1"}), tasks["sst"], "test", True, "f"
    )
    assert len(found) == 1 and reasons(rejects) == [(1, "label out of range")]


def test_rows_that_could_not_be_read_do_not_make_a_file_unlabelled(tasks):
    found, rejects = normalise([RawRow(1, {}, "xx", "damaged quoting")], tasks["sst"], "train", True, "f")
    assert len(found) == 0 and rejects[0].raw == "xx" and rejects[0].reason == "damaged quoting"
