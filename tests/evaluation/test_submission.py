import numpy as np
import pandas as pd
import pytest

from bertrio.core.tasks import Classes, Task
from bertrio.evaluation.predictions import prediction_rows
from bertrio.evaluation.submission import write_submissions
from tests.evaluation.tables import TASKS as THREE

TASKS = {**THREE, "own": Task("own", "single", "cross", Classes(3))}
HEADERS = {"sst": "Predicted_Sentiment", "para": "Predicted_Is_Paraphrase", "sts": "Predicted_Similiary"}


def graded(path, number) -> dict:
    """Reads a submission as the course does: the first line is skipped, the rest is `ID , VALUE `."""
    lines = path.read_text(encoding="utf-8").split("\n")
    assert lines[-1] == ""
    fields = [line.split(" , ") for line in lines[1:-1]]
    assert all(len(pair) == 2 and pair[1].endswith(" ") for pair in fields)
    return {row_id.strip(): number(value) for row_id, value in fields}


@pytest.fixture
def frame():
    generator, unlabelled = np.random.default_rng(0), np.full(3, np.nan)
    parts = [
        prediction_rows(task, split, ids, unlabelled, generator.normal(2, 4, (3, task.target.size)))
        for task in TASKS.values()
        for split, ids in (("dev", ["dev3", "dev1", "dev2"]), ("test", ["test3", "test1", "test2"]))
    ]
    return pd.concat(parts, ignore_index=True)


def test_the_grader_reads_back_every_prediction_in_order(tmp_path, frame):
    write_submissions(frame, tmp_path, TASKS)
    for task, (name, number) in {"sst": ("sst", int), "qqp": ("para", int), "sts": ("sts", float)}.items():
        for split in ("dev", "test"):
            rows = frame[(frame["task"] == task) & (frame["split"] == split)]
            found = graded(tmp_path / f"{name}-{split}-output.csv", number)
            assert list(found.items()) == list(zip(rows["id"], rows["prediction"]))
            header = f"id \t {HEADERS[name]} \n{split}3 , "
            assert (tmp_path / f"{name}-{split}-output.csv").read_bytes().startswith(header.encode())
    assert len(list(tmp_path.iterdir())) == 6, "the course has no other task"


def test_scores_are_plain_decimals_that_lose_nothing(tmp_path):
    scores = np.array([1e-7, 3.0, 1 / 3, 7.5])
    write_submissions(prediction_rows(TASKS["sts"], "dev", list("abcd"), np.zeros(4), scores[:, None]), tmp_path, TASKS)
    text = (tmp_path / "sts-dev-output.csv").read_text()
    assert "a , 0.0000001 \nb , 3.0 \n" in text and "e-" not in text
    assert list(graded(tmp_path / "sts-dev-output.csv", float).values()) == [1e-7, 3.0, 1 / 3, 5.0]


def test_rows_that_the_ensemble_was_chosen_on_are_still_handed_in_where_they_stood(tmp_path, frame):
    write_submissions(frame, tmp_path / "a", TASKS)
    apart = frame["split"].where((frame["split"] == "test") | (frame["id"] != "dev1"), "selection")
    write_submissions(frame.assign(split=apart), tmp_path / "b", TASKS)
    one, other = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in "ab")
    assert one == other


def test_a_file_of_an_earlier_run_does_not_stay(tmp_path, frame):
    write_submissions(frame, tmp_path, TASKS)
    write_submissions(frame[frame["split"] == "dev"], tmp_path, TASKS)
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}-dev-output.csv" for name in HEADERS}
