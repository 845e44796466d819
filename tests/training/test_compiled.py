"""Compiled passes of the encoder: what training learns stays as it is. All but the last three tests take a stand-in
for the compiler's last part, which runs what it is given as it is, and takes no time; those need a C++ compiler."""

import copy
import shutil
from dataclasses import replace

import pytest
import torch
from torch import nn

from bertrio.config import merged
from bertrio.core.errors import UserError
from bertrio.training.distributed.sharding import Sharding
from bertrio.training.loop import infer
from tests.training.test_loop import STILL, a_step, gradients, setting, trainer_of
from tests.training.test_resume import SHORT, Interrupted, assert_same, stopped, train  # noqa: F401

ON = {"encoder": {"compile": True}}
DROPPING = {"encoder": {"dropout": 0.2, "attention_dropout": 0.2}}
QUIET = {"smart": {"lambda": 1.0, "radius": 1e-9, "sigma": 1e-12, "eta": 1e-12}}  # noise that moves nothing
real_compile = nn.Module.compile
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler here")


@pytest.fixture(autouse=True)
def forgets():
    """Each test begins with nothing compiled: torch gives up on code that it has compiled eight times."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        yield


def graphs():
    """How many graphs torch has handed to the compiler so far in this test."""
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.fixture
def traced(monkeypatch):
    """Passes are traced, way back included, and run operation by operation."""
    compiled = lambda module, mode, **how: real_compile(module, **how, backend="aot_eager")  # noqa: E731
    monkeypatch.setattr(nn.Module, "compile", compiled)


@pytest.mark.parametrize(
    "technique",
    [
        {},
        {"smart": {"lambda": 1.0, "radius": 0.1}},
        {"finetune": {"accumulate": 3}},
        {"surgery": {"method": "pcgrad"}, "weighting": {"method": "uncertainty"}},
        {"finetune": {"one_pass": False}, "tasks": {"sts": {"encoding": "bi", "head": "siamese"}}},
        {"encoder": {"lora": {"rank": 2}}},
        {"encoder": {"frozen": True}},
        {"encoder": {"pooling": "pooler"}},  # a part of the transformer; the others read what comes of it
    ],
    ids=["plain", "smart", "pieces", "surgery", "bi", "lora", "frozen", "pooler"],
)
def test_a_step_has_the_gradients_of_the_plain_one(workspace, traced, technique):
    technique = merged(STILL, technique)
    plain, _, told = a_step(workspace, **technique)
    compiled, _, told_compiled = a_step(workspace, **merged(technique, ON))
    assert graphs() > 0, "or nothing was compiled"
    assert told_compiled == pytest.approx(told, rel=1e-4, abs=1e-6)
    ours = gradients(compiled)
    for name, gradient in gradients(plain).items():
        assert (gradient is None) == (ours[name] is None), name
        if gradient is not None:
            torch.testing.assert_close(ours[name], gradient, atol=2e-6, rtol=1e-3)


def test_outputs_are_those_of_the_plain_encoder(workspace, traced):
    (_, plain, rows), (_, compiled, _) = setting(workspace), setting(workspace, **ON)
    for task in rows:
        expected = torch.tensor(infer(plain, rows[task], 7))
        torch.testing.assert_close(torch.tensor(infer(compiled, rows[task], 7)), expected, atol=1e-6, rtol=1e-5)


def test_clean_and_perturbed_passes_draw_the_same_masks(workspace, traced):
    assert all(value == pytest.approx(0, abs=1e-6) for value in penalties(workspace, merged(DROPPING, QUIET)))
    assert any(value > 1e-4 for value in penalties(workspace, merged(DROPPING, {"r_drop": {"alpha": 1.0}})))


def penalties(workspace, technique):
    """The penalties of one compiled step."""
    params, model, rows = setting(workspace, **merged(technique, ON))
    told = trainer_of(params, model, rows)._step(("sst", "qqp", "sts"), 1)
    return [value.item() for name, value in told.items() if "_" in name]


def test_texts_are_padded_to_few_widths(workspace, traced):
    _, model, _ = setting(workspace, **ON)
    for width in range(1, 33):
        tokens = {"input_ids": torch.zeros(2, width), "attention_mask": torch.ones(2, width)}
        embeddings, rest = model.encoder.passes.padded(torch.ones(2, width, 3), tokens)
        assert embeddings.shape == (2, 16 if width <= 16 else 32, 3)
        assert embeddings.sum() == 2 * width * 3 and rest["attention_mask"].sum() == 2 * width
        assert rest.keys() == {"attention_mask"} and rest["attention_mask"].shape == embeddings.shape[:2]


def test_passes_of_one_kind_share_a_piece_of_code(workspace, traced):
    params, model, rows = setting(workspace, **merged(DROPPING, ON))
    trainer = trainer_of(params, model, rows)
    trainer._step(("sst", "qqp", "sts"), 1)
    infer(model, rows["sst"], 7)  # and 4 rows at last
    assert graphs() == 2, "one with gradients, one without"
    infer(model, rows["sst"], 59)  # and a row at last, which torch compiles anew in any case
    assert graphs() == 3
    with torch._dynamo.config.patch(error_on_recompile=True):
        model.train()
        for step in range(2, 6):
            trainer._step(("sst", "qqp", "sts"), step)
        infer(model, rows["qqp"], 16)


def test_graphs_get_their_memory_back_before_each_update_and_batch(workspace, traced, monkeypatch):
    marks = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: marks.append(1))
    params, model, rows = setting(workspace, **ON)
    model.encoder.passes.on_cuda = True  # as far as can be told on a CPU
    trainer = trainer_of(params, model, rows, accumulate=2)
    for step in range(1, 4):
        trainer._step(("sst", "qqp", "sts"), step)
        assert len(marks) == step
    infer(model, rows["sst"], 16)
    assert len(marks) == 3 + 4


def test_gradients_leave_the_memory_of_graphs_after_each_backward_pass(workspace, traced, monkeypatch):
    technique = merged(STILL, {"finetune": {"accumulate": 2}})
    expected = gradients(a_step(workspace, **technique)[0])
    inside = []

    def on_cuda(model):
        model.encoder.passes.on_cuda = True
        keep = model.encoder.passes.keep_gradients

        def kept():
            before = {name: of.grad for name, of in model.encoder.named_parameters() if of.grad is not None}
            keep()
            inside.append([name for name, of in model.encoder.named_parameters() if of.grad is before.get(name)])

        model.encoder.passes.keep_gradients = kept

    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: None)
    compiled, _, _ = a_step(workspace, **merged(technique, ON), change=on_cuda)
    ours = gradients(compiled)
    for name, gradient in expected.items():
        if gradient is not None:
            torch.testing.assert_close(ours[name], gradient, atol=2e-6, rtol=1e-3)
    moved = {name for name, of in compiled.encoder.transformer.named_parameters() if of.grad is not None}
    assert len(inside) == 2 and moved
    assert not {f"transformer.{name}" for name in moved} & set(inside[0]), "the first pass's are moved"
    assert {f"transformer.{name}" for name in moved} <= set(inside[1]), "to which the second's are added"


def test_compiling_draws_nothing_from_the_global_generator(workspace, traced):
    _, model, rows = setting(workspace, **merged(DROPPING, ON))
    model.train()
    batch = rows["sst"].batch([0, 1, 2])

    def drawn():
        torch.manual_seed(5)
        model("sst", batch.inputs)
        return torch.get_rng_state()

    assert torch.equal(drawn(), drawn()), "the first call compiles, the second does not"


def test_a_copy_is_not_compiled_and_files_are_as_ever(workspace, traced):
    _, model, _ = setting(workspace, **ON)
    assert model.encoder.transformer._compiled_call_impl is not None
    copied = copy.deepcopy(model).encoder
    assert copied.transformer._compiled_call_impl is None and copied.passes is None
    assert model.state_dict().keys() == setting(workspace)[1].state_dict().keys()


def test_what_cant_be_compiled_is_said_with_a_way_out(workspace, monkeypatch):
    def broken(graph, inputs):
        raise RuntimeError("no compiler\nfound")

    compiled = lambda module, mode, **how: real_compile(module, **how, backend=broken)  # noqa: E731
    monkeypatch.setattr(nn.Module, "compile", compiled)
    with pytest.raises(UserError, match="encoder.compile: .*no compiler found.*; set it to false"):
        a_step(workspace, **ON)


def test_processes_that_split_the_weights_are_refused(workspace, traced):
    params, model, rows = setting(workspace, **ON)
    split = replace(model.runtime.processes, sharding=Sharding())
    model.runtime = replace(model.runtime, processes=split)
    with pytest.raises(UserError, match=r"encoder\.compile: found true, in processes that split the weights"):
        trainer_of(params, model, rows)


def test_memory_that_is_out_is_no_fault_of_the_compiler(workspace, monkeypatch):
    def short(module, **inputs):
        raise torch.OutOfMemoryError("out of memory")

    _, model, rows = setting(workspace, **ON)
    monkeypatch.setattr(type(model.encoder.transformer), "__call__", short)
    with pytest.raises(torch.OutOfMemoryError):
        model("sst", rows["sst"].batch([0]).inputs)


@needs_compiler
def test_a_run_that_was_stopped_gives_the_same_bytes(workspace, stopped):  # noqa: F811
    params = workspace.params(**merged(merged(SHORT, DROPPING), ON))
    train(params, "whole")
    stopped(lambda: train(params, "parts"), 5, Interrupted)
    torch._dynamo.reset()  # as in a new process
    train(params, "parts")
    assert_same("whole", "parts")


@needs_compiler
def test_compiled_code_draws_the_same_masks_for_clean_and_perturbed_passes(workspace):
    assert all(value == pytest.approx(0, abs=1e-6) for value in penalties(workspace, merged(DROPPING, QUIET)))
    assert graphs() == 1


@needs_compiler
def test_compiled_code_has_the_gradients_of_the_plain_one(workspace):
    plain, _, told = a_step(workspace, **STILL)
    compiled, _, told_compiled = a_step(workspace, **merged(STILL, ON))
    assert graphs() == 1 and told_compiled == pytest.approx(told, rel=1e-4, abs=1e-6)
    ours = gradients(compiled)
    for name, gradient in gradients(plain).items():
        if gradient is not None:
            torch.testing.assert_close(ours[name], gradient, atol=2e-6, rtol=1e-3)
