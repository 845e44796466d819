import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from bertrio.core.errors import UserError
from bertrio.core.tasks import Binary, Ordered, Score, Task
from bertrio.evaluation.predictions import SCHEMA, check_tasks, prediction_rows, read_predictions, write_predictions

SST = Task("sst", "single", "cross", Ordered(5))
QQP = Task("qqp", "pair", "cross", Binary())
STS = Task("sts", "pair", "cross", Score(0.0, 5.0))


def table(rows: int = 4) -> pd.DataFrame:
    """Predictions of all three kinds of target, made up."""
    generator = np.random.default_rng(0)
    parts = []
    for task in (SST, QQP, STS):
        for split, label in (("dev", 1.0), ("test", np.nan)):
            outputs = generator.normal(2, 3, (rows, task.target.size))
            parts.append(prediction_rows(task, split, [f"é{i}" for i in range(rows)], np.full(rows, label), outputs))
    return pd.concat(parts, ignore_index=True)


def assert_same(one: pd.DataFrame, other: pd.DataFrame) -> None:
    """Equal to the last bit, `probabilities` row by row."""
    plain = [frame.drop(columns="probabilities") for frame in (one, other)]
    pd.testing.assert_frame_equal(*plain, check_exact=True)
    for a, b in zip(one["probabilities"], other["probabilities"], strict=True):
        assert (a is None and b is None) or (a.dtype == b.dtype == np.float64 and np.array_equal(a, b))


def test_outputs_become_what_the_target_says():
    sst = prediction_rows(SST, "dev", ["a"], np.array([4.0]), np.log([[0.1, 0.2, 0.4, 0.2, 0.1]]))
    assert sst["prediction"][0] == 2 and np.isnan(sst["score"][0])
    np.testing.assert_allclose(sst["probabilities"][0], [0.1, 0.2, 0.4, 0.2, 0.1])
    qqp = prediction_rows(QQP, "dev", ["a", "b"], np.array([1.0, 0.0]), np.array([[np.log(3.0)], [-800.0]]))
    np.testing.assert_allclose(np.stack(qqp["probabilities"]), [[0.25, 0.75], [1, 0]], atol=1e-15)
    assert qqp["prediction"].tolist() == [1, 0]
    sts = prediction_rows(STS, "test", ["a", "b"], np.array([np.nan, np.nan]), np.array([[5.5], [-0.25]]))
    assert sts["prediction"].tolist() == [5, 0] and sts["score"].tolist() == [5.5, -0.25]
    assert sts["probabilities"].isna().all() and sts["label"].isna().all()


def test_numbers_are_float64_even_from_float32_outputs():
    frame = prediction_rows(STS, "dev", ["a"], np.array([1.0], np.float32), np.array([[0.1]], np.float32))
    assert [str(frame[name].dtype) for name in ("label", "prediction", "score")] == ["float64"] * 3


def test_a_split_without_rows_makes_a_table_without_rows():
    frame = prediction_rows(SST, "test", [], np.empty(0), np.empty((0, 5)))
    assert len(frame) == 0 and list(frame.columns) == SCHEMA.names


def test_outputs_that_are_not_finite_name_the_first_row_and_the_remedy():
    with pytest.raises(UserError, match=r"task sts, split dev: .* 1 of 2 rows \(first: id 'b'\).*finetune.lr"):
        prediction_rows(STS, "dev", ["a", "b"], np.zeros(2), np.array([[1.0], [np.nan]]))


def test_reading_gives_back_what_was_written(tmp_path):
    write_predictions(table(), tmp_path / "a.parquet")
    assert_same(read_predictions(tmp_path / "a.parquet"), table())


def test_same_rows_make_same_bytes_whatever_index_they_carry(tmp_path):
    write_predictions(table(), tmp_path / "a.parquet")
    write_predictions(table().set_index(np.arange(24)[::-1]), tmp_path / "b.parquet")
    write_predictions(read_predictions(tmp_path / "a.parquet"), tmp_path / "c.parquet")
    first = (tmp_path / "a.parquet").read_bytes()
    assert (tmp_path / "b.parquet").read_bytes() == first == (tmp_path / "c.parquet").read_bytes()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda frame: frame.drop(columns="score"), "found columns .*expected id .*score"),
        (lambda frame: frame.assign(extra=1), "found columns .*extra, expected"),
        (lambda frame: pd.concat([frame, frame.iloc[[9]]]), "task qqp, split dev, id 'é1' stands twice"),
        (lambda frame: frame.assign(prediction=frame["prediction"].where(frame.index != 2)), "id 'é2' has no finite"),
    ],
)
def test_a_damaged_table_is_refused_when_written_and_when_read(tmp_path, damage, message):
    damaged = damage(table())
    with pytest.raises(UserError, match=message):
        write_predictions(damaged, tmp_path / "a.parquet")
    assert not list(tmp_path.iterdir())
    damaged.to_parquet(tmp_path / "b.parquet", index=False)
    with pytest.raises(UserError, match=f"b.parquet: .*{message}"):
        read_predictions(tmp_path / "b.parquet")


def test_files_that_hold_no_table_are_errors_that_name_them(tmp_path):
    with pytest.raises(UserError, match="none.parquet: can't be read"):
        read_predictions(tmp_path / "none.parquet")
    (tmp_path / "text.parquet").write_text("id\n")
    with pytest.raises(UserError, match="text.parquet: can't be read"):
        read_predictions(tmp_path / "text.parquet")
    table().assign(label="five").to_parquet(tmp_path / "typed.parquet", index=False)
    with pytest.raises(UserError, match="typed.parquet: a column has the wrong type"):
        read_predictions(tmp_path / "typed.parquet")


def test_predictions_of_a_task_that_params_do_not_have_are_an_error():
    with pytest.raises(UserError, match="task sts: params.yaml has no such task, only sst, qqp"):
        check_tasks(table(), {"sst": SST, "qqp": QQP})


def test_what_follows_predictions_does_not_load_torch():
    code = "import sys, bertrio.evaluation.ensembling, bertrio.evaluation.evaluate; sys.exit('torch' in sys.modules)"
    path = os.pathsep.join(sys.path)
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, check=True)
