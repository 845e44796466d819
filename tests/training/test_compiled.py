"""The encoder under `torch.compile`: training learns the same. The compiler's last part is replaced by one that runs
what it is given as it is, which needs no C++ compiler."""

import pytest
import torch
from torch import nn

from tests.training.conftest import TASKS
from tests.training.test_loop import a_step, assert_gradients

ON = {"encoder": {"compile": True}}
real_compile = nn.Module.compile


@pytest.fixture(autouse=True)
def traced(monkeypatch):
    """Passes are traced, backward included, and run operation by operation."""
    torch._dynamo.reset()
    monkeypatch.setattr(nn.Module, "compile", lambda module, **how: real_compile(module, **how, backend="aot_eager"))


def test_a_step_has_the_gradients_of_the_plain_one(workspace):
    technique = {"smart": {"lambda": 1.0, "radius": 0.1}}
    plain, compiled = a_step(workspace, **technique), a_step(workspace, **technique, **ON)
    assert compiled.logged == pytest.approx(plain.logged, rel=1e-4, abs=1e-6)
    assert_gradients(compiled.model, plain.model, atol=2e-6, rtol=1e-3)


def test_clean_and_perturbed_passes_draw_the_same_masks(workspace):
    quiet = {"smart": {"lambda": 1.0, "radius": 1e-9, "sigma": 1e-12, "eta": 1e-12}}  # noise that moves nothing
    trainer, _ = workspace.trainer(ON, quiet, encoder={"dropout": 0.2, "attention_dropout": 0.2})
    logged = trainer.step(TASKS, 1)
    assert all(value.item() == pytest.approx(0, abs=1e-6) for name, value in logged.items() if "_" in name)
