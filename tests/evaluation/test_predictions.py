import numpy as np
import pandas as pd
import pytest

from bertrio.core.errors import UserError
from bertrio.evaluation.predictions import SCHEMA, check_tasks, prediction_rows, read_predictions, write_predictions
from tests.evaluation.tables import QQP, SST, STS, predictions


def test_a_split_without_rows_gives_an_empty_table():
    frame = prediction_rows(SST, "test", [], np.empty(0), np.empty((0, 5)))
    assert len(frame) == 0 and list(frame.columns) == SCHEMA.names


def test_non_finite_outputs_are_an_error():
    with pytest.raises(UserError, match=r"task sts, split dev: .* 1 of 2 rows \(first: id 'b'\).*finetune.lr"):
        prediction_rows(STS, "dev", ["a", "b"], np.zeros(2), np.array([[1.0], [np.nan]]))


def test_tables_round_trip_and_write_the_same_bytes(tmp_path):
    write_predictions(predictions(), tmp_path / "a.parquet")
    write_predictions(predictions().set_index(np.arange(240)[::-1]), tmp_path / "b.parquet")
    table = read_predictions(tmp_path / "a.parquet")
    pd.testing.assert_frame_equal(table.drop(columns="probabilities"), predictions().drop(columns="probabilities"))
    write_predictions(table, tmp_path / "c.parquet")
    first = (tmp_path / "a.parquet").read_bytes()
    assert (tmp_path / "b.parquet").read_bytes() == first == (tmp_path / "c.parquet").read_bytes()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda frame: pd.concat([frame, frame.iloc[[81]]]), "task qqp, split dev, id '1' stands twice"),
        (lambda frame: frame.assign(prediction=frame["prediction"].where(frame.index != 2)), "id '2' lacks .*finite"),
        (lambda frame: frame.assign(id=frame["id"].where(frame.index != 2)), "id (nan|None) lacks a part of its name"),
    ],
)
def test_damaged_tables_are_neither_written_nor_read(tmp_path, damage, message):
    damaged = damage(predictions())
    with pytest.raises(UserError, match=message):
        write_predictions(damaged, tmp_path / "a.parquet")
    assert not list(tmp_path.iterdir())
    damaged.to_parquet(tmp_path / "b.parquet", index=False)
    with pytest.raises(UserError, match=f"b.parquet: .*{message}.*run the stage"):
        read_predictions(tmp_path / "b.parquet")


@pytest.mark.parametrize(
    "write",
    [
        lambda path: None,
        lambda path: path.write_text("id\n"),
        lambda path: predictions().drop(columns="score").to_parquet(path),
        lambda path: predictions().assign(label="five").to_parquet(path),
    ],
)
def test_files_without_a_table_are_an_error(tmp_path, write):
    write(tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"a.parquet: can't be read .*expected columns id \(string\)"):
        read_predictions(tmp_path / "a.parquet")


def test_unknown_tasks_are_an_error():
    with pytest.raises(UserError, match="task sts: params.yaml has no such task, only sst, qqp"):
        check_tasks(predictions(), {"sst": SST, "qqp": QQP})
