"""Device, precision, threads and seeds of a stage."""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from bertrio.core.distributed import ALONE, Processes
from bertrio.core.errors import UserError

PRECISIONS = ("auto", "float32", "bf16")
NARROW = 256  # below this hidden size, bf16 casts and separate passes per task cost more than they save


@dataclass(frozen=True)
class Runtime:
    """Device, and dtype of matrix products on it; everything else is float32.

    Attributes:
        device: device of this process.
        compute: dtype of matrix products.
        seed: seed of the run.
        processes: processes that share the run.
    """

    device: torch.device
    compute: torch.dtype
    seed: int = 0
    processes: Processes = ALONE

    def autocast(self) -> Any:
        """Return the context to run the encoder in: bf16 autocast, or none for float32."""
        if self.compute == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.compute)

    def casting_once(self) -> Any:
        """Return a context in which each trainable weight is cast once for all passes; weights must not change in it.

        Autocast caches casts of trainable weights until its outermost context ends. This context itself is disabled.
        """
        if self.compute == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.compute, enabled=False)

    def random_state(self) -> torch.Tensor:
        """Return the state of the generator used by dropout on this device."""
        return _torch_module(self.device).get_rng_state(*_device_args(self.device))

    def set_random_state(self, state: torch.Tensor) -> None:
        """Restore a state that `random_state` returned."""
        _torch_module(self.device).set_rng_state(state, *_device_args(self.device))

    @contextmanager
    def replayed(self, state: torch.Tensor) -> Iterator[None]:
        """Run the block from random state `state`, so that the same passes get the same dropout masks; restore the
        previous state afterwards."""
        previous = self.random_state()
        self.set_random_state(state)
        try:
            yield
        finally:
            self.set_random_state(previous)

    def begin_step(self, step: int) -> None:
        """Seed dropout for update `step` by step and rank if several processes share the run.

        Checkpoints then need no random state per process. A single process continues its random stream.
        """
        if not self.processes.alone:
            torch.manual_seed(_mixed(self.seed, f"dropout {step} {self.processes.rank}"))

    def facts(self) -> dict[str, str | int]:
        """Return device, precision, CPU threads and, if several, the number of processes, for reports of cost."""
        precision = "bf16" if self.compute == torch.bfloat16 else "float32"
        several = {} if self.processes.alone else {"processes": self.processes.world_size}
        return {"device": str(self.device), "precision": precision, "threads": torch.get_num_threads(), **several}

    def describe(self) -> str:
        """Return the same as text, such as "cpu, float32, 2 threads"."""
        facts = self.facts()
        threads = "1 thread" if facts["threads"] == 1 else f"{facts['threads']} threads"
        several = "" if self.processes.alone else f" in each of {self.processes.world_size} processes"
        return f"{facts['device']}, {facts['precision']}, {threads}{several}"


def set_up(
    seed: int,
    device: str = "auto",
    precision: str = "auto",
    threads: int | None = None,
    deterministic: bool = False,
    processes: int = 1,
    process_group: Processes = ALONE,
    width: int | None = None,
) -> Runtime:
    """Seed the global generators and choose device, precision and threads.

    Args:
        seed: seed of the global torch, numpy and python generators, used for initial heads and dropout.
        device: `auto`, `cpu`, `mps`, `cuda` or `cuda:N`.
        precision: `auto` (bf16 where the hardware supports it natively), `float32` or `bf16`.
        threads: CPU threads of torch; None keeps torch's default: OMP_NUM_THREADS, or all cores.
        deterministic: on CUDA, use torch's deterministic algorithms, or fail where there is none, for the rest of
            the process. CPU algorithms are always deterministic.
        processes: number of processes, used by `init_distributed` and ignored here.
        process_group: processes that share this run.
        width: the encoder's hidden size, if known; `auto` means float32 below `NARROW`.

    Raises:
        UserError: if the device is not available.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    chosen = process_group.device or _device(device)
    if deterministic and chosen.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it at its first product
        torch.backends.cudnn.benchmark = False  # it picks algorithms by measured speed, which varies
        torch.use_deterministic_algorithms(True)
    return replace(choose(str(chosen), precision, width), seed=seed, processes=process_group)


def choose(device: str = "auto", precision: str = "auto", width: int | None = None) -> Runtime:
    """Return the runtime without setting seeds or other global state. Args and errors as in `set_up`."""
    chosen = _device(device)
    if precision not in PRECISIONS:
        raise UserError(f"precision: found {precision!r}, expected one of {', '.join(PRECISIONS)}")
    if precision == "auto":
        precision = "bf16" if _fast_bf16(chosen) and (width is None or width >= NARROW) else "float32"
    return Runtime(chosen, torch.bfloat16 if precision == "bf16" else torch.float32)


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    kind, colon, index = name.partition(":")
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available.get(kind) or (colon and index not in map(str, range(torch.cuda.device_count()))):
        raise UserError(f"runtime.device: {name} is not on this machine; use auto or cpu")
    return torch.device(name)


def _torch_module(device: torch.device) -> Any:
    """Return the torch module that holds the device's generator."""
    return {"cpu": torch, "cuda": torch.cuda, "mps": torch.mps}[device.type]


def _device_args(device: torch.device) -> tuple[torch.device, ...]:
    """Return the device arguments of that module's functions; only CUDA has several devices."""
    return (device,) if device.type == "cuda" else ()


def _fast_bf16(device: torch.device) -> bool:
    """Return whether bf16 is native: CPUs with AMX or AVX512_BF16, and CUDA GPUs from Ampere on."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] >= 8
    if device.type == "cpu":
        return torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return False


def generator(seed: int, name: str) -> torch.Generator:
    """Return a CPU generator for one purpose, independent of the draws of all others."""
    return torch.Generator().manual_seed(_mixed(seed, name))


def _mixed(seed: int, name: str) -> int:
    return zlib.crc32(f"{seed} {name}".encode())  # torch's CPU generator uses only 32 bits of its seed
