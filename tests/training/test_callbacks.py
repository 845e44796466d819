from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bertrio.core.errors import UserError
from bertrio.training.callbacks import FiniteCheck


def test_the_first_number_that_is_not_finite_is_named_with_its_step_tasks_and_rows():
    """On a GPU, some steps later; here its numbers stay on the CPU."""
    check = FiniteCheck(torch.device("meta"), lambda task, rows: [f"{task}-{row}" for row in rows], "try less")
    check._device = torch.device("cpu")
    for step, value in enumerate([1.0, float("inf"), float("nan")], start=7):
        check.begin_step(step)
        check.saw([SimpleNamespace(task="a", rows=np.arange(9)), SimpleNamespace(task="b", rows=np.array([3, 1]))])
        check.norm(torch.tensor(value))
    assert not check.due(8) and check.due(16)
    message = r"gradients is inf at step 8 \(rows a-0, a-1, a-2, a-3, a-4, \.\.\. of a; b-3, b-1 of b\); try less"
    with pytest.raises(UserError, match=message):
        check.read()


def test_finite_numbers_are_read_once_and_on_the_cpu_at_once():
    check = FiniteCheck(torch.device("cpu"), lambda task, rows: rows, "try less")
    batch = SimpleNamespace(task="a", rows=np.arange(2))
    check.begin_step(1)
    check.norm(torch.tensor(1.0, requires_grad=True))
    check.begin_step(2)
    check.loss("a", torch.tensor(float("nan")), batch)
    with pytest.raises(UserError, match="the loss of a is nan at step 2"):
        check.read_on_cpu()
