"""What goes on beside the steps of training: the check that numbers are finite, the log, and the trackers of curves.

A tracker is handed numbers (`log`, `close`) and gives nothing back, so that training is the same with it and without.
Checkpoints hold what the table needs to go on; other tools see a run that goes on as a new one. Their packages are
imported only where `tracking.to` names them.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from bertrio.config import Params
from bertrio.config.loading import MEMBER_GROUPS, member_params
from bertrio.core.console import say
from bertrio.core.errors import UserError
from bertrio.core.files import write_csv
from bertrio.data.batches import Batch

# Steps between two reads on a GPU: each makes the host wait, and the GPU run dry. A number that is not finite is found
# so many steps late, but before any checkpoint; on the CPU, before the update.
READ_EVERY = 16
MEASURED = "rows_per_second"  # differs from run to run: for watching, not for the table, which is a result
SHOWN = 5  # row ids of a task that a message names
VARIABLE = "BERTRIO_PROGRESS"  # of the environment: the file to write to
STAGE = "DVC_STAGE"  # of the environment: the stage, as in finetune@base, where DVC runs it


def read_every(device: torch.device) -> int:
    """Return the number of steps between two reads of numbers on this device."""
    return 1 if device.type == "cpu" else READ_EVERY


class FiniteCheck:
    """Keep numbers of training that must be finite, and read them at the price of few waits for a GPU.

    Args:
        device: where the numbers are.
        ids: returns the ids of rows of a task, from their positions.
        advice: what to try when training diverges.
    """

    def __init__(self, device: torch.device, ids: Callable[[str, np.ndarray], Iterable[object]], advice: str) -> None:
        self._device, self._ids, self._advice = device, ids, advice
        self._every = read_every(device)
        self._step = 0
        self._rows: dict[str, np.ndarray] = {}
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


class Sink(Protocol):
    """Takes the numbers of training as they come."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Takes the values of update `step`, from 1; names may differ from step to step, as tasks do."""

    def close(self) -> None:
        """Writes what is still to be written; nothing is logged afterwards."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs of it."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave."""


class Tracker(Sink, Protocol):
    """A sink that takes tensors as well."""

    def log(self, step: int, values: Mapping[str, float | Tensor]) -> None: ...


class Means:
    """Hands on means: to each of `trackers`, for every `every` steps, the mean of each value over the steps that had
    it, and at the end those of the steps that are left.

    A mean, not every k-th value: a schedule of one task a step would show the same task each time.
    Tensors are summed where they are and read once in `every` steps, so that a GPU need not be waited for.
    """

    def __init__(self, trackers: Sequence[Sink], every: int) -> None:
        self.trackers, self.every, self.step, self._steps = trackers, every, 0, 0
        self._clear()

    def log(self, step: int, values: Mapping[str, float | Tensor]) -> None:
        self.step, self._steps = step, self._steps + 1
        for name, value in values.items():
            self._sums[name] += value
            self._counts[name] += 1
        if self._steps == self.every:
            self._hand_on()

    def close(self) -> None:
        if self._steps:
            self._hand_on()
        for tracker in self.trackers:
            tracker.close()

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "steps": self._steps,
            "sums": {name: float(total) for name, total in self._sums.items()},  # exact: a float holds what these do
            "counts": dict(self._counts),
            "trackers": [tracker.state_dict() for tracker in self.trackers],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self._steps = state["step"], state["steps"]
        self._sums.update(state["sums"])
        self._counts.update(state["counts"])
        for tracker, of in zip(self.trackers, state["trackers"], strict=True):
            tracker.load_state_dict(of)

    def _hand_on(self) -> None:
        means = {name: float(total) / self._counts[name] for name, total in self._sums.items()}
        for tracker in self.trackers:
            tracker.log(self.step, means)
        self._clear()

    def _clear(self) -> None:
        self._sums: dict[str, float | Tensor] = defaultdict(float)
        self._counts: dict[str, int] = defaultdict(int)
        self._steps = 0


class Table:
    """A CSV file with a row a step and a column a value, empty where a step had none; written at the end.

    The same run gives the same bytes: `rows_per_second` is left out, and stands in metrics/timing.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = path
        self.rows: list[dict[str, float]] = []

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.rows.append({"step": step, **{name: value for name, value in values.items() if name != MEASURED}})

    def close(self) -> None:
        import pandas as pd

        rows: list[dict[str, float]] = [{"step": 0}, *self.rows]
        columns = dict.fromkeys(name for row in rows for name in row)
        write_csv(pd.DataFrame(self.rows, columns=list(columns)), self.path)

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows = state["rows"]


class Tool:
    """Another tool, which keeps what it is told by itself: nothing of it goes in checkpoints."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Has nothing to take over."""


class TensorBoard(Tool):
    """Event files in `folder`/tensorboard/<name>-<time>: a folder a run, so that runs can be laid over each other."""

    def __init__(self, folder: Path, name: str, settings: Mapping[str, object]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        now = datetime.now().strftime("%Y%m%d-%H%M%S-%f")
        self._writer = SummaryWriter(str(folder / "tensorboard" / f"{name}-{now}"))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class Wandb(Tool):
    """A run of Weights & Biases, project `bertrio` unless WANDB_PROJECT says otherwise, its own files in `folder`.

    WANDB_MODE=offline keeps it on this machine.
    """

    def __init__(self, folder: Path, name: str, settings: Mapping[str, object]) -> None:
        import wandb

        folder.mkdir(parents=True, exist_ok=True)
        project = os.environ.get("WANDB_PROJECT", "bertrio")
        try:
            self._run = wandb.init(project=project, name=name, dir=str(folder), config=dict(settings))
        except wandb.Error as error:
            raise UserError(
                f"tracking.to: wandb can't start a run ({error}); log in with wandb login, or set WANDB_MODE=offline"
            ) from error

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class Live(Tool):
    """DVCLive's tables and summary in `folder`/dvclive/<name>, anew for every run. It makes no experiments of its own
    and writes no dvc.yaml: the pipeline has both.
    """

    def __init__(self, folder: Path, name: str, settings: Mapping[str, object]) -> None:
        from dvclive import Live as DvcLive

        place = folder / "dvclive" / name
        self._live = DvcLive(dir=str(place), dvcyaml=None, save_dvc_exp=False, report=None)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._live.step = step
        for name, value in values.items():
            self._live.log_metric(name, value)

    def close(self) -> None:
        self._live.end()


OTHERS: dict[str, Callable[[Path, str, Mapping[str, object]], Sink]] = {  # called as their packages are
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "dvclive": Live,
}


def need_all_trackers(params: Params) -> None:
    """Does what `need_trackers` does for every member of the ensemble."""
    for name, overrides in params.ensemble.members.items():
        own = f"ensemble.members.{name}." if "to" in (overrides or {}).get("tracking", {}) else ""
        need_trackers(member_params(params, name).tracking.to, f"{own}tracking.to")


def need_trackers(names: Iterable[str], param: str = "tracking.to") -> None:
    """Checks that what `tracking.to`, or the param of one member, names is installed.

    Raises:
        UserError: with the command that installs what is not.
    """
    missing = [name for name in names if name in OTHERS and find_spec(name) is None]
    if missing:
        raise UserError(
            f"{param}: {', '.join(missing)} is not installed; install it with: "
            f"pip install 'bertrio[{','.join(missing)}]', or take it out there"
        )


def build_tracker(params: Params, table: str | Path) -> Tracker:
    """The trackers that `tracking` asks for, as one.

    Args:
        params: as the member sees them; other tools get what fine-tuning reads of it as a run's settings.
        table: the CSV file. It is written in any case, without rows if `tracking.to` does not name `table`: it is an
            out of the stage. Its name without ending is the run's name elsewhere.

    Raises:
        UserError: if a package is missing, or a service does not take the run.
    """
    options = params.tracking
    need_trackers(options.to)
    settings = params.model_dump(by_alias=True, include=set(MEMBER_GROUPS))
    folder, name = Path(options.folder), Path(table).stem
    others = [OTHERS[kind](folder, name, settings) for kind in options.to if kind in OTHERS]
    kept = Table(table)
    if "table" in options.to:
        return Means([kept, *others], options.every)
    kept.close()
    return Means(others, options.every)


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
