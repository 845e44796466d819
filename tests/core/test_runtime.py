import os

import pytest
import torch

from bertrio.core import runtime
from bertrio.core.errors import UserError
from bertrio.core.runtime import generator, set_up


def test_generators_differ_by_seed_and_by_name_and_not_by_run():
    draw = lambda *of: torch.rand(4, generator=generator(*of)).tolist()  # noqa: E731
    assert draw(1, "a") == draw(1, "a")
    assert len({tuple(draw(*of)) for of in [(1, "a"), (2, "a"), (1, "b"), (2**31, "a")]}) == 4


def test_the_seed_fixes_what_the_global_generator_draws():
    first = [set_up(5, "cpu") and torch.rand(3).tolist() for _ in range(2)]
    assert first[0] == first[1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has what the test wants missing")
def test_a_device_that_is_not_there_is_an_error():
    with pytest.raises(UserError, match=r"runtime\.device: cuda is not on this machine; use auto or cpu"):
        set_up(1, "cuda")


@pytest.mark.parametrize(
    ("amx", "avx512_bf16", "expected"),
    [(True, False, torch.bfloat16), (False, True, torch.bfloat16), (False, False, torch.float32)],
)
def test_on_a_cpu_auto_is_bf16_where_it_multiplies_in_hardware(monkeypatch, amx, avx512_bf16, expected):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512_bf16)
    assert runtime.choose("cpu").compute == expected


@pytest.mark.parametrize(("capability", "fast"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_on_a_card_auto_is_bf16_from_ampere_on(monkeypatch, capability, fast):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert runtime._fast_bf16(torch.device("cuda")) == fast


def test_auto_is_float32_for_an_encoder_too_narrow_to_gain_by_bf16():
    assert set_up(1, "cpu", "auto", width=64).compute == torch.float32
    assert set_up(1, "cpu", "bf16", width=64).compute == torch.bfloat16


@pytest.mark.parametrize("workspace", [None, ":16:8"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_cuda_is_deterministic_if_asked_and_a_workspace_of_the_user_stays(monkeypatch, deterministic, workspace):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", workspace or "")  # put back at the end
    if workspace is None:
        monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.setattr("bertrio.core.runtime._device", torch.device)  # whether or not this machine has one
    try:
        set_up(1, "cuda", "float32", deterministic=deterministic)
        assert torch.are_deterministic_algorithms_enabled() == deterministic != torch.backends.cudnn.benchmark
        assert os.environ.get("CUBLAS_WORKSPACE_CONFIG") == (workspace or (":4096:8" if deterministic else None))
    finally:
        torch.use_deterministic_algorithms(False)


def draw(count=64):
    """A dropout mask, as the encoder draws it."""
    return torch.nn.functional.dropout(torch.ones(count), 0.5)


def test_a_replay_draws_the_same_masks_and_then_all_goes_on_as_if_it_had_not_been():
    runtime = set_up(3, "cpu", "float32")
    undisturbed = [draw() for _ in range(3)]
    runtime = set_up(3, "cpu", "float32")
    state = runtime.random_state()
    first, second = draw(), draw()
    for _ in range(2):  # as often as one likes, and however much is drawn
        with runtime.replayed(state):
            assert torch.equal(draw(), first) and torch.equal(draw(), second)
            draw(1000)
    assert torch.equal(torch.stack([first, second, draw()]), torch.stack(undisturbed))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_replays_are_those_of_the_device_that_computes():
    runtime = set_up(3, "cuda", "float32")
    state, ones = runtime.random_state(), torch.ones(64, device="cuda")
    first, second = (torch.nn.functional.dropout(ones, 0.5) for _ in range(2))
    kept = runtime.random_state()
    with runtime.replayed(state):
        assert torch.equal(torch.nn.functional.dropout(ones, 0.5), first)
        assert torch.equal(torch.nn.functional.dropout(ones, 0.5), second)
    assert torch.equal(runtime.random_state(), kept)
