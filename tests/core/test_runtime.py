import os

import pytest
import torch

from bertrio.core import runtime
from bertrio.core.runtime import generator, set_up

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_generators_depend_on_seed_and_name_only():
    draws = [torch.rand(4, generator=generator(*key)) for key in [(1, "a"), (1, "a"), (2, "a"), (1, "b"), (2**31, "a")]]
    assert torch.equal(draws[0], draws[1])
    assert len({tuple(draw.tolist()) for draw in draws}) == 4


@pytest.mark.parametrize(("amx", "avx512_bf16"), [(True, False), (False, True), (False, False)])
def test_auto_precision_on_cpu(monkeypatch, amx, avx512_bf16):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512_bf16)
    assert runtime.choose("cpu").compute == (torch.bfloat16 if amx or avx512_bf16 else torch.float32)


@pytest.mark.parametrize(("capability", "fast"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_auto_precision_on_cuda(monkeypatch, capability, fast):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert runtime._fast_bf16(torch.device("cuda")) == fast


def test_auto_precision_of_a_narrow_encoder_is_float32():
    assert set_up(1, "cpu", "auto", width=64).compute == torch.float32
    assert set_up(1, "cpu", "bf16", width=64).compute == torch.bfloat16


@pytest.mark.parametrize("workspace", [None, ":16:8"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_deterministic_cuda_keeps_the_users_workspace_config(monkeypatch, deterministic, workspace):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", workspace or "")  # restored at the end
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


def random_mask(device, count=64):
    """Return a dropout mask, drawn as in the encoder."""
    return torch.nn.functional.dropout(torch.ones(count, device=device), 0.5)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
def test_replay_repeats_masks_and_keeps_the_random_state(device):
    runtime = set_up(3, device, "float32")
    undisturbed = [random_mask(device) for _ in range(3)]
    runtime = set_up(3, device, "float32")
    state = runtime.random_state()
    first, second = random_mask(device), random_mask(device)
    for _ in range(2):
        with runtime.replayed(state):
            assert torch.equal(random_mask(device), first) and torch.equal(random_mask(device), second)
            random_mask(device, 1000)
    assert torch.equal(torch.stack([first, second, random_mask(device)]), torch.stack(undisturbed))
