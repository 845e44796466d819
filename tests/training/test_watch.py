import numpy as np
import pytest
import torch

from bertrio.core.errors import UserError
from bertrio.training.watch import Watch, read_every


def watch():
    return Watch(lambda task, rows: [f"{task}-{row}" for row in rows], "try less")


def test_the_first_number_that_is_not_finite_is_named_with_its_step_tasks_and_rows():
    watched = watch()
    rows = {"a": np.arange(9), "b": np.array([3, 1])}
    for step, value in enumerate([1.0, float("inf"), float("nan")], start=7):
        watched.add(step, "the norm", rows, torch.tensor(value))
    told = r"the norm is inf at step 8 \(rows a-0, a-1, a-2, a-3, a-4, \.\.\. of a; b-3, b-1 of b\); try less"
    with pytest.raises(UserError, match=told):
        watched.read()


def test_finite_numbers_are_looked_at_once():
    watched = watch()
    watched.add(1, "the loss", {"a": np.arange(2)}, torch.tensor(1.0, requires_grad=True))
    watched.read()
    watched.read()
    watched.add(2, "the loss", {"a": np.arange(2)}, torch.tensor(float("nan")))
    with pytest.raises(UserError, match="at step 2"):
        watched.read()


def test_a_gpu_is_asked_now_and_then():
    assert read_every(torch.device("cpu")) == 1 < read_every(torch.device("cuda"))
