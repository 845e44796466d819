"""Distillation: the teacher's outputs for all rows, and the student's training on them."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from bertrio.config import merged
from bertrio.core.errors import UserError
from bertrio.core.runtime import set_up
from bertrio.data.table import read_table, write_table
from bertrio.inference.predictor import Predictor
from bertrio.inference.teach import teach
from bertrio.techniques.regularizers.distillation import teacher_divergence, vector_distance
from bertrio.techniques.schedules import SCHEDULES
from bertrio.training.build import add_unlabelled, build_trainer, hold_out, read_teacher
from tests.training.conftest import BI, DISTILLED, STILL, TASKS, run, small_frame, split_of, write_teacher

WEIGHT = {"weight": 1, "teacher": "teacher/model"}


def rows_of(params):
    """Return the rows that a student trains on, with a part of train held out."""
    return add_unlabelled(params, hold_out(split_of(params, "train"), 0.5, 1)[0], "data/splits", "models/tokenizer")


def read(params):
    return read_teacher(params, rows_of(params), "data/teacher", set_up(1, "cpu", "float32"))


def test_teacher_outputs_match_the_predictor(workspace):
    run(workspace.params(finetune={"epochs": 2, "lr": 0.02}), "teacher")
    more = small_frame("qqp", 9, 7).assign(label=np.nan, source="unlabelled-more")
    write_table(more, "data/splits/qqp/unlabelled.parquet")
    params = workspace.params(distill={**WEIGHT, "vectors": {"loss": "mse"}})
    teach(params, "data/splits", "data/teacher")
    assert sum(json.loads(Path("data/teacher/facts.json").read_text()).values()) == 189
    rows, (predictions, vectors) = rows_of(params), read(params)
    assert [len(rows[task]) for task in TASKS] == [30, 39, 30] and rows["qqp"].labelled_count == 30
    predictor = Predictor.load("teacher/model", device="cpu", precision="float32")
    for task in TASKS:
        paths = [Path(f"data/splits/{task}/{name}.parquet") for name in ("train", "unlabelled")]
        frame = pd.concat([read_table(path) for path in paths if path.exists()])
        frame = frame.set_index("id").loc[rows[task].ids].reset_index()
        texts = [row if len(row) > 1 else row[0] for row in frame.filter(like="text").itertuples(index=False)]
        rows_predicted = predictor.predict(task, texts)
        expected = [[row.score] if row.probabilities is None else row.probabilities for row in rows_predicted]
        np.testing.assert_allclose(predictions[task], expected, rtol=1e-6)
        np.testing.assert_allclose(vectors[task], predictor.members["model"].pooled(task, frame), atol=1e-6)
    with pytest.raises(UserError, match=r"distill\.vectors: found 1 a row of qqp, expected 2; set tasks\.qqp\.encod"):
        read(workspace.params(distill={**WEIGHT, "vectors": {"loss": "mse"}}, tasks={"qqp": BI}))
    teach(workspace.params(), "data/splits", "data/teacher")
    assert json.loads(Path("data/teacher/facts.json").read_text()) == {}, "distillation is off"


def test_a_teacher_with_other_class_order_is_an_error(workspace):
    names = ["awful", "poor", "middling", "good", "great"]
    run(workspace.params(tasks={"sst": {"classes": names}}), "teacher")
    reordered = {"tasks": {"sst": {"classes": names[::-1]}}}
    params = workspace.params(distill=WEIGHT, **reordered)
    teach(params, "data/splits", "data/teacher")
    with pytest.raises(UserError, match="sst: the teacher knows it as .*awful, poor, .*params.yaml says .*great, goo"):
        read(params)
    assert set(read(workspace.params(distill={**WEIGHT, "tasks": ["qqp"]}, **reordered)).predictions) == {"qqp"}
    params = workspace.params(distill=WEIGHT)
    teach(params, "data/splits", "data/teacher")
    assert set(read(params).predictions) == set(TASKS), "classes without names fit"


@pytest.mark.parametrize("labels", [1, 0, 0.5])
def test_unlabelled_rows_learn_from_the_teacher_alone(workspace, labels):
    write_teacher({"qqp": 2})
    distilled = merged(DISTILLED, {"distill": {"labels": labels}, "tasks": {"qqp": BI}})
    params, model, _ = workspace.built(STILL, distilled)
    rows = add_unlabelled(params, split_of(params, "train"), "data/splits", "models/tokenizer")
    trainer, _ = build_trainer(params, model, rows)
    teacher, objective = read_teacher(params, rows, "data/teacher", model.runtime), trainer.objective
    projection = objective.regularizers["distill"].projection
    assert projection.shape == (24, 16)
    for task in TASKS:
        batch = next(batch for batch in trainer.streams[task] if batch.labelled is not None)
        [parts] = objective(batch)
        output, known = model(task, batch.inputs), batch.labelled
        vectors = [model.encode(model.embed(tokens), tokens) @ projection.T for tokens in batch.inputs]
        labelled = objective.losses[task](output._replace(outputs=output.outputs[known]), batch.labels[known])
        divergence, predictions = model.targets[task].divergence, teacher.predictions[task][batch.rows]
        distance = teacher_divergence(divergence, output.outputs, predictions, 2)
        distance += vector_distance("cosine", torch.stack(vectors, dim=1), teacher.vectors[task][batch.rows])
        loss = labelled * known.sum() / len(known)
        torch.testing.assert_close(parts.loss, loss)
        torch.testing.assert_close(parts.total, labels * loss + 0.5 * distance)
        pieces = [objective(piece)[0].total * len(piece.rows) / len(batch.rows) for piece in batch.pieces(5)]
        torch.testing.assert_close(sum(pieces), parts.total)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_takes_the_share_of_unlabelled_rows(workspace, name):
    write_teacher()
    params, model, _ = workspace.built(DISTILLED, schedule={"name": name, "until": "longest"}, finetune={"epochs": 1})
    rows = add_unlabelled(params, split_of(params, "train"), "data/splits", "models/tokenizer")
    trainer, _ = build_trainer(params, model, rows)
    before, taken = trainer.objective.regularizers["distill"].projection.clone(), {task: [] for task in TASKS}
    for task, stream in trainer.streams.items():
        assert len(stream) == 10, "60 labelled and 20 unlabelled rows in batches of 8"
        stream.rows.batch = lambda batch, task=task, make=stream.rows.batch: taken[task].append(batch) or make(batch)
    assert all(np.isfinite(list(log.losses.values())).all() for log in trainer.run(name))
    for task in TASKS:
        if len(taken[task]) >= 10:
            assert (np.concatenate(taken[task][:10]) >= 60).sum() == 20
    assert not torch.equal(before, trainer.objective.regularizers["distill"].projection)
