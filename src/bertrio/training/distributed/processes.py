"""The processes of a run, seen from one of them: which one it is, and what they tell each other.

All processes hold the same weights and the same state. Each takes its part of the rows of every batch, gradients are
added up, and so every process makes the same update. One process alone has nobody to talk to: then nothing here does
anything, and results are those of code that knows of no others.
"""

from __future__ import annotations

import atexit
import os
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from bertrio.core.console import console
from bertrio.core.errors import UserError
from bertrio.core.workers import share
from bertrio.training.distributed.launching import THREADS, end_with_launcher, launch

BUCKET = 1 << 23  # numbers that are added up in one message: 32 MB of float32
OTHER_KINDS = {  # by accelerate's variables
    "DEEPSPEED": "DeepSpeed",
    "FSDP": "FSDP",
    "MEGATRON_LM": "Megatron-LM",
    "PARALLELISM_CONFIG": "a parallelism config",
}


@dataclass(frozen=True)
class Processes:
    """The processes that share out each batch of a run.

    Attributes:
        rank: which one this is, from 0 on; 0 is the main one, which alone writes files and speaks.
        count: how many there are, on all machines.
        device: where this one computes; None if it is alone and may choose.
        threads: CPU threads, as what stays the same with more or fewer processes: of all that the stage itself started
            together, or of each one that another launcher started; None if it is alone.
        host: the group for messages in the CPU's memory; None for the default one.
    """

    rank: int = 0
    count: int = 1
    device: torch.device | None = None
    threads: int | None = None
    host: Any = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Processes:
        """Itself: a copy of a model has the same processes, and torch can't copy their group."""
        return self

    @property
    def alone(self) -> bool:
        """Whether this is the only one."""
        return self.count == 1

    @property
    def main(self) -> bool:
        """Whether this is the one that writes files."""
        return self.rank == 0

    def add_up(self, parameters: Iterable[nn.Parameter]) -> None:
        """Makes each gradient the sum of those of all processes, to the bit the same in all of them.

        The same parameters must have gradients in all processes. A sparse gradient stays so, with the rows of all.
        """
        if self.alone:
            return
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        for gradient in gradients:
            if gradient.is_sparse:
                _all_reduce(gradient)
        for bucket in _buckets([gradient for gradient in gradients if not gradient.is_sparse]):
            flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
            _all_reduce(flat)
            parts = flat.split([gradient.numel() for gradient in bucket])
            torch._foreach_copy_(bucket, [part.view(gradient.shape) for part, gradient in zip(parts, bucket)])

    def sums(self, numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sum over all processes of each number, a scalar on the device; all give the same names."""
        if self.alone:
            return dict(numbers)
        flat = torch.stack(list(numbers.values()))
        _all_reduce(flat)
        return dict(zip(numbers, flat.unbind()))

    def put_together(self, rows: Tensor, places: Tensor, count: int) -> Tensor:
        """The rows of all processes, [count, ...], of which this one has `rows` [B, ...], to stand at `places` [B]."""
        whole = rows.new_zeros(count, *rows.shape[1:])
        whole[places] = rows
        if not self.alone:
            _all_reduce(whole)
        return whole

    def put_together_on_host(self, values: np.ndarray) -> None:
        """Fills an array of which each process has filled some entries and left the others 0."""
        if not self.alone:
            _all_reduce(torch.from_numpy(values), group=self.host)

    def most(self, number: int) -> int:
        """The largest of the numbers that the processes give, each its own. Waits for all."""
        if self.alone:
            return number
        value = torch.tensor([number])
        _all_reduce(value, dist.ReduceOp.MAX, self.host)
        return int(value)

    def from_main(self, content: bytes) -> bytes:
        """What the main process gives, for all of them; what others give is of no account."""
        if self.alone:
            return content
        length = self.most(len(content) if self.main else 0)
        message = torch.zeros(length, dtype=torch.uint8)
        if self.main:
            message = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        with _talking():
            dist.broadcast(message, 0, group=self.host)
        return message.numpy().tobytes()

    def check_equal(self, tensors: Iterable[Tensor], what: str = "weights") -> None:
        """Checks that all processes hold the same bits; `what` they are is for the message.

        Raises:
            UserError: in all of them, if not.
        """
        if self.alone:
            return
        check = 0
        for tensor in tensors:
            check = zlib.crc32(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy(), check)
        if (self.most(check), self.most(-check)) != (check, -check):
            raise UserError(
                f"the processes of this run hold different {what}. All machines need the same code, params.yaml, data/ "
                "and models/ (dvc pull brings them), and CPUs or GPUs of one kind"
            )

    @contextmanager
    def one_speaks(self) -> Iterator[None]:
        """A context in which only the main process prints, but for errors."""
        console.quiet = not self.main
        try:
            yield
        except Exception:
            console.quiet = False
            raise
        console.quiet = False


ALONE = Processes()


def share_out(count: int, device: str) -> Processes:
    """The processes of this run, from within one of them.

    A command that accelerate or torchrun started is one of theirs already, and `count` is not looked at. Else, if
    `count` is above 1, this process starts so many of its kind, waits for them and ends as they do: it does not return.

    Args:
        count: of processes, `runtime.processes`.
        device: `runtime.device`.

    Raises:
        UserError: if the device is not for several processes, or their launcher asks for more than data parallelism.
        SystemExit: when the processes that it started have ended.
    """
    if _started_by_launcher():
        return _join(device)
    if count == 1:
        return ALONE
    _check_device(device, count)
    every = torch.get_num_threads()
    _, threads = share(device, None, every, torch.cuda.device_count())
    raise SystemExit(launch(count, threads or every))


def is_main() -> bool:
    """Whether this process is the main one of its run, as far as the environment says; it need not have joined yet."""
    return not _started_by_launcher() or os.environ["RANK"] == "0"


def _started_by_launcher() -> bool:
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def _join(device: str) -> Processes:
    """Meets the other processes: over gloo on the CPU; on GPUs over nccl, and gloo for what is in the CPU's memory."""
    for variable, name in OTHER_KINDS.items():
        if os.environ.get(f"ACCELERATE_USE_{variable}", "false").lower() == "true":
            raise UserError(
                f"accelerate's config asks for {name}, which splits the model in its own ways. Launch with accelerate "
                "launch --multi_gpu"
            )
    end_with_launcher()
    if int(os.environ["WORLD_SIZE"]) == 1:
        return ALONE
    here = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    _check_device(device, here)
    return _met(_on_cuda(device), int(os.environ.get(THREADS, torch.get_num_threads())))


def _met(on_cuda: bool, threads: int) -> Processes:
    """Waits until all processes are there."""
    from accelerate import PartialState  # a slow import

    try:
        state = PartialState() if on_cuda else PartialState(cpu=True, backend="gloo")
        host = dist.new_group(backend="gloo") if on_cuda else None
    except RuntimeError as error:
        place = ":".join(os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"the processes of this run can't meet at {place} ({reason}); see docs/distributed.md"
        ) from error
    atexit.register(_leave)
    device = state.device if on_cuda else torch.device("cpu")
    return Processes(state.process_index, state.num_processes, device, threads, host)


def _on_cuda(device: str) -> bool:
    return device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())


def _check_device(device: str, here: int) -> None:
    """Raises UserError if `here` processes of this machine cannot have this device."""
    if device == "mps" or ":" in device:
        raise UserError(f"runtime.device: found {device}, one device for {here} processes; use auto, cuda or cpu")
    if _on_cuda(device) and here > torch.cuda.device_count():
        raise UserError(
            f"{here} processes on this machine, but it has {torch.cuda.device_count()} GPUs, and each process needs "
            "one; lower runtime.processes (or what the launcher was told), or set runtime.device=cpu"
        )


def _buckets(gradients: list[Tensor]) -> Iterator[list[Tensor]]:
    """The gradients in their order, in lists of one dtype and about `BUCKET` numbers."""
    bucket: list[Tensor] = []
    for gradient in gradients:
        full = sum(map(torch.numel, bucket)) + gradient.numel() > BUCKET
        if bucket and (full or gradient.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(gradient)
    if bucket:
        yield bucket


def _all_reduce(tensor: Tensor, how: Any = dist.ReduceOp.SUM, group: Any = None) -> None:
    with _talking():
        dist.all_reduce(tensor, how, group)


@contextmanager
def _talking() -> Iterator[None]:
    """A context for one message, which tells what it means if nobody answers."""
    try:
        yield
    except RuntimeError as error:
        time.sleep(1)  # who waits for the first of them to fail must see the other one first
        raise UserError(
            "another process of this run has ended or can't be reached; what it said last tells why. The last "
            "checkpoint, if there is one, is kept: the same command goes on from it"
        ) from error


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
