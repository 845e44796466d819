import numpy as np
import pandas as pd
import pytest

from bertrio.core.tasks import Classes, Task
from bertrio.evaluation.predictions import prediction_rows
from bertrio.evaluation.submission import write_submissions
from tests.evaluation.tables import TASKS as THREE
from tests.evaluation.tables import predictions

TASKS = {**THREE, "other": Task("other", "single", "cross", Classes(3))}
HEADERS = {"sst": "Predicted_Sentiment", "para": "Predicted_Is_Paraphrase", "sts": "Predicted_Similiary"}


def read_as_grader(path, number) -> dict:
    """Read a submission as the course does: skip the first line, the rest is `ID , VALUE `."""
    lines = path.read_text(encoding="utf-8").split("\n")
    assert lines[-1] == ""
    fields = [line.split(" , ") for line in lines[1:-1]]
    assert all(len(pair) == 2 and pair[1].endswith(" ") for pair in fields)
    return {row_id.strip(): number(value) for row_id, value in fields}


@pytest.fixture
def frame():
    other = prediction_rows(TASKS["other"], "dev", ["0"], np.zeros(1), np.zeros((1, 3)))
    return pd.concat([predictions(rows=3).sample(frac=1, random_state=0), other], ignore_index=True)


def test_grader_reads_back_every_prediction_in_order(tmp_path, frame):
    write_submissions(frame, tmp_path, TASKS)
    for task, (name, number) in {"sst": ("sst", int), "qqp": ("para", int), "sts": ("sts", float)}.items():
        for split in ("dev", "test"):
            rows = frame[(frame["task"] == task) & (frame["split"] == split)]
            values = read_as_grader(tmp_path / f"{name}-{split}-output.csv", number)
            assert list(values.items()) == list(zip(rows["id"], rows["prediction"]))
            header = f"id \t {HEADERS[name]} \n{rows['id'].iloc[0]} , "
            assert (tmp_path / f"{name}-{split}-output.csv").read_bytes().startswith(header.encode())
    assert len(list(tmp_path.iterdir())) == 6, "the course has no other task"


def test_scores_are_plain_decimals_without_loss(tmp_path):
    scores = np.array([1e-7, 3.0, 1 / 3, 7.5])
    write_submissions(prediction_rows(TASKS["sts"], "dev", list("abcd"), np.zeros(4), scores[:, None]), tmp_path, TASKS)
    text = (tmp_path / "sts-dev-output.csv").read_text()
    assert "a , 0.0000001 \nb , 3.0 \n" in text and "e-" not in text
    assert list(read_as_grader(tmp_path / "sts-dev-output.csv", float).values()) == [1e-7, 3.0, 1 / 3, 5.0]


def test_dev_files_hold_selection_rows_in_their_place(tmp_path, frame):
    write_submissions(frame, tmp_path / "a", TASKS)
    split = frame["split"].where((frame["split"] == "test") | (frame["id"] != "1"), "selection")
    write_submissions(frame.assign(split=split), tmp_path / "b", TASKS)
    a, b = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in "ab")
    assert a == b


def test_files_of_an_earlier_run_are_removed(tmp_path, frame):
    write_submissions(frame, tmp_path, TASKS)
    write_submissions(frame[frame["split"] == "dev"], tmp_path, TASKS)
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}-dev-output.csv" for name in HEADERS}
