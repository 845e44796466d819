"""Data-parallel training: launching processes and communicating between them.

All processes hold the same weights and state. Each process computes a shard of every batch; gradients are summed, so
every process makes the same update. Communication uses accelerate, over gloo on CPUs and NCCL on GPUs. In a single
process every method here returns its input.
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

SAVE_WITHIN = 600  # seconds for processes to end their step and save a checkpoint after a signal
STORE = "BERTRIO_STORE"  # environment variable: the file in which processes on this machine find each other
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
THREADS = "BERTRIO_THREADS"  # environment variable: CPU threads of all processes on this machine together
CPU = {"cpu": True, "backend": "gloo"}
GPU = {"backend": "cpu:gloo,cuda:nccl"}  # gloo for tensors in CPU memory


@dataclass(frozen=True)
class Processes:
    """This process and the number of processes that share the run.

    Attributes:
        rank: index of this process; only rank 0, the main process, writes files and prints.
        world_size: number of processes on all machines.
        device: device of this process; None for a single process, which chooses its own.
        threads: CPU threads of all processes on this machine together, whatever their number; None for a single
            process.
    """

    rank: int = 0
    world_size: int = 1
    device: torch.device | None = None
    threads: int | None = None

    @property
    def alone(self) -> bool:
        """True if this is the only process."""
        return self.world_size == 1

    @property
    def is_main(self) -> bool:
        """True if this process writes files."""
        return self.rank == 0

    def all_reduce_sum(self, values: Any) -> Any:
        """Return the sum over all processes of a tensor, or of each tensor in a dict with the same keys everywhere."""
        return values if self.alone else _exchange("reduce", values, "sum")

    def all_reduce_max(self, number: int) -> int:
        """Return the largest `number` of all processes."""
        return number if self.alone else int(_exchange("reduce", torch.tensor(number), "max"))

    def all_reduce_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum each gradient over all processes; the result has the same bits in each of them.

        The same parameters must have gradients in all processes. Sparse gradients stay sparse.
        """
        if self.alone:
            return
        for parameter in parameters:
            if parameter.grad is not None:
                dense = not parameter.grad.is_sparse
                parameter.grad = self.all_reduce_sum(parameter.grad.contiguous() if dense else parameter.grad)

    def all_gather_rows(self, rows: Tensor, positions: Tensor, count: int) -> Tensor:
        """Return the rows of all processes, [count, ...]; this process holds `rows` [B, ...] at `positions` [B]."""
        gathered = rows.new_zeros(count, *rows.shape[1:])
        gathered[positions] = rows
        return self.all_reduce_sum(gathered)

    def broadcast(self, value: Any) -> Any:
        """Return the value of the main process in every process; tensors arrive on the CPU."""
        return value if self.alone else _exchange("broadcast_object_list", [value if self.is_main else None])[0]

    def check_equal(self, tensors: Iterable[Tensor], name: str = "weights") -> None:
        """Check that the tensors have the same bits in all processes.

        Raises:
            UserError: in all processes, if they differ.
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
        """Silence the console in all processes but the main one; errors are still printed."""
        console.quiet = not self.is_main
        try:
            yield
        finally:
            console.quiet = False


ALONE = Processes()


def init_distributed(count: int, device: str) -> Processes:
    """Join the processes of this run, or launch them.

    Under torchrun or `accelerate launch` this process joins the others and `count` is ignored. Otherwise, if `count`
    is above 1, this process launches `count` copies of its own command, waits for them and exits with their code.

    Args:
        count: `runtime.processes`.
        device: `runtime.device`.

    Raises:
        UserError: if the device does not allow several processes.
        SystemExit: when the launched processes have ended.
    """
    if _is_launched():
        return _join(device)
    if count == 1:
        return ALONE
    _check_device(device, count)
    launch(count, torch.get_num_threads())


def is_main_process() -> bool:
    """Return whether this process is the main one, judged by environment variables alone."""
    return not _is_launched() or os.environ["RANK"] == "0"


def launch(count: int, threads: int) -> NoReturn:
    """Run this command in `count` processes; exit with the code of the first that failed, or with 0.

    Uses torch's process context, as torchrun and `accelerate launch` do: it forwards signals and ends the other
    processes when one fails. They listen on the loopback interface, unless GLOO_SOCKET_IFNAME (or NCCL_SOCKET_IFNAME)
    names another. The main process writes to the terminal; the output of another process is shown only if it fails
    first.

    Args:
        count: 2 or more.
        threads: CPU threads of all processes together; each gets an equal share, at least one.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std, start_processes

    logging.disable(logging.CRITICAL)  # torch's messages about ended processes
    loopback = {name: os.environ.get(name, LOOPBACK) for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")}
    shared = {
        **loopback,
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "OMP_NUM_THREADS": str(max(1, threads // count)),
        THREADS: str(threads),
    }
    ranks = range(count)
    with tempfile.TemporaryDirectory() as logs:
        shared[STORE] = f"{logs}/store"
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
        failures = list(result.failures.values()) if result else []  # in the order of failure
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
    """Wait until all launched processes have joined."""
    if int(os.environ["WORLD_SIZE"]) == 1:
        return ALONE
    _check_device(device, int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    from accelerate import PartialState  # a slow import

    options: dict[str, Any] = GPU if _on_cuda(device) else CPU
    if store := os.environ.get(STORE):  # torch's default store listens on all interfaces
        ranks = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
        options = {**options, **ranks, "init_method": f"file://{store}"}
    try:
        state = PartialState(**options)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"the processes of this run cannot meet ({reason}); see docs/experiments.md") from error
    atexit.register(state.destroy_process_group)
    threads = int(os.environ.get(THREADS, torch.get_num_threads()))
    own_device = state.device if _on_cuda(device) else torch.device("cpu")
    return Processes(state.process_index, state.num_processes, own_device, threads)


def _on_cuda(device: str) -> bool:
    return device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())


def _check_device(device: str, count: int) -> None:
    """Raise a UserError if `count` processes on this machine cannot use the device."""
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
