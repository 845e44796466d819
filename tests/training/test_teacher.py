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


def test_teacher_predictions_are_those_of_the_predictor_for_each_row_and_any_choice_of_rows(workspace, teacher):
    params = workspace.params(distill={"weight": 1, "teacher": teacher})
    rows, predictions = asked(params)
    predictor = Predictor.load(teacher, device="cpu", precision="float32")
    shapes = {task: tuple(values.shape) for task, values in predictions.items()}
    assert shapes == {"sst": (60, 5), "qqp": (60, 2), "sts": (60, 1)}
    remaining, _ = hold_out(rows, 0.5, 1)
    params = workspace.params(distill={"weight": 1, "teacher": teacher, "tasks": ["sst"]})
    fewer = teacher_predictions(params, remaining, "data/splits", set_up(1, "cpu", "float32"))
    for task in TASKS:
        frame = read_table(f"data/splits/{task}/train.parquet")
        texts = [row if len(row) > 1 else row[0] for row in frame.filter(like="text").itertuples(index=False)]
        answers = predictor.predict(task, texts)
        expected = [[one.score] if one.probabilities is None else one.probabilities for one in answers]
        np.testing.assert_allclose(predictions[task], expected, rtol=1e-6)
    assert set(fewer) == {"sst"}
    positions = pd.Index(rows["sst"].ids).get_indexer(remaining["sst"].ids)
    torch.testing.assert_close(fewer["sst"], predictions["sst"][positions])


def test_a_teacher_of_classes_in_another_order_is_refused(workspace, teacher):
    names = ["awful", "poor", "middling", "good", "great"]
    distill = {"weight": 1, "teacher": "named/model"}
    run(workspace.params(tasks={"sst": {"labels": names}}), "named")
    with pytest.raises(
        UserError, match="task sst: the teacher knows it as .*awful, poor, .*params.yaml says .*great, good"
    ):
        asked(workspace.params(distill=distill, tasks={"sst": {"labels": names[::-1]}}))
    assert set(asked(workspace.params(distill=distill))[1]) == set(TASKS), "one that has no names says nothing else"
