from itertools import chain

import numpy as np
import pytest
import torch

from bertrio.config import merged
from bertrio.core.errors import UserError
from bertrio.core.runtime import set_up
from bertrio.model.multitask import build_model
from bertrio.training.build import build_losses, build_trainer, load_split
from bertrio.training.loop import infer

STILL = {
    "encoder": {"dropout": 0.0, "attention_dropout": 0.0},
    "tasks": {name: {"dropout": 0.0} for name in ("sst", "qqp", "sts")},
}


def setting(workspace, **overrides):
    params = workspace.params(**overrides)
    runtime = set_up(**params.runtime.model_dump())
    model = build_model(params, "models/encoder", runtime)
    train = load_split(params, "train", "data/splits", "models/tokenizer")
    return params, model, train


def trainer_of(params, model, train, **options):
    asked = params.finetune.model_copy(update={"lr": 1e-2, "epochs": 3, "max_steps": None, **options})
    return build_trainer(params.model_copy(update={"finetune": asked}), model, train)[0]


def watched(trainer):
    """The rows that each task trains on, batch after batch, filled in as training goes on."""
    seen = {task: [] for task in trainer.streams}
    for task, stream in trainer.streams.items():
        batch_of = stream.rows.batch
        stream.rows.batch = lambda rows, of=seen[task], batch_of=batch_of: (of.append(rows.tolist()), batch_of(rows))[1]
    return seen


def gradient_of_the_sum(workspace, seen, change=lambda model: None, losses=None, **overrides):
    """Loss and model with the plain gradient of the summed losses of these batches, one pass after the other."""
    params, model, train = setting(workspace, **overrides)
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


def test_a_joint_step_has_the_gradient_of_the_summed_losses(workspace):
    params, model, train = setting(workspace, **STILL, optimizer={"max_grad_norm": None})
    trainer = trainer_of(params, model, train)
    seen = watched(trainer)
    trainer.optimizer.zero_grad = lambda **_: None  # leaves the step's gradients to be looked at
    model.train()
    losses = trainer.step(tuple(train), 1)
    assert all(len(batches) == 1 and len(batches[0]) == 8 for batches in seen.values())
    total, expected = gradient_of_the_sum(workspace, seen, **STILL)
    assert sum(losses.values()) == pytest.approx(total, rel=1e-5)
    for parameter, other in zip(model.parameters(), expected.parameters(), strict=True):
        assert (parameter.grad is None) == (other.grad is None)
        if other.grad is not None:
            torch.testing.assert_close(parameter.grad.to_dense(), other.grad.to_dense(), atol=1e-6, rtol=1e-4)


def test_training_learns_what_the_first_word_says(workspace):
    params, model, train = setting(workspace)
    logs = list(trainer_of(params, model, train, epochs=20).run("test"))
    assert logs[-1].losses["sst"] < 0.5 * logs[0].losses["sst"]
    assert (infer(model, train["sst"], 16).argmax(axis=1) == train["sst"].label_values).mean() > 0.9


def test_a_loss_that_is_not_finite_stops_before_the_update_and_names_the_rows(workspace):
    params, model, train = setting(workspace)
    torch.nn.init.constant_(model.heads["qqp"].output.bias, float("nan"))
    before = model.heads["sst"].output.weight.clone()
    with pytest.raises(UserError, match=r"the loss of qqp is nan at step 1 \(rows qqp-0-\d+, .*try a lower lr"):
        list(trainer_of(params, model, train).run("test"))
    assert torch.equal(model.heads["sst"].output.weight, before)


@pytest.mark.parametrize("clipped", [{}, {"optimizer": {"max_grad_norm": None}}], ids=["clipped", "free"])
def test_a_gradient_that_is_not_finite_stops_before_the_update_and_names_tasks_and_rows(workspace, clipped):
    params, model, train = setting(workspace, **clipped)
    model.heads["qqp"].output.weight.register_hook(lambda gradient: gradient * float("inf"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    told = r"the norm of the gradients is (nan|inf) at step 1 \(rows sst-0-\d+, .* of sst; qqp-0-.* of qqp; sts-0-"
    with pytest.raises(UserError, match=told):
        list(trainer_of(params, model, train).run("test"))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_outputs_come_in_row_order_whatever_the_batch_size(workspace):
    _, model, train = setting(workspace)
    one_by_one = infer(model, train["sts"], 1)
    np.testing.assert_allclose(infer(model, train["sts"], 7), one_by_one, atol=1e-5)
    batch = train["sts"].batch(np.array([4]))
    model.eval()
    assert model("sts", batch.inputs).outputs.item() == pytest.approx(one_by_one[4, 0], abs=1e-5)


def test_a_frozen_encoder_stays_and_its_heads_learn(workspace):
    params, model, train = setting(workspace, encoder={"frozen": True})
    before = {name: value.clone() for name, value in model.state_dict().items()}
    list(trainer_of(params, model, train, epochs=1).run("test"))
    changed = {name.split(".")[0] for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"heads"}


def test_shorter_sets_cycle_and_longer_ones_carry_on_across_epochs(workspace):
    params, model, train = setting(workspace, tasks={"qqp": {"batch_size": 4}})
    train["sts"] = train["sts"].take(np.arange(10))
    trainer = trainer_of(params, model, train, epochs=2)  # 8 steps an epoch: sst 8 batches, qqp 15, sts 2
    batches = watched(trainer)
    list(trainer.run("test"))
    seen = {task: list(chain(*of)) for task, of in batches.items()}
    assert sorted(seen["qqp"][:60]) == list(range(60)), "all rows come before any comes again"
    assert len(seen["qqp"]) == 64
    assert all(sorted(seen["sts"][start : start + 10]) == list(range(10)) for start in range(0, 80, 10))


TASKS = ("sst", "qqp", "sts")
UNCLIPPED = {"optimizer": {"max_grad_norm": None}}


def a_step(workspace, step=TASKS, change=lambda model: None, losses=None, **overrides):
    """Takes one step without clipping and keeps its gradients: the model, its trainer, and what the step told."""
    params, model, train = setting(workspace, **{**STILL, **UNCLIPPED, **overrides})
    change(model)
    trainer = trainer_of(params, model, train)
    trainer.objective.losses.update(losses or {})
    trainer.optimizer.zero_grad = lambda **_: None
    model.train()
    told = trainer.step(step, 1)
    return model, trainer, {name: value.item() for name, value in told.items()}


def gradients(part):
    return {name: None if of.grad is None else of.grad.to_dense().clone() for name, of in part.named_parameters()}


def assert_equal_to_the_bit(one, other):
    assert one.keys() == other.keys()
    for name, gradient in one.items():
        assert (gradient is None) == (other[name] is None), name
        assert gradient is None or torch.equal(gradient, other[name]), name


def louder_heads(model):
    """Gradients of the output layers a thousand times as large; what flows on to the encoder stays."""
    for task in ("sst", "sts"):
        model.heads[task].output.weight.register_hook(lambda gradient: 1000 * gradient)


@pytest.mark.parametrize("method", ["pcgrad", "mgda", "upgrad"])
def test_the_gradients_of_heads_have_no_say_in_surgery(workspace, method):
    quiet, *_ = a_step(workspace, surgery={"method": method})
    loud, *_ = a_step(workspace, change=louder_heads, surgery={"method": method})
    assert_equal_to_the_bit(gradients(quiet.encoder), gradients(loud.encoder))
    louder = loud.heads["sts"].output.weight.grad
    torch.testing.assert_close(louder, 1000 * quiet.heads["sts"].output.weight.grad)


@pytest.mark.parametrize("method", ["pcgrad", "upgrad"])
def test_heads_and_layers_that_some_tasks_share_take_the_plain_sum_under_surgery(workspace, method):
    bi = {name: {"encoding": "bi", "head": "siamese", "dropout": 0.0} for name in ("qqp", "sts")}
    shared = {**STILL, "tasks": {"sst": {"dropout": 0.0}, **bi}, "sharing": {"layer": "both"}}
    surgery = {"method": method, "reduction": "mean"}
    params, model, train = setting(workspace, **shared, **UNCLIPPED, surgery=surgery)
    assert model.heads["qqp"].hidden[0] is model.heads["sts"].hidden[0]
    trainer = trainer_of(params, model, train)
    seen = watched(trainer)
    trainer.optimizer.zero_grad = lambda **_: None
    model.train()
    trainer.step(TASKS, 1)
    _, plain = gradient_of_the_sum(workspace, seen, **shared)
    for name, parameter in model.heads.named_parameters():
        expected = dict(plain.heads.named_parameters())[name].grad
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-4, atol=1e-6)
    weight = "transformer.embeddings.word_embeddings.weight"
    found, expected = (gradients(of.encoder)[weight] for of in (model, plain))
    assert (found - expected).norm() > 0.1 * expected.norm(), "the encoder does not"


def at_odds(model):
    """Heads that say the same, for losses that pull opposite ways."""
    model.heads["qqp"].load_state_dict(model.heads["sts"].state_dict())


PULL = {
    "sts": lambda output, labels: output.outputs.mean(),
    "qqp": lambda output, labels: -2 * output.outputs.mean(),
}


@pytest.mark.parametrize(("reduction", "share"), [("sum", 1.0), ("mean", 0.5)])
def test_pcgrad_of_two_tasks_at_odds_equals_its_algorithm_by_hand(workspace, reduction, share):
    surgery = {"surgery": {"method": "pcgrad", "reduction": reduction, "log_conflicts": True}}
    params, model, train = setting(workspace, **STILL, **UNCLIPPED, **surgery)
    at_odds(model)
    trainer = trainer_of(params, model, train)
    trainer.objective.losses.update(PULL)
    trainer.optimizer.zero_grad = lambda **_: None
    seen = watched(trainer)
    model.train()
    trainer.step(("sts", "qqp"), 1)

    def flat(model):
        return torch.cat(
            [of.grad.to_dense().flatten().double() for of in model.encoder.parameters() if of.grad is not None]
        )

    alone = {task: flat(gradient_of_the_sum(workspace, {task: seen[task]}, at_odds, PULL, **STILL)[1]) for task in PULL}
    one, other = alone["sts"], alone["qqp"]
    dot = one @ other
    assert dot < 0
    by_hand = (one - dot / (other @ other) * other) + (other - dot / (one @ one) * one)
    torch.testing.assert_close(flat(model), share * by_hand, rtol=1e-4, atol=1e-6)
    (row,) = trainer.combiner.conflicts
    assert (row["step"], row["task_a"], row["task_b"]) == (1, "sts", "qqp")
    assert row["dot"] == pytest.approx(dot.item(), rel=1e-4)
    assert row["cosine"] == pytest.approx((dot / (one.norm() * other.norm())).item(), rel=1e-4)
    assert (row["norm_a"], row["norm_b"]) == pytest.approx((one.norm().item(), other.norm().item()), rel=1e-4)


def test_loss_weights_come_before_surgery_and_clipping_after_it(workspace):
    weights = {"weighting": {"weights": {"sts": 3.0}}}
    surgery = {"surgery": {"method": "pcgrad", "log_conflicts": True}}
    _, plain, _ = a_step(workspace, ("sts", "qqp"), at_odds, PULL, **surgery)
    model, weighted, _ = a_step(workspace, ("sts", "qqp"), at_odds, PULL, **surgery, **weights)
    (before,), (after,) = plain.combiner.conflicts, weighted.combiner.conflicts
    assert after["norm_a"] == pytest.approx(3 * before["norm_a"], rel=1e-4)
    assert after["norm_b"] == pytest.approx(before["norm_b"], rel=1e-4)
    clip = {"optimizer": {"max_grad_norm": 0.01}}
    clipped, trainer, _ = a_step(workspace, ("sts", "qqp"), at_odds, PULL, **surgery, **weights, **clip)
    assert trainer.combiner.conflicts == weighted.combiner.conflicts
    norm = sum(of.square().sum() for of in gradients(model).values() if of is not None).sqrt()
    for name, gradient in gradients(clipped).items():
        if gradient is not None:
            torch.testing.assert_close(gradient, 0.01 / norm * gradients(model)[name], rtol=1e-3, atol=1e-9)


# which batches meet in a step must not depend on how tasks share passes of the encoder: runs with and without a
# technique would differ in their data as well
@pytest.mark.parametrize(
    "technique",
    [
        {"surgery": {"log_conflicts": True}},
        {"surgery": {"method": "pcgrad"}},
        {"smart": {"lambda": 1, "tasks": ["qqp"]}},
        {"bregman": {"mu": 1}},
        {"r_drop": {"alpha": 1, "tasks": ["sts", "sst"]}},
        {"weighting": {"method": "uncertainty"}},
        {"finetune": {"ema": 0.9}},
    ],
)
def test_a_technique_trains_on_the_same_batches_in_the_same_order_as_a_run_without_it(workspace, technique):
    orders = []
    for overrides in ({}, technique):
        params, model, train = setting(workspace, **overrides)
        trainer, _ = build_trainer(params, model, train)
        seen = watched(trainer)
        list(trainer.run("test"))
        orders.append(seen)
    assert orders[0] == orders[1]


def test_what_no_task_used_keeps_no_gradient_under_surgery_and_does_not_move(workspace):
    def untouched(**overrides):
        params, model, train = setting(workspace, optimizer={"weight_decay": 0.5}, **overrides)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        trainer = trainer_of(params, model, train)
        model.train()
        trainer.step(("qqp", "sts"), 1)
        return {name for name, value in model.state_dict().items() if torch.equal(value, before[name])}

    for overrides in ({}, {"surgery": {"method": "pcgrad"}}, {"penalties": {"l1": 0.1, "l2": 0.1}}):
        found = untouched(**overrides)
        assert {"heads.task_sst.output.weight", "heads.task_sst.output.bias"} <= found
        assert "encoder.transformer.pooler.dense.weight" in found, "mean pooling has no use for it"
        assert "heads.task_sts.output.weight" not in found


def test_the_log_tells_losses_and_penalties_unweighted_as_means_over_the_batches_of_a_task(workspace):
    params, model, train = setting(
        workspace,
        schedule={"name": "round_robin"},
        r_drop={"alpha": 0.5, "tasks": ["sts"]},
        weighting={"weights": {"sst": 0.0}},
    )
    trainer = trainer_of(params, model, train, epochs=1)
    told, step = [], trainer.step
    trainer.step = lambda *of: told.append(step(*of)) or told[-1]
    (log,) = trainer.run("test")
    assert set(log.losses) == {"sst", "qqp", "sts", "r_drop_sts"}
    for name, value in log.losses.items():
        of = [batch[name].item() for batch in told if name in batch]
        assert 0 < value == pytest.approx(np.mean(of))


# ---- cheaper ways of training leave what is learnt as it is


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
