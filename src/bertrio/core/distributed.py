"""Data-parallel training in several processes: how they start, and what they exchange.

All processes hold the same weights and the same state. Each takes its part of the rows of every batch, gradients are
summed, and so every process makes the same update. accelerate joins the processes and carries their messages, over
gloo on CPUs and NCCL on GPUs. A single process exchanges nothing, and every method here returns what it is given.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from bertrio.core.console import console
from bertrio.core.errors import UserError
from bertrio.core.interruption import SIGNALS

SAVE_WITHIN = 600  # seconds that processes have, after a signal, to end their step and save a checkpoint
THREADS = "BERTRIO_THREADS"  # environment variable: the CPU threads of all processes that this machine runs
CPU = {"cpu": True, "backend": "gloo"}
GPU = {"backend": "cpu:gloo,cuda:nccl"}  # gloo for what is in the CPU's memory


@dataclass(frozen=True)
class Processes:
    """The processes that share a run, as one of them sees them.

    Attributes:
        rank: the index of this process; 0 is the main one, which alone writes files and prints.
        world_size: how many there are, on all machines.
        device: where this process computes; None for a single process, which chooses itself.
        threads: CPU threads of all processes of this machine, which stays the same with more or fewer of them; None
            for a single process.
    """

    rank: int = 0
    world_size: int = 1
    device: torch.device | None = None
    threads: int | None = None

    @property
    def alone(self) -> bool:
        """Whether this is the only process."""
        return self.world_size == 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes files."""
        return self.rank == 0

    def all_reduce_sum(self, values: Any) -> Any:
        """Return the sum over all processes of a tensor, or of each tensor in a dict with the same keys everywhere."""
        return values if self.alone else _exchange("reduce", values, "sum")

    def all_reduce_max(self, number: int) -> int:
        """Return the largest of the numbers that the processes give. Waits for all of them."""
        return number if self.alone else int(_exchange("reduce", torch.tensor(number), "max"))

    def all_reduce_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum each gradient over all processes, to the same bits in each.

        The same parameters must have gradients in all processes. A sparse gradient stays sparse.
        """
        if self.alone:
            return
        for parameter in parameters:
            if parameter.grad is not None:
                dense = not parameter.grad.is_sparse
                parameter.grad = self.all_reduce_sum(parameter.grad.contiguous() if dense else parameter.grad)

    def all_gather_rows(self, rows: Tensor, positions: Tensor, count: int) -> Tensor:
        """Return the rows of all processes, [count, ...], of which this one has `rows` [B, ...] for `positions` [B]."""
        gathered = rows.new_zeros(count, *rows.shape[1:])
        gathered[positions] = rows
        return self.all_reduce_sum(gathered)

    def broadcast(self, value: Any) -> Any:
        """Return the value of the main process in all of them; tensors come on the CPU."""
        return value if self.alone else _exchange("broadcast_object_list", [value if self.is_main else None])[0]

    def check_equal(self, tensors: Iterable[Tensor], name: str = "weights") -> None:
        """Check that all processes hold the same bits.

        Raises:
            UserError: in all processes, if they do not.
        """
        if self.alone:
            return
        checksum = 0
        for tensor in tensors:
            checksum = zlib.crc32(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data, checksum)
        if (self.all_reduce_max(checksum), self.all_reduce_max(-checksum)) != (checksum, -checksum):
            raise UserError(
                f"the processes of this run hold different {name}. All machines need the same code, params.yaml, data/ "
                "and models/ (dvc pull brings them), and CPUs or GPUs of one kind"
            )

    @contextmanager
    def main_process_output(self) -> Iterator[None]:
        """Silence the console of all processes but the main one; errors still show."""
        console.quiet = not self.is_main
        try:
            yield
        finally:
            console.quiet = False


ALONE = Processes()


def init_distributed(count: int, device: str) -> Processes:
    """Return the processes of this run, or start them.

    A command that torchrun or `accelerate launch` started is one of their processes already, and `count` is ignored.
    Otherwise, if `count` is above 1, this process starts `count` copies of its own command, waits for them and exits
    with their code.

    Args:
        count: `runtime.processes`.
        device: `runtime.device`.

    Raises:
        UserError: if the device is not for several processes.
        SystemExit: when the started processes have ended.
    """
    if _is_launched():
        return _join(device)
    if count == 1:
        return ALONE
    _check_device(device, count)
    launch(count, torch.get_num_threads())


def is_main_process() -> bool:
    """Return whether this process is the main one of its run, by the environment alone."""
    return not _is_launched() or os.environ["RANK"] == "0"


def launch(count: int, threads: int) -> NoReturn:
    """Run this very command in `count` processes, and exit as the first that failed, or with 0.

    This is torch's own process context, which torchrun and `accelerate launch` use too: it hands signals on, and ends
    the other processes when one fails. The main process has the terminal; output of another one is shown if that one
    fails first.

    Args:
        count: 2 or more.
        threads: CPU threads of all processes together; each gets an equal share, at least one.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std, start_processes
    from torch.distributed.elastic.utils.distributed import get_free_port

    logging.disable(logging.CRITICAL)  # torch's own messages about processes that end
    shared = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(get_free_port()),
        "OMP_NUM_THREADS": str(max(1, threads // count)),
        THREADS: str(threads),
    }
    ranks = range(count)
    with tempfile.TemporaryDirectory() as logs:
        context = start_processes(
            "bertrio",
            sys.executable,
            args={rank: tuple(sys.orig_argv[1:]) for rank in ranks},
            envs={rank: {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in ranks},
            logs_specs=DefaultLogsSpecs(logs, redirects={rank: Std.ALL if rank else Std.NONE for rank in ranks}),
        )
        try:
            result = context.wait(period=0.1)
        except SignalException as stopped:
            with suppress(SignalException):  # a second signal stops at once
                context.close(stopped.sigval, SAVE_WITHIN)
            context.close(signal.SIGKILL)
            sys.exit(128 + stopped.sigval)
        failures = list(result.failures.values()) if result else []  # the first to fail comes first
        if not failures:
            sys.exit(0)
        rank, code = failures[0].local_rank, failures[0].exitcode
        if rank and code not in [128 + number for number in SIGNALS]:
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else "failed"
            print(f"process {rank} {how}\n{Path(context.stderrs[rank]).read_text().strip()}".strip(), file=sys.stderr)
        sys.exit(code if code >= 0 else 128 - code)


def _is_launched() -> bool:
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def _join(device: str) -> Processes:
    """Wait until all processes of the launcher are there."""
    if int(os.environ["WORLD_SIZE"]) == 1:
        return ALONE
    _check_device(device, int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    from accelerate import PartialState  # a slow import

    try:
        state = PartialState(**(GPU if _on_cuda(device) else CPU))
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"the processes of this run cannot meet ({reason}); see docs/experiments.md") from error
    atexit.register(state.destroy_process_group)
    threads = int(os.environ.get(THREADS, torch.get_num_threads()))
    place = state.device if _on_cuda(device) else torch.device("cpu")
    return Processes(state.process_index, state.num_processes, place, threads)


def _on_cuda(device: str) -> bool:
    return device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())


def _check_device(device: str, count: int) -> None:
    """Raise UserError if `count` processes of this machine cannot have this device."""
    if device == "mps" or ":" in device:
        raise UserError(f"runtime.device: found {device}, one device for {count} processes; use auto, cuda or cpu")
    if _on_cuda(device) and count > torch.cuda.device_count():
        raise UserError(
            f"{count} processes on this machine, but it has {torch.cuda.device_count()} GPUs, and each process needs "
            "one; lower runtime.processes (or the launcher's number), or set runtime.device=cpu"
        )


def _exchange(operation: str, *arguments: Any) -> Any:
    """Call one of accelerate's collective operations.

    Raises:
        UserError: if another process does not answer.
    """
    import accelerate.utils

    try:
        return getattr(accelerate.utils, operation)(*arguments)
    except RuntimeError as error:
        time.sleep(1)  # the launcher must see the process that failed before it sees this one
        raise UserError(
            "another process of this run has ended or cannot be reached; its last message says why. The last "
            "checkpoint, if there is one, is kept: the same command resumes from it"
        ) from error
