"""What goes on beside the steps of training: the check that numbers are finite, the log, the report of epochs."""

from __future__ import annotations

import json
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertrio.core.console import say
from bertrio.core.errors import UserError
from bertrio.data.batches import Batch
from bertrio.training.trackers import Tracker

# Steps between two reads on a GPU: each makes the host wait, and the GPU run dry. A number that is not finite is found
# so many steps late, but before any checkpoint; on the CPU, before the update.
READ_EVERY = 16
SHOWN = 5  # row ids of a task that a message names
VARIABLE = "BERTRIO_PROGRESS"  # of the environment: the file to write to
STAGE = "DVC_STAGE"  # of the environment: the stage, as in finetune@base, where DVC runs it


class FiniteCheck:
    """Keep numbers of training that must be finite, and read them at the price of few waits for a GPU.

    Args:
        device: where the numbers are.
        ids: returns the ids of rows of a task, from their positions.
        advice: what to try when training diverges.
    """

    def __init__(self, device: torch.device, ids: Callable[[str, np.ndarray], Iterable[object]], advice: str) -> None:
        self._device, self._ids, self._advice = device, ids, advice
        self._every = 1 if device.type == "cpu" else READ_EVERY
        self._step, self._rows = 0, dict[str, np.ndarray]()
        self._unread: list[tuple[int, str, Mapping[str, np.ndarray], Tensor]] = []

    def begin_step(self, number: int) -> None:
        """Attribute what follows to update `number`."""
        self._step, self._rows = number, {}

    def saw(self, batches: Iterable[Batch]) -> None:
        """Name the rows of these batches in messages about the step."""
        self._rows.update({batch.task: batch.rows for batch in batches})

    def loss(self, name: str, value: Tensor, batch: Batch) -> None:
        """Keep a loss of a batch."""
        self._add(f"the loss of {name}", {batch.task: batch.rows}, value)

    def norm(self, value: Tensor) -> Tensor:
        """Keep the norm of the gradients, read all on the CPU, and return it on the device."""
        value = value.to(self._device)
        self._add("the norm of the gradients", self._rows, value)
        self.read_on_cpu()
        return value

    def gradients(self, tasks: Sequence[str], gramian: Tensor) -> None:
        """Check the tasks' gradients, whose inner products are on the CPU."""
        for task, square in zip(tasks, gramian.diagonal().tolist()):
            if not math.isfinite(square):
                self.read()  # a loss that is not finite says more
                what = f"the square of the norm of the encoder's gradient of {task}"
                raise self._error(self._step, what, {task: self._rows[task]}, square)

    def due(self, steps: int) -> bool:
        """Return whether it is time to read, after so many steps of an epoch."""
        return steps % self._every == 0

    def read_on_cpu(self) -> None:
        """Read where nobody has to wait for it: what is not finite goes no further."""
        if self._every == 1:
            self.read()

    def read(self) -> None:
        """Read all numbers since the last time; waits for the device.

        Raises:
            UserError: naming the first that is not finite, its step, tasks and rows.
        """
        if not self._unread:
            return
        values = torch.stack([value.float() for *_, value in self._unread]).tolist()
        for (step, what, rows, _), value in zip(self._unread, values):
            if not math.isfinite(value):
                raise self._error(step, what, rows, value)
        self._unread.clear()

    def _add(self, what: str, rows: Mapping[str, np.ndarray], value: Tensor) -> None:
        self._unread.append((self._step, what, rows, value.detach()))

    def _error(self, step: int, what: str, rows: Mapping[str, np.ndarray], value: object) -> UserError:
        named = "; ".join(f"{self._some(task, positions)} of {task}" for task, positions in rows.items())
        return UserError(
            f"{what} is {value} at step {step} (rows {named}); {self._advice}. "
            "The last checkpoint, if there is one, is from before and is kept"
        )

    def _some(self, task: str, rows: np.ndarray) -> str:
        return ", ".join(map(str, self._ids(task, rows[:SHOWN]))) + (", ..." if len(rows) > SHOWN else "")


@dataclass
class EpochLog:
    """One epoch of training; `lr` is that of its last update.

    `losses` are means over the batches, by task; those of regularizers, unweighted, are named `<regularizer>_<task>`.
    """

    epoch: int
    step: int
    lr: float
    losses: dict[str, float]


class Meter:
    """Measure a run: the means of losses over an epoch, rows and seconds; hand the curves of each step to a tracker.

    The curves are `lr`, `loss` (of the step's tasks together), `loss_<task>`, each regularizer's
    `loss_<regularizer>_<task>`, `grad_norm` before clipping, and `rows_per_second` since the epoch began.
    """

    def __init__(self, device: torch.device, tracker: Tracker | None) -> None:
        self._exact = device.type != "mps"  # which has no float64
        self._tracker, self._clock = tracker, time.perf_counter()
        self.rows_seen, self.seconds = 0, 0.0
        self._loss: float | Tensor = 0.0
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Forget what was summed so far."""
        self._sums: dict[str, float | Tensor] = defaultdict(float)
        self._counts: dict[str, int] = defaultdict(int)
        self._lr, self._before = 0.0, (self.rows_seen, self.seconds)

    def start_clock(self) -> None:
        """Count time from now on."""
        self._clock = time.perf_counter()

    def log(
        self, step: int, tasks: Sequence[str], logged: Mapping[str, Tensor], lr: float, norm: Tensor | None
    ) -> None:
        """Take the numbers of an update."""
        self._lr = lr
        for name, value in logged.items():
            self._sums[name] += value.double() if self._exact else value
            self._counts[name] += 1
        self._tick()
        self._loss = sum(logged[task] for task in tasks)
        if self._tracker is not None:
            norms = {} if norm is None else {"grad_norm": norm}
            curves = {f"loss_{name}": value for name, value in logged.items()}
            values = {"lr": self._lr, "loss": self._loss, **norms, **curves, "rows_per_second": self._rate()}
            self._tracker.log(step, values)

    def note(self) -> str:
        """Return the last loss and the rate in words; waits for the device."""
        loss = float(self._loss)
        self._tick()
        return f"loss {loss:.3f}  {self._rate():.0f} rows/s"

    def epoch_log(self, epoch: int, step: int) -> EpochLog:
        """Return the log of the epoch that has just ended."""
        means = {name: float(total) / self._counts[name] for name, total in self._sums.items()}
        return EpochLog(epoch, step, self._lr, means)

    def _tick(self) -> None:
        now = time.perf_counter()
        self.seconds += now - self._clock
        self._clock = now

    def _rate(self) -> float:
        rows, seconds = self._before
        return (self.rows_seen - rows) / (self.seconds - seconds)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint; sums are float64, so that a float holds them."""
        sums = {name: float(total) for name, total in self._sums.items()}
        epoch = {"sums": sums, "counts": dict(self._counts), "lr": self._lr, "before": list(self._before)}
        return {**epoch, "rows_seen": self.rows_seen, "seconds": self.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.begin_epoch()
        self._sums.update(state["sums"])
        self._counts.update(state["counts"])
        self._lr, self._before = state["lr"], tuple(state["before"])
        self.rows_seen, self.seconds = state["rows_seen"], state["seconds"]


def report_epoch(line: Mapping[str, float], last: bool) -> None:
    """Appends a line of JSON to the file that `BERTRIO_PROGRESS` names; without that, nothing.

    If the file can't be written, a message says so, and training goes on.

    Args:
        line: the epoch's line of the history, with its scores.
        last: whether training ends with this epoch.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"stage": os.environ.get(STAGE, ""), **line, "last": last}) + "\n")
    except OSError as error:
        say(f"{VARIABLE}={path}: can't be written ({error.strerror or error}); epoch {line['epoch']} is not reported")
