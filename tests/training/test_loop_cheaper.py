"""What makes training cheaper leaves what it learns as it is: pieces of batches, hidden states worked out again, sparse
gradients of words, losses that are read late, bf16, and casts that are kept."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from bertrio.config import merged
from bertrio.core.errors import UserError
from bertrio.core.runtime import Runtime
from bertrio.training.loop import infer
from tests.training.test_loop import STILL, a_step, assert_equal_to_the_bit, gradients, setting, trainer_of


@pytest.mark.parametrize("pieces", [2, 3, 8, 50])
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


@pytest.mark.parametrize("technique", [{}, {"surgery": {"method": "pcgrad"}}], ids=["plain", "pcgrad"])
def test_clipped_sparse_gradients_of_words_equal_dense_ones(workspace, few_are_many, technique):
    clipped = {"optimizer": {"max_grad_norm": 1e-3}, **technique}
    found = [a_step(workspace, change=change, **clipped)[0] for change in (lambda model: None, dense_words)]
    words = found[0].encoder.transformer.get_input_embeddings().weight
    assert words.grad.is_sparse and words.grad.coalesce().indices().shape[1] < len(words)
    one, other = (gradients(model) for model in found)
    for name, gradient in one.items():
        assert (gradient is None) == (other[name] is None)
        if gradient is not None:
            torch.testing.assert_close(gradient, other[name], rtol=1e-4, atol=1e-9)


def test_gradients_of_few_words_are_dense(workspace):
    model, _, _ = a_step(workspace)
    assert not model.encoder.transformer.get_input_embeddings().weight.grad.is_sparse


def test_looking_at_the_losses_every_few_steps_as_on_a_gpu_changes_nothing_but_when_a_broken_one_is_found(workspace):
    logs, weights = [], []
    for every in (1, 4):
        params, model, train = setting(workspace)
        trainer = trainer_of(params, model, train, max_steps=6)
        trainer._finite._every = every
        logs.append(list(trainer.run("test")))
        weights.append(model.state_dict())
    assert logs[0] == logs[1]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    params, model, train = setting(workspace)
    trainer = trainer_of(params, model, train, max_steps=6)
    trainer._finite._every = 4
    with torch.no_grad():
        model.heads["sts"].output.weight.fill_(float("inf"))
    with pytest.raises(UserError, match=r"the loss of sts is (nan|inf) at step 1 \(rows "):
        list(trainer.run("test"))
    assert trainer.steps_done == 4


def test_no_state_is_given_out_before_all_numbers_were_looked_at(workspace):
    params, model, train = setting(workspace)
    trainer = trainer_of(params, model, train, max_steps=6)
    trainer._finite._every = 4  # as on a GPU
    model.heads["sts"].output.weight.register_hook(lambda gradient: gradient * float("nan"))
    trainer.checkpoint = lambda step: trainer.state_dict()
    with pytest.raises(UserError, match="the norm of the gradients is nan at step 1"):
        list(trainer.run("test"))
    assert trainer.steps_done == 1


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


def test_smart_multiplies_as_little_as_its_five_passes_need(workspace):
    """The clean pass 1 + 2, the search for noise 1 + 1 without gradients of weights, the last pass 1 + 2: 8 for 3."""
    counts = []
    for technique in ({}, {"smart": {"lambda": 1.0, "radius": 0.1}}):
        with FlopCounterMode(display=False) as counted:
            a_step(workspace, **STILL, **technique)
        counts.append(counted.get_total_flops())
    assert 2.6 < counts[1] / counts[0] < 2.72


def test_predicting_casts_each_weight_once_for_all_batches_and_says_the_same(workspace, monkeypatch):
    said, casts = [], []
    for kept in (True, False):
        if not kept:
            monkeypatch.setattr(Runtime, "casting_once", lambda self: nullcontext())
        params, model, train = setting(workspace, runtime={"precision": "bf16"})
        with Casts(model.encoder.transformer.encoder.layer[0].intermediate.dense.weight.shape) as counted:
            said.append(infer(model, train["sst"], 8))
        casts.append(counted.count)
    assert casts[0] == params.encoder.tiny.layers and casts[1] >= 3 * casts[0]
    assert np.array_equal(*said)


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
