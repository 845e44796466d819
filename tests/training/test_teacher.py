"""Learning from a trained model: what it says of the training rows, and that a student comes to say the same."""

import numpy as np
import pandas as pd
import pytest
import torch

from bertrio.core.errors import UserError
from bertrio.core.runtime import set_up
from bertrio.data.table import read_table
from bertrio.inference.predictor import Predictor
from bertrio.training.build import hold_out, teacher_predictions
from tests.training.conftest import TASKS, run, split_of


@pytest.fixture
def teacher(workspace):
    run(workspace.params(finetune={"epochs": 2, "lr": 0.02}), "teacher")
    return "teacher/model"


def asked(params):
    rows = split_of(params, "train")
    return rows, teacher_predictions(params, rows, "data/splits", set_up(1, "cpu", "float32"))


def test_what_is_taught_is_what_the_predictor_says_of_each_row(workspace, teacher):
    _, said = asked(workspace.params(distill={"weight": 1, "teacher": teacher}))
    predictor = Predictor.load(teacher, device="cpu", precision="float32")
    assert {task: tuple(of.shape) for task, of in said.items()} == {"sst": (60, 5), "qqp": (60, 2), "sts": (60, 1)}
    for task in TASKS:
        frame = read_table(f"data/splits/{task}/train.parquet")
        texts = frame[[name for name in frame if name.startswith("text")]].itertuples(index=False)
        for own, found in zip(said[task], predictor.predict(task, [row if len(row) > 1 else row[0] for row in texts])):
            expected = [found.score] if found.probabilities is None else found.probabilities
            np.testing.assert_allclose(own, expected, rtol=1e-6)


def test_rows_that_are_held_out_leave_the_others_with_what_is_said_of_them(workspace, teacher):
    params = workspace.params(distill={"weight": 1, "teacher": teacher, "tasks": ["sst"]})
    rows, said = asked(params)
    kept, _ = hold_out(rows, 0.5, 1)
    fewer = teacher_predictions(params, kept, "data/splits", set_up(1, "cpu", "float32"))
    assert set(fewer) == {"sst"}
    places = pd.Index(rows["sst"].ids).get_indexer(kept["sst"].ids)
    torch.testing.assert_close(fewer["sst"], said["sst"][places])


def test_a_teacher_of_classes_in_another_order_is_refused(workspace, teacher):
    names = ["awful", "poor", "middling", "good", "great"]
    distill = {"weight": 1, "teacher": "named/model"}
    run(workspace.params(tasks={"sst": {"labels": names}}), "named")
    with pytest.raises(
        UserError, match="task sst: the teacher knows it as .*awful, poor, .*params.yaml says .*great, good"
    ):
        asked(workspace.params(distill=distill, tasks={"sst": {"labels": names[::-1]}}))
    assert set(asked(workspace.params(distill=distill))[1]) == set(TASKS), "one that has no names says nothing else"
