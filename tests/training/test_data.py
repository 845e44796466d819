import copy
import math

import numpy as np
import pytest
import torch

from bertrio.core.errors import UserError
from bertrio.core.tasks import HeadOutput
from bertrio.training.build import build_losses, build_streams, hold_out, plan_of, rows_per_pass
from tests.training.conftest import TASKS, split_of


def setting(workspace, rows=None, **overrides):
    """Return params, training rows, streams and plan; `rows` cuts tasks to so many rows."""
    params = workspace.params(**overrides)
    split = split_of(params, "train")
    for task, count in (rows or {}).items():
        split[task] = split[task].take(np.arange(count))
    train = {task: split[task] for task in params.trains}
    streams = build_streams(train, params)
    return params, train, streams, plan_of(train, streams, params)


def one_pass(stream):
    return [next(stream).rows.tolist() for _ in range(len(stream))]


def test_matched_streams_have_similar_lengths_in_each_step(workspace):
    _, _, streams, _ = setting(workspace, schedule={"match_lengths": True})
    widths = [[stream.rows.widths[batch].mean() for batch in one_pass(stream)] for stream in streams.values()]
    assert np.corrcoef(widths).min() > 0.8


def test_proportional_batch_sizes_use_the_rows_of_a_pass(workspace):
    schedule = {"batch_sizes": "proportional", "base_batch": 10, "cap": 30}
    _, _, streams, _ = setting(workspace, rows={"qqp": 31, "sts": 8}, schedule=schedule)
    # a pass has 30 rows at most: 3 batches of 10, 10 and round(8 / 3)
    assert {task: stream.size for task, stream in streams.items()} == {"sst": 10, "qqp": 10, "sts": 3}


@pytest.mark.parametrize(("loss", "least"), [("pearson", 3), ("cosent", 2)])
def test_batches_have_the_rows_that_their_loss_needs(workspace, loss, least):
    tasks = {"sts": {"loss": loss, "batch_size": 8, **({"encoding": "bi", "head": "cosine"} if least == 2 else {})}}
    params, train, streams, _ = setting(workspace, rows={"sts": 7 + least}, tasks=tasks)
    assert [len(batch) for batch in one_pass(streams["sts"])] == [7 + least]
    schedule = {"batch_sizes": "proportional", "base_batch": 10}  # 3 batches: 4 rows make batches of one row
    with pytest.raises(UserError, match=f"task sts: found batches of 1 labelled rows, .* needs {least}: give it more"):
        setting(workspace, rows={"qqp": 30, "sst": 30, "sts": 4}, tasks=tasks, schedule=schedule)
    train["sts"].label_values[least - 1 :] = np.nan
    with pytest.raises(UserError, match=f"found batches of {8 * (least - 1) / (7 + least):.3g} labelled rows"):
        build_streams(train, params)


def test_tasks_with_the_same_texts_share_batches(workspace):
    pair = {"encoding": "bi", "head": "cosine", "batch_size": 8}
    params = workspace.params(tasks={"qqp": pair | {"loss": "cosine_mse"}, "sts": pair | {"loss": "cosent"}})
    split = split_of(params, "train")
    qqp = split["qqp"].take(np.arange(17))
    sts = copy.copy(qqp)
    sts.task = split["sts"].task
    streams = build_streams({"qqp": qqp, "sts": sts}, params)
    assert sts.text_group == "qqp" and sorted(map(len, one_pass(streams["qqp"]))) == [8, 9]


def test_holdout_has_no_extra_rows_and_their_copies_do_not_train(workspace):
    rows = split_of(workspace.params(), "train")["sst"].take(np.arange(40))
    rows.ids[20:], rows.sources = "swapped-" + rows.ids[:20], np.repeat(["", "extra_train"], 20)
    alone = copy.copy(rows.take(np.arange(20)))
    (train, held), (_, held_alone) = zip(
        *((part["sst"].ids, part["alone"].ids) for part in hold_out({"sst": rows, "alone": alone}, 0.5, 1))
    )
    assert len(train) == 20 and len(held) == 10 and set(held) < set(rows.ids[:20])
    assert held.tolist() == held_alone.tolist(), "also where another task of these rows has no extra ones"
    assert not set(train) & {*held, *("swapped-" + held)}


TASK_EPOCHS = {"sst": {"epochs": 1}, "sts": {"epochs": 3}}
SST, QQP, STS = [[(task,)] for task in TASKS]


@pytest.mark.parametrize(
    ("schedule", "tasks", "expected"),
    [
        ({"cap": "shortest", "until": "longest"}, {}, [[TASKS] * 2] * 2),
        ({"max_batches": 3, "until": "longest"}, {}, [[TASKS] * 3] * 2),
        ({"max_batches": 3, "name": "per_epoch"}, {}, [SST * 3 + QQP * 3 + STS * 2] * 2),
        ({"name": "sequential", "tasks": [*TASKS[::-1]]}, TASK_EPOCHS, [STS * 2] * 3 + [QQP * 8] * 2 + [SST * 8]),
        ({"until": "longest", "first": {"sts": 2, "sst": 1}}, {}, [STS * 2] * 2 + [SST * 8] + [[TASKS] * 8] * 2),
        ({"until": "sst", "tasks": ["qqp"]}, {}, [QQP * 8] * 2),  # until is ignored
    ],
)
def test_plan_has_the_order_and_limits_of_the_schedule(workspace, schedule, tasks, expected):
    *_, plan = setting(workspace, rows={"sts": 10}, schedule=schedule, tasks=tasks)
    assert plan == expected


def test_order_of_a_stream_does_not_depend_on_other_tasks(workspace):
    alone, joint = (one_pass(setting(workspace, schedule={"tasks": on})[2]["sts"]) for on in (["sts"], list(TASKS)))
    assert alone == joint


def test_class_weights_are_counted_on_the_training_rows(workspace):
    weighted = {"sst": {"loss_options": {"class_weights": "inverse"}}}
    params, train, *_ = setting(workspace, rows={"sst": 31}, tasks=weighted)
    counts = np.bincount(train["sst"].label_values.astype(int), minlength=5)
    loss = build_losses(train, params)["sst"]
    for label in range(5):
        value = loss(HeadOutput(torch.zeros(1, 5)), torch.tensor([label]))
        assert value.item() == pytest.approx(math.log(5) * 31 / (5 * counts[label]), rel=1e-5)


def test_share_of_a_pass_is_met_beside_a_source_with_too_few_rows(workspace):
    unlabelled, extra = {"a": {"task": "sst", "path": "a", "share": 0.5}}, {"sst": {"train": "b", "share": 0.4}}
    params = workspace.params(data={"unlabelled": unlabelled, "extra_train": extra})
    rows = split_of(params, "train")["sst"].take(np.arange(400) % 60)
    for few, drawn in ((0, 27), (5, 30)):  # a pass draws all of a's few rows
        rows.sources = np.repeat(["", "unlabelled-a", "extra_train"], [40, few, 360 - few])
        assert rows_per_pass(params, rows) == {"extra_train": drawn}


def test_holdout_of_a_single_row_is_an_error(workspace):
    rows = split_of(workspace.params(), "train")["sst"]
    with pytest.raises(UserError, match="holdout needs two own rows of task sst"):
        hold_out({"sst": rows.take(np.arange(1))}, 0.1, 1)
