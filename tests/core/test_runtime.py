import os

import pytest
import torch

from bertrio.core import runtime
from bertrio.core.errors import UserError
from bertrio.core.runtime import generator, set_up

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_generators_differ_by_seed_and_by_name_and_not_by_run():
    draw = lambda *names: torch.rand(4, generator=generator(*names)).tolist()  # noqa: E731
    assert draw(1, "a") == draw(1, "a")
    assert len({tuple(draw(*names)) for names in [(1, "a"), (2, "a"), (1, "b"), (2**31, "a")]}) == 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has what the test wants missing")
def test_a_device_that_is_not_there_is_an_error():
    with pytest.raises(UserError, match=r"runtime\.device: cuda is not on this machine; use auto or cpu"):
        set_up(1, "cuda")


@pytest.mark.parametrize(("amx", "avx512_bf16"), [(True, False), (False, True), (False, False)])
def test_on_a_cpu_auto_is_bf16_where_it_multiplies_in_hardware(monkeypatch, amx, avx512_bf16):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512_bf16)
    assert runtime.choose("cpu").compute == (torch.bfloat16 if amx or avx512_bf16 else torch.float32)


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


def draw(device, count=64):
    """Return a dropout mask, as the encoder draws it."""
    return torch.nn.functional.dropout(torch.ones(count, device=device), 0.5)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
def test_a_replay_draws_the_same_masks_and_leaves_the_random_state_alone(device):
    runtime = set_up(3, device, "float32")
    undisturbed = [draw(device) for _ in range(3)]
    runtime = set_up(3, device, "float32")
    state = runtime.random_state()
    first, second = draw(device), draw(device)
    for _ in range(2):
        with runtime.replayed(state):
            assert torch.equal(draw(device), first) and torch.equal(draw(device), second)
            draw(device, 1000)
    assert torch.equal(torch.stack([first, second, draw(device)]), torch.stack(undisturbed))
