"""What makes training cheaper leaves what it learns as it is: pieces of batches, hidden states worked out again, sparse
gradients of words, losses that are read late, bf16, and casts that are kept."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bertrio.config import merged
from bertrio.core.runtime import Runtime
from bertrio.training.loop import infer
from tests.training.test_loop import STILL, a_step, assert_equal_to_the_bit, gradients, setting, trainer_of


@pytest.mark.parametrize("pieces", [3, 50])
@pytest.mark.parametrize(
    "technique",
    [{}, {"surgery": {"method": "pcgrad"}}, {"weighting": {"method": "uncertainty"}}, {"bregman": {"mu": 1.0}}],
    ids=["plain", "pcgrad", "uncertainty", "bregman"],
)
def test_a_batch_in_pieces_has_the_gradient_of_the_whole(workspace, pieces, technique):
    _, whole, told = a_step(workspace, **technique)
    _, cut, told_of_pieces = a_step(workspace, **technique, finetune={"accumulate": pieces})
    assert told_of_pieces == pytest.approx(told, rel=1e-4, abs=1e-7)
    assert cut.meter.rows_seen == whole.meter.rows_seen
    for one, other in zip(whole.model.parameters(), cut.model.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None:
            torch.testing.assert_close(other.grad.to_dense(), one.grad.to_dense(), atol=2e-6, rtol=1e-3)
    learned = zip(whole.objective.weighting.parameters(), cut.objective.weighting.parameters(), strict=True)
    for one, other in learned:
        torch.testing.assert_close(other.grad, one.grad, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(
    "technique",
    [
        {"smart": {"lambda": 1.0, "radius": 0.1}},
        {"surgery": {"method": "pcgrad"}},
        {"weighting": {"method": "uncertainty"}},
    ],
    ids=["smart", "pcgrad", "uncertainty"],
)
def test_hidden_states_that_are_worked_out_again_give_the_same_gradients(workspace, technique):
    dropping = {"encoder": {"dropout": 0.2, "attention_dropout": 0.2}, **technique}
    plain, _, told = a_step(workspace, **dropping)
    again, _, told_again = a_step(workspace, **merged(dropping, {"encoder": {"checkpointing": True}}))
    assert told_again == told
    assert_equal_to_the_bit(gradients(plain), gradients(again))


class DenseWords(torch.nn.Embedding):
    """Word embeddings whose gradient is dense: a subclass keeps what it is."""


@pytest.fixture
def few_are_many(monkeypatch):
    """Gradients of words are sparse in a small vocabulary as well."""
    monkeypatch.setattr("bertrio.model.encoder.MANY_WORDS", 1)


def dense_words(model):
    words = model.encoder.transformer.get_input_embeddings()
    words.__class__ = DenseWords


@pytest.mark.parametrize(
    "technique",
    [
        {},
        {"surgery": {"method": "pcgrad"}},
        {"smart": {"lambda": 1.0, "radius": 0.1}},
        {"bregman": {"mu": 1.0}, "finetune": {"accumulate": 3}},
        {"penalties": {"l2": 0.01}},
    ],
    ids=["plain", "pcgrad", "smart", "bregman in pieces", "penalties"],
)
def test_training_with_sparse_gradients_of_words_equals_training_with_dense_ones(workspace, few_are_many, technique):
    found = []
    for change in (lambda model: None, dense_words):
        params, model, train = setting(workspace, **merged(STILL, technique))
        change(model)
        trainer = trainer_of(params, model, train, max_steps=4, lr=1e-3)
        list(trainer.run("test"))
        found.append(dict(model.named_parameters()))
    sparse, dense = found
    for name, parameter in sparse.items():
        if name.endswith("key.bias"):  # softmax takes no notice of it: its gradient is rounding, which AdamW blows up
            continue
        torch.testing.assert_close(
            parameter, dense[name], rtol=1e-4, atol=2e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_bf16_and_float32_agree_within_bounds(workspace):
    """Products in bf16 have 8 bits: losses of the same steps stay within 2 %, and outputs within 5 % of their spread.

    Weights, the optimizer's state and gradients are float32 in both.
    """
    logs, outputs = [], []
    for precision in ("float32", "bf16"):
        params, model, train = setting(workspace, **STILL, runtime={"precision": precision})
        trainer = trainer_of(params, model, train, lr=1e-3, max_steps=20)
        logs.append([log.losses for log in trainer.run("test")])
        outputs.append({task: infer(model, rows, 16) for task, rows in train.items()})
        kept = [*model.parameters(), *(of for state in trainer.optimizer.state.values() for of in state.values())]
        assert {of.dtype for of in kept} == {torch.float32}
    assert logs[0] != logs[1], "bf16 was on"
    for one, other in zip(*logs):
        assert other == pytest.approx(one, rel=0.02)
    for task, one in outputs[0].items():
        assert np.abs(outputs[1][task] - one).max() < 0.05 * max(1.0, np.ptp(one)), task


@pytest.mark.parametrize(
    "technique",
    [
        {},
        {"r_drop": {"alpha": 1}},
        {"encoder": {"checkpointing": True}},
        {"surgery": {"method": "pcgrad"}},
        {"finetune": {"accumulate": 2}},
    ],
)
def test_a_step_casts_each_weight_once_and_nothing_else_changes(workspace, monkeypatch, technique):
    """But not where passes go backward together: their gradients would be added in bf16, and the smaller one lost."""
    weights, casts = [], []
    for kept in (True, False):
        if not kept:
            monkeypatch.setattr(Runtime, "casting_once", lambda self: nullcontext())
        params, model, train = setting(workspace, **technique, runtime={"precision": "bf16"})
        trainer = trainer_of(params, model, train, lr=1e-3, max_steps=3, one_pass=False)
        with Casts(model.encoder.transformer.encoder.layer[0].intermediate.dense.weight.shape) as counted:
            list(trainer.run("test"))
        casts.append(counted.count)
        weights.append([of.clone() for of in model.parameters()])
    if "r_drop" in technique:
        assert casts[0] == casts[1]
    else:
        assert casts[0] == 3 * params.encoder.tiny.layers and casts[1] >= 3 * casts[0]  # three steps of three passes
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))


class Casts(TorchDispatchMode):
    """Counts casts from float32 to bf16 of tensors of one shape."""

    def __init__(self, shape):
        super().__init__()
        self.shape, self.count = shape, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and args[0].shape == self.shape:
            self.count += args[0].dtype == torch.float32 and result.dtype == torch.bfloat16
        return result
