import pandas as pd
import pytest
import torch

from bertrio.core.runtime import Runtime
from bertrio.training.build import build_trainer, resolve_precision, weight_penalty
from tests.training.conftest import TASKS, run, saved_model, split_of, weights_of

NOISY = {"encoder": {"dropout": 0.1, "attention_dropout": 0.1}, "tasks": {name: {"dropout": 0.2} for name in TASKS}}
TECHNIQUES = {
    "smart": {"smart": {"lambda": 5, "sigma": 0.1, "radius": 0.1}}, "bregman": {"bregman": {"mu": 1, "momentum": 0.5}},
    "r_drop": {"r_drop": {"alpha": 1}}, "penalties": {"penalties": {"l1": 1e-3, "l2": 1e-3}},
    "upgrad": {"surgery": {"method": "upgrad", "reduction": "mean"}}, "lora": {"encoder": {"lora": {"rank": 2}}},
    "temperature": {"schedule": {"name": "temperature", "temperature": 2.0}},
}  # fmt: skip


def trained(workspace, *groups):
    """Return the weights of the model and the scored model after a few steps."""
    trainer, scored = workspace.trainer(NOISY, *groups, finetune={"max_steps": 3})
    list(trainer.run("test"))
    return weights_of(trainer.model), weights_of(scored)


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(value, b[name]) for name, value in a.items())


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_each_technique_changes_the_weights(workspace, technique):
    assert not same(trained(workspace)[0], trained(workspace, TECHNIQUES[technique])[0])


def test_moving_average_is_scored_and_does_not_affect_training(workspace):
    fast, average = {"finetune": {"lr": 0.01}}, {"finetune": {"ema": 0.75}}
    trainer, scored = workspace.trainer(NOISY, fast, average)
    assert scored is not trainer.model
    by_hand = {name: value.detach().double() for name, value in trainer.model.named_parameters()}
    for step in (1, 2):
        trainer.step(TASKS, step)
        for name, value in trainer.model.named_parameters():
            by_hand[name] = 0.75 * by_hand[name] + 0.25 * value.detach().double()
    for name, value in scored.named_parameters():
        torch.testing.assert_close(value.double(), by_hand[name], rtol=1e-5, atol=1e-7)
        assert not value.requires_grad
    without = trained(workspace, fast)
    assert same(without[0], trained(workspace, fast, average)[0])
    assert same(*without), "without an average, the trained model is scored"


UNCERTAINTY = {"weighting": {"method": "uncertainty", "lr": 0.05}}


def test_log_variances_have_their_own_lr_and_move_with_their_task(workspace):
    trainer, _ = workspace.trainer(UNCERTAINTY, schedule={"name": "round_robin"}, optimizer={"lr_schedule": "constant"})
    log_variances, groups = trainer.objective.weighting.log_variances, trainer.optimization.optimizer.param_groups
    (group,) = [group for group in groups if group["params"][0] is log_variances["sst"]]
    assert {id(w) for w in group["params"]} == {id(w) for w in log_variances.values()}
    assert group["weight_decay"] == 0.0 and group["initial_lr"] == 0.05
    assert all(other["initial_lr"] == 1e-3 for other in groups if other is not group)
    before = {task: w.item() for task, w in log_variances.items()}
    for step, task in enumerate((*TASKS, *TASKS), start=1):
        trainer.step((task,), step)
        after = {name: w.item() for name, w in log_variances.items()}
        assert [name for name in TASKS if after[name] != before[name]] == [task]
        before = after


def test_clipping_excludes_log_variances(workspace):
    results = {}
    for norm in (None, 1e-3):
        trainer, model = workspace.trainer(NOISY, UNCERTAINTY, optimizer={"max_grad_norm": norm})
        trainer.optimization.optimizer.zero_grad = lambda **_: None
        trainer.step(TASKS, 1)
        total = torch.cat([p.grad.to_dense().flatten() for p in model.parameters() if p.grad is not None]).norm().item()
        results[norm] = total, [w.grad.item() for w in trainer.objective.weighting.parameters()]
    assert results[1e-3][0] == pytest.approx(1e-3, rel=1e-3) and results[None][0] > 0.1
    assert results[1e-3][1] == results[None][1]


@pytest.mark.parametrize("part", ["all", "heads"])
def test_penalties_equal_their_equations_on_parameters_in_use(workspace, part):
    params, model, _ = workspace.built(penalties={"l1": 0.01, "l2": 0.003, "parameters": part})
    penalized = {id(p) for p in {"all": model, "heads": model.heads}[part].parameters()}
    trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    unused = {name for name in trainable if "heads.task_sst" in name}
    for name in trainable.keys() - unused:
        trainable[name].grad = torch.full_like(trainable[name], 0.5)
    weight_penalty(params, model)()
    for name, parameter in trainable.items():
        if name in unused:
            assert parameter.grad is None, name
            continue
        w = parameter.detach().double()
        penalty = 0.01 * w.sign() + 2 * 0.003 * w if id(parameter) in penalized else 0 * w
        torch.testing.assert_close(parameter.grad.double(), 0.5 + penalty, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("precision", "smart", "expected"),
    [
        ("auto", {"lambda": 1, "radius": 1e-5}, torch.float32),  # noise that vanishes in bf16
        ("auto", {"lambda": 0, "radius": 1e-5}, torch.bfloat16),
        ("auto", {"lambda": 1, "radius": 1.0}, torch.bfloat16),
        ("auto", {"lambda": 1, "radius": 1.0, "eta": 1e-4}, torch.float32),  # the step does not reach the radius
        ("bf16", {"lambda": 1, "radius": 1e-5}, torch.bfloat16),  # as requested
    ],
)
def test_noise_that_vanishes_in_bf16_is_trained_in_float32(workspace, precision, smart, expected):
    params = workspace.params(runtime={"precision": precision}, smart=smart)
    assert resolve_precision(params, Runtime(torch.device("cpu"), torch.bfloat16)).compute == expected
    assert resolve_precision(params, Runtime(torch.device("cpu"), torch.float32)).compute == torch.float32


def test_fine_tuning_saves_the_moving_average(workspace):
    params = workspace.params(finetune={"select": "last", "lr": 0.01, "ema": 0.9, "max_steps": 3})
    run(params, "a")
    model = saved_model(params, "models/prefinetuned")
    trainer, scored = build_trainer(params, model, split_of(params, "train"))
    list(trainer.run("test"))
    assert same(weights_of(saved_model(params, "a/model")), weights_of(scored))
    assert not same(weights_of(scored), weights_of(model))


def test_bregman_teacher_is_a_copy_with_heads_that_moves_after_a_step(workspace):
    trainer, model = workspace.trainer(NOISY, bregman={"mu": 1, "momentum": 0.5})
    teacher = trainer.objective.regularizers["bregman"].teacher
    before = weights_of(teacher.module)
    assert same(before, weights_of(model))
    trainer.step(TASKS, 1)
    for name in ("heads.task_sts.output.weight", "encoder.transformer.embeddings.word_embeddings.weight"):
        halfway = 0.5 * (before[name] + model.state_dict()[name])
        torch.testing.assert_close(teacher.module.state_dict()[name], halfway)


def test_a_step_without_parameters_to_penalize_works(workspace):
    trainer, _ = workspace.trainer(encoder={"frozen": True}, penalties={"l2": 0.1, "parameters": "encoder"})
    trainer.step(TASKS, 1)


@pytest.mark.parametrize("steps", [0, 2])
def test_conflicts_table_has_a_header_even_if_empty(workspace, steps):
    run(workspace.params(surgery={"log_conflicts": bool(steps)}, finetune={"max_steps": 2}), "a")
    table = pd.read_csv("a/conflicts.csv")
    assert table.columns.tolist() == ["step", "task_a", "task_b", "dot", "cosine", "norm_a", "norm_b"]
    assert table["step"].tolist() == sorted([*range(1, steps + 1)] * 3)
