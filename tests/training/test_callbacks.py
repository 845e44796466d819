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
        check.add_rows([SimpleNamespace(task="a", rows=np.arange(9)), SimpleNamespace(task="b", rows=np.array([3, 1]))])
        check.add("the norm of the gradients", torch.tensor(value, requires_grad=True))
    assert not check.due(8) and check.due(16)
    with pytest.raises(UserError, match=r"gradients is inf at step 8 \(rows a-0, a-1, .* of b\); try less"):
        check.read()
