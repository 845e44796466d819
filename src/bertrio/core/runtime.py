"""Where and how a stage computes: device, precision, threads and seeds."""

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
NARROW = 256  # hidden size below which casts to bf16, and a pass more than needed, cost more than they save


@dataclass(frozen=True)
class Runtime:
    """A device and the type that matrix products run in there; everything else stays float32.

    Attributes:
        device: where this process computes.
        compute: the type of matrix products.
        seed: of the run.
        processes: those that share the run, which stages that know of one process have no use for.
    """

    device: torch.device
    compute: torch.dtype
    seed: int = 0
    processes: Processes = ALONE

    def autocast(self) -> Any:
        """The context in which the encoder runs: bf16 autocast, or nothing for float32."""
        if self.compute == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.compute)

    def casting_once(self) -> Any:
        """A context in which weights do not change, and each that trains is cast once for all passes.

        Autocast keeps what it cast of these until its outermost context ends; this one casts nothing by itself.
        """
        if self.compute == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.compute, enabled=False)

    def random_state(self) -> torch.Tensor:
        """The state of the generator that dropout on this device draws from."""
        return _generator_of(self.device).get_rng_state(*_place(self.device))

    def set_random_state(self, state: torch.Tensor) -> None:
        """Restore a state that `random_state` returned."""
        _generator_of(self.device).set_rng_state(state, *_place(self.device))

    @contextmanager
    def replayed(self, state: torch.Tensor) -> Iterator[None]:
        """A context that draws from `state` on, so that the same passes get the same dropout masks; afterwards the
        generator goes on as if nothing had been drawn."""
        kept = self.random_state()
        self.set_random_state(state)
        try:
            yield
        finally:
            self.set_random_state(kept)

    def begin_step(self, step: int) -> None:
        """Where several processes share a run, dropout in update `step` draws from a seed of step and process: it has
        no state then that differs between them and would have to be in checkpoints. One alone draws on and on."""
        if not self.processes.alone:
            torch.manual_seed(_mixed(self.seed, f"dropout {step} {self.processes.rank}"))

    def facts(self) -> dict[str, str | int]:
        """Device, precision as params name it, threads of the CPU, and processes if there are several: what a run's
        cost is to be read with."""
        precision = "bf16" if self.compute == torch.bfloat16 else "float32"
        several = {} if self.processes.alone else {"processes": self.processes.world_size}
        return {"device": str(self.device), "precision": precision, "threads": torch.get_num_threads(), **several}

    def describe(self) -> str:
        several = "" if self.processes.alone else f" in each of {self.processes.world_size} processes"
        return "{device}, {precision}, {threads} threads".format(**self.facts()) + several


def set_up(
    seed: int,
    device: str = "auto",
    precision: str = "auto",
    threads: int | None = None,
    deterministic: bool = False,
    processes: int = 1,
    among: Processes = ALONE,
    width: int | None = None,
) -> Runtime:
    """Seed the global generators and picks device, precision and threads.

    Args:
        seed: of the global torch, numpy and python generators, which draw initial heads and dropout.
        device: `auto`, `cpu`, `mps`, `cuda` or `cuda:N`.
        precision: `auto` (bf16 where the hardware multiplies it well), `float32` or `bf16`.
        threads: CPU threads of torch; None leaves its own choice: OMP_NUM_THREADS, or all cores.
        deterministic: on CUDA, take torch's deterministic algorithms, or fail where there is none; for the rest of
            the process. The CPU's are deterministic by themselves.
        processes: how many share fine-tuning; `init_distributed` starts them, and it is ignored here.
        among: those that share this run, of which this is one.
        width: the encoder's hidden size, if known; `auto` is float32 below `NARROW`, where casts to bf16 cost more
            than they save.

    Raises:
        UserError: if the device is not there.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    where = among.device or _device(device)
    if deterministic and where.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it at its first product
        torch.backends.cudnn.benchmark = False  # which picks algorithms by how fast they were this time
        torch.use_deterministic_algorithms(True)
    return replace(choose(str(where), precision, width), seed=seed, processes=among)


def choose(device: str = "auto", precision: str = "auto", width: int | None = None) -> Runtime:
    """The runtime alone: no seed is set, and nothing else in the process changes. Args and errors as `set_up`."""
    where = _device(device)
    if precision not in PRECISIONS:
        raise UserError(f"precision: found {precision!r}, expected one of {', '.join(PRECISIONS)}")
    if precision == "auto":
        precision = "bf16" if _fast_bf16(where) and (width is None or width >= NARROW) else "float32"
    return Runtime(where, torch.bfloat16 if precision == "bf16" else torch.float32)


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    kind, _, index = name.partition(":")
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there.get(kind) or (index and index not in map(str, range(torch.cuda.device_count()))):
        raise UserError(f"runtime.device: {name} is not on this machine; use auto or cpu")
    return torch.device(name)


def _generator_of(device: torch.device) -> Any:
    """The module of torch that keeps the device's generator."""
    return {"cpu": torch, "cuda": torch.cuda, "mps": torch.mps}[device.type]


def _place(device: torch.device) -> tuple[torch.device, ...]:
    """What that module wants to know of the device: CUDA alone has several."""
    return (device,) if device.type == "cuda" else ()


def _fast_bf16(device: torch.device) -> bool:
    """True for CPUs with AMX or AVX512_BF16 and for CUDA cards from Ampere on; elsewhere bf16 is emulated, slowly."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] >= 8
    if device.type == "cpu":
        return torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return False


def generator(seed: int, name: str) -> torch.Generator:
    """An own CPU generator for one use, so that what one part draws does not shift what another one gets."""
    return torch.Generator().manual_seed(_mixed(seed, name))


def _mixed(seed: int, name: str) -> int:
    return zlib.crc32(f"{seed} {name}".encode())  # 32 bits: torch's CPU generator looks at no more of its seed
