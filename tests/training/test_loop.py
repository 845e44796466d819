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
from tests.training.conftest import BI, STILL, TASKS, changed_names, weights_of

FAST = {"finetune": {"lr": 1e-2, "epochs": 3}}
UNCLIPPED = {"optimizer": {"max_grad_norm": None}}


def watched(trainer):
    """The rows that each task trains on, batch after batch, filled in as training goes on."""
    seen = {task: [] for task in trainer.streams}
    for task, stream in trainer.streams.items():
        make, own = stream.rows.batch, seen[task]
        stream.rows.batch = lambda rows, own=own, make=make: own.append(rows.tolist()) or make(rows)
    return seen


def a_step(workspace, step=TASKS, change=lambda model: None, losses=None, **overrides):
    """Take one step without clipping or dropout and keep its gradients."""
    trainer, model = workspace.trainer(FAST, STILL, UNCLIPPED, overrides)
    change(model)
    trainer.objective.losses.update(losses or {})
    trainer.optimizer.zero_grad = lambda **_: None
    seen = watched(trainer)
    logged = {name: value.item() for name, value in trainer.step(step, 1).items()}
    return SimpleNamespace(model=model, trainer=trainer, logged=logged, seen=seen)


def gradient_of_the_sum(workspace, seen, change=lambda model: None, losses=None, **overrides):
    """Loss and model with the plain gradient of the summed losses of these batches, one pass after the other."""
    params, model, train = workspace.built(STILL, overrides)
    change(model)
    losses = build_losses(train, params) | (losses or {})
    total = 0.0
    for task, batches in seen.items():
        for rows in batches:
            batch = train[task].batch(np.array(rows))
            loss = losses[task](model(task, batch.inputs), batch.labels)
            loss.backward()
            total += loss.item()
    return total, model


def gradients(part):
    return {name: None if p.grad is None else p.grad.to_dense().clone() for name, p in part.named_parameters()}


def assert_gradients(one, other, **tolerance):
    """Compare the gradients of two modules; to the bit without a tolerance."""
    torch.testing.assert_close(gradients(one), gradients(other), **(tolerance or {"rtol": 0, "atol": 0}))


def test_a_joint_step_has_the_gradient_of_the_summed_losses(workspace):
    step = a_step(workspace)
    assert all(len(batches) == 1 and len(batches[0]) == 8 for batches in step.seen.values())
    total, expected = gradient_of_the_sum(workspace, step.seen)
    assert sum(step.logged.values()) == pytest.approx(total, rel=1e-5)
    assert_gradients(step.model, expected, atol=1e-6, rtol=1e-4)


def test_training_learns_what_the_first_word_says(workspace):
    trainer, model = workspace.trainer(FAST, finetune={"epochs": 20})
    logs = list(trainer.run("test"))
    rows = trainer.streams["sst"].rows
    assert logs[-1].losses["sst"] < 0.5 * logs[0].losses["sst"]
    assert (infer(model, rows, 16).argmax(axis=1) == rows.label_values).mean() > 0.9


HARM = {  # and the message
    "loss": r"the loss of qqp is nan at step 1 \(rows qqp-0-\d+, .*try a lower lr",
    "gradient": r"the norm of the gradients is (nan|inf) at step 1 \(rows sst-0-\d+, .* of sst; qqp-0-.* of qqp; sts-",
}


@pytest.mark.parametrize("clipped", [{}, UNCLIPPED], ids=["clipped", "free"])
@pytest.mark.parametrize("harm", HARM)
def test_what_is_not_finite_stops_before_the_update_and_names_tasks_and_rows(workspace, clipped, harm):
    trainer, model = workspace.trainer(FAST, clipped)
    message = HARM[harm]
    if harm == "loss":
        torch.nn.init.constant_(model.heads["qqp"].output.bias, float("nan"))
    else:
        model.heads["qqp"].output.weight.register_hook(lambda gradient: gradient * float("inf"))
    before = weights_of(model)
    with pytest.raises(UserError, match=message):
        list(trainer.run("test"))
    torch.testing.assert_close(weights_of(model), before, rtol=0, atol=0, equal_nan=True)


def test_outputs_come_in_row_order_whatever_the_batch_size(workspace):
    _, model, train = workspace.built()
    one_by_one = infer(model, train["sts"], 1)
    np.testing.assert_allclose(infer(model, train["sts"], 7), one_by_one, atol=1e-5)
    batch = train["sts"].batch(np.array([4]))
    assert model.eval()("sts", batch.inputs).outputs.item() == pytest.approx(one_by_one[4, 0], abs=1e-5)


def test_heads_and_layers_that_some_tasks_share_take_the_plain_sum_under_surgery(workspace):
    shared = {"tasks": {"qqp": BI, "sts": BI}, "sharing": {"layer": "both"}}
    step = a_step(workspace, **shared, surgery={"method": "pcgrad", "reduction": "mean"})
    assert step.model.heads["qqp"].hidden[0] is step.model.heads["sts"].hidden[0]
    _, plain = gradient_of_the_sum(workspace, step.seen, **shared)
    assert_gradients(step.model.heads, plain.heads, rtol=1e-4, atol=1e-6)
    weight = "transformer.embeddings.word_embeddings.weight"
    combined, expected = (gradients(model.encoder)[weight] for model in (step.model, plain))
    assert (combined - expected).norm() > 0.1 * expected.norm(), "the encoder does not"


def at_odds(model):
    """Heads that say the same, for losses that pull opposite ways."""
    model.heads["qqp"].load_state_dict(model.heads["sts"].state_dict())


PULL = {"sts": lambda output, labels: output.outputs.mean(), "qqp": lambda output, labels: -2 * output.outputs.mean()}


@pytest.mark.parametrize(("reduction", "share"), [("sum", 1.0), ("mean", 0.5)])
def test_pcgrad_of_two_tasks_at_odds_equals_its_algorithm_by_hand(workspace, reduction, share):
    surgery = {"method": "pcgrad", "reduction": reduction, "log_conflicts": True}
    step = a_step(workspace, ("sts", "qqp"), at_odds, PULL, surgery=surgery)

    def flat(model):
        return torch.cat([grad.flatten().double() for grad in gradients(model.encoder).values() if grad is not None])

    one, other = (flat(gradient_of_the_sum(workspace, {task: step.seen[task]}, at_odds, PULL)[1]) for task in PULL)
    dot = one @ other
    assert dot < 0
    by_hand = (one - dot / (other @ other) * other) + (other - dot / (one @ one) * one)
    torch.testing.assert_close(flat(step.model), share * by_hand, rtol=1e-4, atol=1e-6)
    (row,) = step.trainer.combiner.conflicts
    assert (row["step"], row["task_a"], row["task_b"]) == (1, "sts", "qqp")
    assert row["dot"] == pytest.approx(dot.item(), rel=1e-4)
    assert row["cosine"] == pytest.approx((dot / (one.norm() * other.norm())).item(), rel=1e-4)
    assert (row["norm_a"], row["norm_b"]) == pytest.approx((one.norm().item(), other.norm().item()), rel=1e-4)


def test_loss_weights_come_before_surgery_and_clipping_after_it(workspace):
    surgery = {"surgery": {"method": "pcgrad", "log_conflicts": True}}
    weights, clip = {"weighting": {"weights": {"sts": 3.0}}}, {"optimizer": {"max_grad_norm": 0.01}}
    settings = ({}, weights, weights | clip)
    steps = [a_step(workspace, ("sts", "qqp"), at_odds, PULL, **surgery, **more) for more in settings]
    plain, weighted, clipped = steps
    (before,), (after,) = plain.trainer.combiner.conflicts, weighted.trainer.combiner.conflicts
    assert after["norm_a"] == pytest.approx(3 * before["norm_a"], rel=1e-4)
    assert after["norm_b"] == pytest.approx(before["norm_b"], rel=1e-4)
    assert clipped.trainer.combiner.conflicts == weighted.trainer.combiner.conflicts
    clip_gradients(weighted.model, 0.01)
    assert_gradients(clipped.model, weighted.model, rtol=1e-3, atol=1e-9)


# which batches meet in a step must not depend on how tasks share passes of the encoder: runs with and without a
# technique would differ in their data as well
@pytest.mark.parametrize(
    "technique",
    [
        {"surgery": {"method": "pcgrad"}},
        {"smart": {"lambda": 1, "tasks": ["qqp"]}, "bregman": {"mu": 1}, "finetune": {"ema": 0.9}},
        {"r_drop": {"alpha": 1, "tasks": ["sts", "sst"]}, "weighting": {"method": "uncertainty"}},
    ],
)
def test_a_technique_trains_on_the_same_batches_in_the_same_order_as_a_run_without_it(workspace, technique):
    orders = []
    for overrides in ({}, technique):
        trainer, _ = workspace.trainer(overrides)
        orders.append(watched(trainer))
        list(trainer.run("test"))
    assert orders[0] == orders[1]


@pytest.mark.parametrize("technique", [{}, {"surgery": {"method": "pcgrad"}}, {"penalties": {"l1": 0.1, "l2": 0.1}}])
def test_what_no_task_used_keeps_no_gradient_and_does_not_move(workspace, technique):
    trainer, model = workspace.trainer(technique, optimizer={"weight_decay": 0.5})
    before = weights_of(model)
    trainer.step(("qqp", "sts"), 1)
    changed = changed_names(model, before)
    still = {"heads.task_sst.output.weight", "heads.task_sst.output.bias", "encoder.transformer.pooler.dense.weight"}
    assert not changed & still, "mean pooling has no use for the pooler"
    assert "heads.task_sts.output.weight" in changed


def test_the_log_tells_losses_and_penalties_unweighted_as_means_over_the_batches_of_a_task(workspace):
    turns = {"schedule": {"name": "round_robin"}, "finetune": {"epochs": 1}}
    trainer, _ = workspace.trainer(turns, r_drop={"alpha": 0.5, "tasks": ["sts"]}, weighting={"weights": {"sst": 0.0}})
    logged, step = [], trainer.step
    trainer.step = lambda *args: logged.append(step(*args)) or logged[-1]
    (log,) = trainer.run("test")
    assert set(log.losses) == {"sst", "qqp", "sts", "r_drop_sts"}
    for name, value in log.losses.items():
        assert 0 < value == pytest.approx(np.mean([batch[name].item() for batch in logged if name in batch]))


# ---- cheaper ways of training leave what is learnt as it is


@pytest.mark.parametrize("pieces", [3, 50])
@pytest.mark.parametrize(
    "technique",
    [{"surgery": {"method": "pcgrad"}}, {"weighting": {"method": "uncertainty"}, "bregman": {"mu": 1.0}}],
    ids=["pcgrad", "uncertainty, bregman"],
)
def test_a_batch_in_pieces_has_the_gradient_of_the_whole(workspace, pieces, technique):
    whole, cut = a_step(workspace, **technique), a_step(workspace, **technique, finetune={"accumulate": pieces})
    assert cut.logged == pytest.approx(whole.logged, rel=1e-4, abs=1e-7)
    assert cut.trainer.meter.rows_seen == whole.trainer.meter.rows_seen
    assert_gradients(cut.model, whole.model, atol=2e-6, rtol=1e-3)
    assert_gradients(cut.trainer.objective.weighting, whole.trainer.objective.weighting, atol=1e-6, rtol=1e-4)


def test_hidden_states_that_are_worked_out_again_give_the_same_gradients(workspace):
    smart = {"smart": {"lambda": 1.0, "radius": 0.1}}
    dropping = {"encoder": {"dropout": 0.2, "attention_dropout": 0.2}, **smart}
    plain = a_step(workspace, **dropping)
    again = a_step(workspace, **merged(dropping, {"encoder": {"checkpointing": True}}))
    assert again.logged == plain.logged
    assert_gradients(plain.model, again.model)


class Casts(TorchDispatchMode):
    """Counts how often each tensor is cast to bf16, by where it lies."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten._to_copy.default and kwargs.get("dtype") == torch.bfloat16:
            self.counts[args[0].data_ptr()] += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("technique", "times"), [({}, 1), ({"r_drop": {"alpha": 1}}, 6)], ids=["plain", "r_drop"])
def test_each_weight_is_cast_to_bf16_once_a_step_unless_passes_go_backward_together(workspace, technique, times):
    apart = {"runtime": {"precision": "bf16"}, "finetune": {"one_pass": False}}
    trainer, model = workspace.trainer(apart, technique)
    layers = [weight for name, weight in model.named_parameters() if "encoder.layer." in name and weight.ndim > 1]
    for step in (1, 2):
        with Casts() as casts:
            trainer.step(TASKS, step)
        assert {casts.counts[weight.data_ptr()] for weight in layers} == {times}


def test_bf16_and_float32_agree_within_bounds(workspace):
    """Products in bf16 have 8 bits: losses stay within 2 %. Weights and the optimizer's state are float32 in both."""
    logs = []
    for precision in ("float32", "bf16"):
        trainer, model = workspace.trainer(STILL, finetune={"epochs": 1}, runtime={"precision": precision})
        logs += [log.losses for log in trainer.run("test")]
        state = [value for state in trainer.optimizer.state.values() for value in state.values()]
        assert {value.dtype for value in [*model.parameters(), *state]} == {torch.float32}
    assert logs[0] != logs[1] == pytest.approx(logs[0], rel=0.02)
