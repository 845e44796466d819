import numpy as np
import pytest
import torch

from bertrio.errors import UserError
from bertrio.model.multitask import build_model
from bertrio.runtime import set_up
from bertrio.training.build import build_trainer
from bertrio.training.data import build_losses, load_split
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


def test_a_joint_step_has_the_gradient_of_the_summed_losses(workspace):
    params, model, train = setting(workspace, **STILL, optimizer={"max_grad_norm": None})
    first = {task: next(stream) for task, stream in trainer_of(params, model, train).streams.items()}
    losses = build_losses(train, params)
    total = sum(losses[task](model(task, batch.inputs), batch.labels) for task, batch in first.items())
    total.backward()
    expected = [None if parameter.grad is None else parameter.grad.clone() for parameter in model.encoder.parameters()]
    model.zero_grad()
    trainer = trainer_of(params, model, train)
    trainer.optimizer.zero_grad = lambda **_: None  # leaves the step's gradients to be looked at
    model.train()
    losses = trainer._step(tuple(train), 1)
    assert sum(losses.values()) == pytest.approx(total.item(), rel=1e-5)
    for parameter, gradient in zip(model.encoder.parameters(), expected, strict=True):
        assert (parameter.grad is None) == (gradient is None)
        if gradient is not None:
            torch.testing.assert_close(parameter.grad, gradient, atol=1e-6, rtol=1e-4)


def test_training_learns_what_the_first_word_says(workspace):
    params, model, train = setting(workspace)
    logs = list(trainer_of(params, model, train, epochs=20).run("test"))
    assert logs[-1].losses["sst"] < 0.5 * logs[0].losses["sst"]
    assert (infer(model, train["sst"], 16).argmax(axis=1) == train["sst"].label_values).mean() > 0.9


def test_epochs_are_counted_by_the_until_task_and_max_steps_cuts_the_last_one(workspace):
    params, model, train = setting(workspace)
    logs = list(trainer_of(params, model, train, max_steps=11).run("test"))
    assert [log.step for log in logs] == [8, 11]  # 60 sst rows in batches of 8
    assert logs[-1].lr < logs[0].lr


def test_every_row_of_the_until_task_comes_once_an_epoch(workspace):
    params, model, train = setting(workspace)
    trainer = trainer_of(params, model, train, epochs=1)
    seen = []
    batch_of = trainer.streams["sst"].rows.batch
    trainer.streams["sst"].rows.batch = lambda rows: (seen.extend(rows.tolist()), batch_of(rows))[1]
    list(trainer.run("test"))
    assert sorted(seen) == list(range(60))


def test_a_loss_that_is_not_finite_stops_before_the_update_and_names_the_rows(workspace):
    params, model, train = setting(workspace)
    torch.nn.init.constant_(model.heads["qqp"].output.bias, float("nan"))
    before = model.heads["sst"].output.weight.clone()
    with pytest.raises(UserError, match=r"the loss of qqp is nan at step 1 \(rows qqp-0-\d+, .*try a lower lr"):
        list(trainer_of(params, model, train).run("test"))
    assert torch.equal(model.heads["sst"].output.weight, before)


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
    seen = {"qqp": [], "sts": []}
    for task, rows in seen.items():
        batch_of = trainer.streams[task].rows.batch
        trainer.streams[task].rows.batch = lambda at, rows=rows, batch_of=batch_of: (rows.extend(at), batch_of(at))[1]
    list(trainer.run("test"))
    assert sorted(seen["qqp"][:60]) == list(range(60)), "all rows come before any comes again"
    assert len(seen["qqp"]) == 64
    assert all(sorted(seen["sts"][start : start + 10]) == list(range(10)) for start in range(0, 80, 10))


def test_a_task_can_not_have_a_name_of_torchs_own(workspace):
    params = workspace.params(tasks={"values": workspace.params().tasks["sts"].model_dump()})
    with pytest.raises(UserError, match=r"tasks\.values: a task can't have this name"):
        build_model(params, "models/encoder", set_up(1, "cpu", "float32"))
