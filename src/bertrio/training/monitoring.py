"""Monitoring of training: the check for finite values, the epoch log, and curves for trackers.

Curves do not affect training. Checkpoints hold the state of the CSV table. Other tools see a resumed run as a new one;
they are imported only if `tracking.to` names them.
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
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from bertrio.config import Params
from bertrio.config.loading import MEMBER_GROUPS, member_params
from bertrio.config.reading import flatten
from bertrio.core.errors import UserError, need_packages
from bertrio.core.files import write_csv
from bertrio.data.batches import Batch
from bertrio.training.checkpoints import Stateful

# Steps between two reads on a GPU, since each read makes the host wait and the GPU idle. A value that is not finite is
# detected up to this many steps late, but before any checkpoint; on the CPU, before the update.
READ_EVERY = 16
SPEED = "rows_per_second"  # differs from run to run, so it is left out of the table, which is a result
LOGS = "logs"  # folder of trackers other than the table; git ignores it
SHOWN = 5  # row ids per task in an error message
PROGRESS = "BERTRIO_PROGRESS"  # environment variable: the file to write to
STAGE = "DVC_STAGE"  # environment variable that DVC sets: the stage, such as finetune@base
TOOLS = ("tensorboard", "wandb", "dvclive", "mlflow")  # names of their packages


def read_every(device: torch.device) -> int:
    """Return the number of steps between two reads of values on this device."""
    return 1 if device.type == "cpu" else READ_EVERY


class FiniteCheck:
    """Check that values of training are finite, with few synchronisations of a GPU.

    Args:
        device: device of the values.
        ids: function `(task, positions) -> ids` of rows, for error messages.
        advice: what to try when training diverges, for error messages.
    """

    def __init__(self, device: torch.device, ids: Callable[[str, np.ndarray], Iterable[object]], advice: str) -> None:
        self._device, self._ids, self._advice = device, ids, advice
        self._every = read_every(device)
        self._step = 0
        self._rows: dict[str, np.ndarray] = {}
        self._unread: list[tuple[int, str, dict[str, np.ndarray], Tensor]] = []

    def begin_step(self, number: int) -> None:
        """Begin update `number`, whose rows and values follow."""
        self._step, self._rows = number, {}

    def add_rows(self, batches: Iterable[Batch]) -> None:
        """Add rows of the step, for error messages."""
        self._rows.update({batch.task: batch.rows for batch in batches})

    def add(self, name: str, value: Tensor, tasks: Sequence[str] | None = None) -> None:
        """Add a value of the step, computed from the rows of `tasks`, or from all rows if None."""
        rows = {task: self._rows[task] for task in (self._rows if tasks is None else tasks)}
        self._unread.append((self._step, name, rows, value.detach().to(self._device)))

    def due(self, steps: int) -> bool:
        """Return whether values should be read after this many steps of an epoch."""
        return steps % self._every == 0

    def read_on_cpu(self) -> None:
        """Read on the CPU, where it costs no wait, so that no later computation uses a value that is not finite."""
        if self._every == 1:
            self.read()

    def read(self) -> None:
        """Read and check all values since the last read; waits for the device.

        Raises:
            UserError: if a value is not finite; names the first one with its step, tasks and rows.
        """
        if not self._unread:
            return
        values = torch.stack([value.float() for *_, value in self._unread]).tolist()
        for (step, name, rows, _), value in zip(self._unread, values):
            if not math.isfinite(value):
                shown = {task: map(str, self._ids(task, positions[:SHOWN])) for task, positions in rows.items()}
                named = "; ".join(f"{', '.join(ids)}, ... of {task}" for task, ids in shown.items())
                raise UserError(
                    f"{name} is {value} at step {step} (rows {named}); {self._advice}. "
                    "The last checkpoint, if there is one, is from before and is kept"
                )
        self._unread.clear()


class Averages(Stateful):
    """Means of named values, each over the steps that had it.

    Tensors are summed on their own device, so that adding does not wait for a GPU; in float64, except on Apple's GPUs,
    which lack it.
    """

    saved = ("_sums", "_counts")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Reset all sums."""
        self._sums: dict[str, Any] = defaultdict(float)
        self._counts: dict[str, int] = defaultdict(int)

    def add(self, values: Mapping[str, float | Tensor]) -> None:
        """Add the values of a step."""
        for name, value in values.items():
            term = value.double() if isinstance(value, Tensor) and value.device.type != "mps" else value
            self._sums[name] = self._sums[name] + term
            self._counts[name] += 1

    def means(self) -> dict[str, float]:
        """Return the means; waits for the device."""
        return {name: float(total) / self._counts[name] for name, total in self._sums.items()}


@dataclass
class EpochLog:
    """Log of one epoch of training.

    Attributes:
        epoch: number of the epoch, from 1.
        step: number of its last update.
        lr: learning rate of its last update.
        losses: mean loss over the epoch's batches with labels, by task, and unweighted regularizers as
            `<regularizer>_<task>`.
    """

    epoch: int
    step: int
    lr: float
    losses: dict[str, float]


class Meter(Stateful):
    """Count rows and seconds of a run, average losses over each epoch, and pass the values of each step to the curves.

    The curves are `lr`, `loss` (of the step's tasks together), `loss_<task>`, each regularizer's
    `loss_<regularizer>_<task>`, `grad_norm` before clipping, and `rows_per_second` since the run began.

    Attributes:
        losses: means over the epoch so far, as in `EpochLog`.
        lr: learning rate of the last update.
        rows_seen, seconds: rows trained on, and the time for it, since the run began.
    """

    saved = ("losses", "lr", "rows_seen", "seconds")

    def __init__(self, curves: Curves | None) -> None:
        self._curves, self._clock = curves, time.perf_counter()
        self.rows_seen, self.seconds = 0, 0.0
        self._loss: float | Tensor = 0.0
        self.lr, self.losses = 0.0, Averages()

    def start_clock(self) -> None:
        """Restart the clock, so that the time since the last reading is not counted."""
        self._clock = time.perf_counter()

    def log(self, step: int, tasks: Sequence[str], logged: Mapping[str, Tensor], lr: float, norm: Tensor) -> None:
        """Log the values of an update."""
        self.lr, self._loss = lr, sum(logged[task] for task in tasks if task in logged)
        self.losses.add(logged)
        self._tick()
        if self._curves is not None:
            losses = {f"loss_{name}": value for name, value in logged.items()}
            self._curves.log(step, {"lr": lr, "loss": self._loss, "grad_norm": norm, **losses, SPEED: self._speed()})

    def note(self) -> str:
        """Return the last loss and the speed as text; waits for the device."""
        loss = float(self._loss)
        self._tick()
        return f"loss {loss:.3f}  {self._speed():.0f} rows/s"

    def _tick(self) -> None:
        now = time.perf_counter()
        self.seconds += now - self._clock
        self._clock = now

    def _speed(self) -> float:
        return self.rows_seen / self.seconds


class Curves(Stateful):
    """Training curves: the mean of each value over every `every` steps, in a CSV file and in tracking tools.

    Means, not every k-th value: with one task per step, every k-th step may always have the same task. The CSV file has
    one row per point and one column per value, empty if the point lacks that value. The same run gives the same bytes,
    so `rows_per_second` is left out; metrics/timing has it.

    Args:
        path: the CSV file, written by `close`.
        every: number of steps in a mean.
        table: whether the file gets rows; without them it has a header alone, as the stage must write its out.
        tools: accelerate's trackers, started.
    """

    saved = ("_step", "_averages", "_rows")

    def __init__(self, path: str | Path, every: int, table: bool = True, tools: Sequence[Any] = ()) -> None:
        self._path, self._every, self._table, self._tools = path, every, table, tools
        self._step, self._averages = 0, Averages()
        self._rows: list[dict[str, float]] = []

    def log(self, step: int, values: Mapping[str, float | Tensor]) -> None:
        """Add the values of update `step`, from 1; their names may differ from step to step, as tasks do."""
        self._step = step
        self._averages.add(values)
        if step % self._every == 0:
            self._flush()

    def close(self) -> None:
        """Write the last point, finish the tools and write the CSV file."""
        if self._step % self._every:
            self._flush()
        for tool in self._tools:
            tool.finish()
        write_csv(pd.DataFrame(self._rows, columns=None if self._rows else ["step"]), self._path)

    def _flush(self) -> None:
        means = self._averages.means()
        for tool in self._tools:
            tool.log(means, step=self._step)
        if self._table:
            self._rows.append({"step": self._step, **{name: mean for name, mean in means.items() if name != SPEED}})
        self._averages.clear()


def start_tool(kind: str, folder: Path, name: str, settings: Mapping[str, object]) -> Any:
    """Start accelerate's tracker of a tool.

    TensorBoard writes to `folder`/tensorboard/<name>-<time>, so that runs can be compared. Weights & Biases starts a
    run in the project WANDB_PROJECT, by default `bertrio`, and puts its files in `folder`; WANDB_MODE=offline keeps
    them on this machine. DVCLive writes to `folder`/dvclive/<name>, which each run replaces, without experiments and
    dvc.yaml of its own. MLflow starts a run in the experiment MLFLOW_EXPERIMENT_NAME, by default `bertrio`, at
    MLFLOW_TRACKING_URI, by default the database `folder`/mlflow.db.
    """
    from accelerate.tracking import DVCLiveTracker, MLflowTracker, TensorBoardTracker, WandBTracker

    folder.mkdir(parents=True, exist_ok=True)
    try:
        if kind == "tensorboard":
            tool = TensorBoardTracker(f"{name}-{datetime.now():%Y%m%d-%H%M%S-%f}", folder / "tensorboard")
        elif kind == "wandb":
            project = os.environ.get("WANDB_PROJECT", "bertrio")
            tool = WandBTracker(project, name=name, dir=str(folder), config=dict(settings))
        elif kind == "mlflow":
            os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{folder.resolve()}/mlflow.db")
            tool = MLflowTracker("bertrio", str(folder.resolve() / "mlflow"), run_name=name)
        else:
            live = folder / "dvclive" / name
            tool = DVCLiveTracker(dir=str(live), dvcyaml=None, save_dvc_exp=False, report=None)
        tool.start()
        if kind == "mlflow":
            tool.store_init_configuration(flatten(settings))
    except Exception as error:  # each package has its own
        raise UserError(f"tracking.to: {kind} can't start a run ({error})") from error
    return tool


def need_all_trackers(params: Params) -> None:
    """Check that the tools in `tracking.to` are installed, for every member of the ensemble.

    Raises:
        UserError: if one is missing; the message has the command that installs it.
    """
    for member in params.ensemble.members:
        for name in member_params(params, member).tracking.to:
            if name in TOOLS:
                need_packages(f"tracking.to of member {member}", [name], name)


def build_curves(params: Params, table: str | Path) -> Curves:
    """Return the curves set in `tracking`.

    Args:
        params: the member's params; Weights & Biases gets those that fine-tuning reads as the run's settings.
        table: the CSV file. Its name without the suffix is the run's name in other tools.

    Raises:
        UserError: if a tool can't start a run.
    """
    options = params.tracking
    settings = params.model_dump(by_alias=True, include=set(MEMBER_GROUPS))
    tools = [start_tool(kind, Path(LOGS), Path(table).stem, settings) for kind in options.to if kind in TOOLS]
    return Curves(table, options.every, "table" in options.to, tools)


def report_epoch(line: Mapping[str, float], last: bool) -> None:
    """Append a line of JSON to the file named by `BERTRIO_PROGRESS`; do nothing if that is not set.

    Args:
        line: the epoch's line of the history, with its scores.
        last: whether training ends with this epoch.
    """
    if path := os.environ.get(PROGRESS):
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"stage": os.environ.get(STAGE, ""), **line, "last": last}) + "\n")
