from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bertrio.config import merged
from bertrio.core.errors import UserError
from bertrio.training.build import build_losses
from bertrio.training.loop import infer
from bertrio.training.optimizer import clip_gradients
from tests.training.conftest import BI, STILL, TASKS, weights_of

FAST = {"finetune": {"lr": 1e-2, "epochs": 3}}
UNCLIPPED = {"optimizer": {"max_grad_norm": None}}


def record_rows(trainer):
    """Record the rows that each task trains on, by batch."""
    rows_by_task = {task: [] for task in trainer.streams}
    for task, stream in trainer.streams.items():
        make, batches = stream.rows.batch, rows_by_task[task]
        stream.rows.batch = lambda rows, batches=batches, make=make: batches.append(rows.tolist()) or make(rows)
    return rows_by_task


def a_step(workspace, step=TASKS, change=lambda model: None, losses=None, **overrides):
    """Take one step without clipping or dropout, and keep its gradients."""
    trainer, model = workspace.trainer(FAST, STILL, UNCLIPPED, overrides)
    change(model)
    trainer.objective.losses.update(losses or {})
    trainer.optimization.optimizer.zero_grad = lambda **_: None
    rows = record_rows(trainer)
    logged = {name: value.item() for name, value in trainer.step(step, 1).items()}
    return SimpleNamespace(model=model, trainer=trainer, logged=logged, rows=rows)


def gradient_of_the_sum(workspace, rows_by_task, change=lambda model: None, losses=None, **overrides):
    """Return the summed loss of these batches and the model with its gradient, one pass per batch."""
    params, model, train = workspace.built(STILL, overrides)
    change(model)
    losses = build_losses(train, params) | (losses or {})
    total = 0.0
    for task, batches in rows_by_task.items():
        for rows in batches:
            batch = train[task].batch(np.array(rows))
            loss = losses[task](model(task, batch.inputs), batch.labels)
            loss.backward()
            total += loss.item()
    return total, model


def gradients(part):
    return {name: None if p.grad is None else p.grad.to_dense().clone() for name, p in part.named_parameters()}


def assert_gradients(actual, expected, **tolerance):
    """Compare the gradients of two modules, bit for bit without a tolerance."""
    torch.testing.assert_close(gradients(actual), gradients(expected), **(tolerance or {"rtol": 0, "atol": 0}))


def test_joint_step_has_the_gradient_of_the_summed_losses(workspace):
    step = a_step(workspace)
    assert all(len(batches) == 1 and len(batches[0]) == 8 for batches in step.rows.values())
    total, expected = gradient_of_the_sum(workspace, step.rows)
    assert sum(step.logged.values()) == pytest.approx(total, rel=1e-5)
    assert_gradients(step.model, expected, atol=1e-6, rtol=1e-4)


def test_training_learns_the_labels(workspace):
    trainer, model = workspace.trainer(FAST, finetune={"epochs": 20})
    logs = list(trainer.run("test"))
    rows = trainer.streams["sst"].rows
    assert logs[-1].losses["sst"] < 0.5 * logs[0].losses["sst"]
    assert (infer(model, rows, 16).argmax(axis=1) == rows.label_values).mean() > 0.9


NOT_FINITE = {
    "loss": r"the loss of qqp is nan at step 1 \(rows qqp-0-\d+, .*try a lower finetune\.lr",
    "gradient": r"the norm of the gradients is (nan|inf) at step 1 \(rows sst-0-\d+, .* of sst; qqp-0-.* of qqp; sts-",
}


@pytest.mark.parametrize("clipped", [{}, UNCLIPPED], ids=["clipped", "unclipped"])
@pytest.mark.parametrize(("value", "message"), NOT_FINITE.items(), ids=NOT_FINITE)
def test_non_finite_values_stop_before_the_update(workspace, clipped, value, message):
    trainer, model = workspace.trainer(FAST, clipped)
    if value == "loss":
        torch.nn.init.constant_(model.heads["qqp"].output.bias, float("nan"))
    else:
        model.heads["qqp"].output.weight.register_hook(lambda gradient: gradient * float("inf"))
    before = weights_of(model)
    with pytest.raises(UserError, match=message):
        list(trainer.run("test"))
    torch.testing.assert_close(weights_of(model), before, rtol=0, atol=0, equal_nan=True)


def test_outputs_are_in_row_order_for_any_batch_size(workspace):
    _, model, train = workspace.built()
    one_by_one = infer(model, train["sts"], 1)
    np.testing.assert_allclose(infer(model, train["sts"], 7), one_by_one, atol=1e-5)
    batch = train["sts"].batch(np.array([4]))
    assert model.eval()("sts", batch.inputs).outputs.item() == pytest.approx(one_by_one[4, 0], abs=1e-5)


def test_surgery_does_not_apply_to_heads_and_their_shared_layers(workspace):
    shared = {"tasks": {"qqp": BI, "sts": BI}, "sharing": {"layer": "both"}}
    step = a_step(workspace, **shared, surgery={"method": "pcgrad", "reduction": "mean"})
    assert step.model.heads["qqp"].hidden[0] is step.model.heads["sts"].hidden[0]
    _, plain = gradient_of_the_sum(workspace, step.rows, **shared)
    assert_gradients(step.model.heads, plain.heads, rtol=1e-4, atol=1e-6)
    weight = "transformer.embeddings.word_embeddings.weight"
    combined, expected = (gradients(model.encoder)[weight] for model in (step.model, plain))
    assert (combined - expected).norm() > 0.1 * expected.norm(), "surgery applies to the encoder"


def equal_heads(model):
    """Make two heads equal, for losses that pull in opposite directions."""
    model.heads["qqp"].load_state_dict(model.heads["sts"].state_dict())


PULL = {"sts": lambda output, labels: output.outputs.mean(), "qqp": lambda output, labels: -2 * output.outputs.mean()}


@pytest.mark.parametrize(("reduction", "share"), [("sum", 1.0), ("mean", 0.5)])
def test_pcgrad_of_two_conflicting_tasks_by_hand(workspace, reduction, share):
    surgery = {"method": "pcgrad", "reduction": reduction, "log_conflicts": True}
    step = a_step(workspace, ("sts", "qqp"), equal_heads, PULL, surgery=surgery)

    def flat(model):
        return torch.cat([grad.flatten().double() for grad in gradients(model.encoder).values() if grad is not None])

    a, b = (flat(gradient_of_the_sum(workspace, {task: step.rows[task]}, equal_heads, PULL)[1]) for task in PULL)
    dot = a @ b
    assert dot < 0
    by_hand = (a - dot / (b @ b) * b) + (b - dot / (a @ a) * a)
    torch.testing.assert_close(flat(step.model), share * by_hand, rtol=1e-4, atol=1e-6)
    (row,) = step.trainer.combiner.conflicts
    assert (row["step"], row["task_a"], row["task_b"]) == (1, "sts", "qqp")
    assert row["dot"] == pytest.approx(dot.item(), rel=1e-4)


def test_loss_weights_apply_before_surgery_and_clipping_after(workspace):
    surgery = {"surgery": {"method": "pcgrad", "log_conflicts": True}}
    weights, clip = {"weighting": {"weights": {"sts": 3.0}}}, {"optimizer": {"max_grad_norm": 0.01}}
    settings = ({}, weights, weights | clip)
    steps = [a_step(workspace, ("sts", "qqp"), equal_heads, PULL, **surgery, **more) for more in settings]
    plain, weighted, clipped = steps
    (before,), (after,) = plain.trainer.combiner.conflicts, weighted.trainer.combiner.conflicts
    assert after["norm_a"] == pytest.approx(3 * before["norm_a"], rel=1e-4)
    assert after["norm_b"] == pytest.approx(before["norm_b"], rel=1e-4)
    assert clipped.trainer.combiner.conflicts == weighted.trainer.combiner.conflicts
    clip_gradients(weighted.model, 0.01)
    assert_gradients(clipped.model, weighted.model, rtol=1e-3, atol=1e-9)


# Otherwise runs with and without a technique would differ in their data as well.
@pytest.mark.parametrize(
    "technique",
    [
        {"surgery": {"method": "pcgrad"}},
        {"smart": {"lambda": 1, "tasks": ["qqp"]}, "bregman": {"mu": 1}, "finetune": {"ema": 0.9}},
        {"r_drop": {"alpha": 1, "tasks": ["sts", "sst"]}, "weighting": {"method": "uncertainty"}},
    ],
)
def test_techniques_do_not_change_the_order_of_batches(workspace, technique):
    orders = []
    for overrides in ({}, technique):
        trainer, _ = workspace.trainer(overrides)
        orders.append(record_rows(trainer))
        list(trainer.run("test"))
    assert orders[0] == orders[1]


@pytest.mark.parametrize("technique", [{}, {"surgery": {"method": "pcgrad"}}, {"penalties": {"l1": 0.1, "l2": 0.1}}])
def test_parameters_unused_by_all_tasks_do_not_move(workspace, technique):
    trainer, model = workspace.trainer(technique, optimizer={"weight_decay": 0.5})
    before = weights_of(model)
    trainer.step(("qqp", "sts"), 1)
    changed = {name for name, value in weights_of(model).items() if not torch.equal(value, before[name])}
    unused = {"heads.task_sst.output.weight", "heads.task_sst.output.bias", "encoder.transformer.pooler.dense.weight"}
    assert not changed & unused, "mean pooling does not use the pooler"
    assert "heads.task_sts.output.weight" in changed


def test_log_has_unweighted_means_of_losses_and_penalties(workspace):
    turns = {"schedule": {"name": "round_robin"}, "finetune": {"epochs": 1}}
    trainer, _ = workspace.trainer(turns, r_drop={"alpha": 0.5, "tasks": ["sts"]}, weighting={"weights": {"sst": 0.0}})
    logged, step = [], trainer.step
    trainer.step = lambda *args: logged.append(step(*args)) or logged[-1]
    trainer.streams["qqp"].rows.label_values[::2] = np.nan  # counts labelled rows alone
    (log,) = trainer.run("test")
    assert 0.5 < log.losses["qqp"] < 0.9
    assert set(log.losses) == {"sst", "qqp", "sts", "r_drop_sts"}
    for name, value in log.losses.items():
        assert 0 < value == pytest.approx(np.mean([batch[name].item() for batch in logged if name in batch]))


# ---- cheaper ways of training


@pytest.mark.parametrize("pieces", [3, 50])
@pytest.mark.parametrize(
    "technique",
    [{"surgery": {"method": "pcgrad"}}, {"weighting": {"method": "uncertainty"}, "bregman": {"mu": 1.0}}],
    ids=["pcgrad", "uncertainty, bregman"],
)
def test_accumulated_pieces_have_the_gradient_of_the_batch(workspace, pieces, technique):
    whole, split = a_step(workspace, **technique), a_step(workspace, **technique, finetune={"accumulate": pieces})
    assert split.logged == pytest.approx(whole.logged, rel=1e-4, abs=1e-7)
    assert split.trainer.meter.rows_seen == whole.trainer.meter.rows_seen
    assert_gradients(split.model, whole.model, atol=2e-6, rtol=1e-3)
    assert_gradients(split.trainer.objective.weighting, whole.trainer.objective.weighting, atol=1e-6, rtol=1e-4)


def test_activation_checkpointing_gives_the_same_gradients(workspace):
    noisy = {"encoder": {"dropout": 0.2, "attention_dropout": 0.2}, "smart": {"lambda": 1.0, "radius": 0.1}}
    plain = a_step(workspace, **noisy)
    checkpointed = a_step(workspace, **merged(noisy, {"encoder": {"checkpointing": True}}))
    assert checkpointed.logged == plain.logged
    assert_gradients(checkpointed.model, plain.model)


class Casts(TorchDispatchMode):
    """Count the casts to bf16 by the address of a tensor."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten._to_copy.default and kwargs.get("dtype") == torch.bfloat16:
            self.counts[args[0].data_ptr()] += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("technique", "times"), [({}, 1), ({"r_drop": {"alpha": 1}}, 6)], ids=["plain", "r_drop"])
def test_weights_are_cast_to_bf16_once_a_step(workspace, technique, times):
    bf16 = {"runtime": {"precision": "bf16"}, "finetune": {"one_pass": False}}
    trainer, model = workspace.trainer(bf16, technique)  # with a regularizer, a shared cast would sum gradients in bf16
    layers = [weight for name, weight in model.named_parameters() if "encoder.layer." in name and weight.ndim > 1]
    for step in (1, 2):
        with Casts() as casts:
            trainer.step(TASKS, step)
        assert {casts.counts[weight.data_ptr()] for weight in layers} == {times}


def test_bf16_and_float32_agree_within_bounds(workspace):
    """Losses agree within 2 %, and weights and optimizer state are float32 in both."""
    logs = []
    for precision in ("float32", "bf16"):
        trainer, model = workspace.trainer(STILL, finetune={"epochs": 1}, runtime={"precision": precision})
        logs += [log.losses for log in trainer.run("test")]
        state = [value for state in trainer.optimization.optimizer.state.values() for value in state.values()]
        assert {value.dtype for value in [*model.parameters(), *state]} == {torch.float32}
    assert logs[0] != logs[1] == pytest.approx(logs[0], rel=0.02)
