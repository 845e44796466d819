"""What goes on beside the steps of training: the check that numbers are finite, the log, and curves for trackers.

Curves give nothing back, so that training is the same with them and without. Checkpoints hold what the table needs to
go on; other tools see a run that resumes as a new one, and are imported only where `tracking.to` names them.
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
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from bertrio.config import Params
from bertrio.config.loading import MEMBER_GROUPS, member_params
from bertrio.core.errors import UserError
from bertrio.core.files import write_csv
from bertrio.data.batches import Batch
from bertrio.training.checkpoints import Part

# Steps between two reads on a GPU: each makes the host wait, and the GPU run dry. A number that is not finite is found
# so many steps late, but before any checkpoint; on the CPU, before the update.
READ_EVERY = 16
SPEED = "rows_per_second"  # differs from run to run: for watching, not for the table, which is a result
LOGS = "logs"  # the folder of other trackers than the table; git ignores it
SHOWN = 5  # row ids of a task that a message names
VARIABLE = "BERTRIO_PROGRESS"  # of the environment: the file to write to
STAGE = "DVC_STAGE"  # of the environment: the stage, as in finetune@base, where DVC runs it
TOOLS = ("tensorboard", "wandb", "dvclive")  # called as their packages are


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
        self._unread: list[tuple[int, str, dict[str, np.ndarray], Tensor]] = []

    def begin_step(self, number: int) -> None:
        """Attribute what follows to update `number`."""
        self._step, self._rows = number, {}

    def add_rows(self, batches: Iterable[Batch]) -> None:
        """Name the rows of these batches in messages about the step."""
        self._rows.update({batch.task: batch.rows for batch in batches})

    def add(self, name: str, value: Tensor, tasks: Sequence[str] | None = None) -> None:
        """Keep a number of the step that the rows of `tasks` make, or those of the whole step."""
        rows = {task: self._rows[task] for task in (self._rows if tasks is None else tasks)}
        self._unread.append((self._step, name, rows, value.detach().to(self._device)))

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
        for (step, name, rows, _), value in zip(self._unread, values):
            if not math.isfinite(value):
                shown = {task: map(str, self._ids(task, some[:SHOWN])) for task, some in rows.items()}
                named = "; ".join(f"{', '.join(ids)}, ... of {task}" for task, ids in shown.items())
                raise UserError(
                    f"{name} is {value} at step {step} (rows {named}); {self._advice}. "
                    "The last checkpoint, if there is one, is from before and is kept"
                )
        self._unread.clear()


class Averages(Part):
    """The mean of each named value over the steps that had it.

    Tensors are summed where they are, so that a GPU need not be waited for; in float64, which Apple's GPUs lack.
    """

    saved = ("_sums", "_counts")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget what was summed so far."""
        self._sums: dict[str, Any] = defaultdict(float)
        self._counts: dict[str, int] = defaultdict(int)

    def add(self, values: Mapping[str, float | Tensor]) -> None:
        """Take the values of a step."""
        for name, value in values.items():
            wide = isinstance(value, Tensor) and value.device.type != "mps"
            self._sums[name] = self._sums[name] + (value.double() if wide else value)  # type: ignore[union-attr]
            self._counts[name] += 1

    def means(self) -> dict[str, float]:
        """Return the means; waits for the device."""
        return {name: float(total) / self._counts[name] for name, total in self._sums.items()}


@dataclass
class EpochLog:
    """One epoch of training; `lr` is that of its last update.

    `losses` are means over the batches, by task; those of regularizers, unweighted, are named `<regularizer>_<task>`.
    """

    epoch: int
    step: int
    lr: float
    losses: dict[str, float]


class Meter(Part):
    """Measure a run: the means of losses over an epoch, rows and seconds; hand the numbers of each step to its curves.

    The curves are `lr`, `loss` (of the step's tasks together), `loss_<task>`, each regularizer's
    `loss_<regularizer>_<task>`, `grad_norm` before clipping, and `rows_per_second` since the run began.
    """

    saved = ("_losses", "_lr", "rows_seen", "seconds")

    def __init__(self, curves: Curves | None) -> None:
        self._curves, self._clock = curves, time.perf_counter()
        self.rows_seen, self.seconds = 0, 0.0
        self._loss: float | Tensor = 0.0
        self._lr, self._losses = 0.0, Averages()

    def begin_epoch(self) -> None:
        """Forget the losses of the epoch before."""
        self._losses.clear()

    def start_clock(self) -> None:
        """Count time from now on."""
        self._clock = time.perf_counter()

    def log(
        self, step: int, tasks: Sequence[str], logged: Mapping[str, Tensor], lr: float, norm: Tensor | None
    ) -> None:
        """Take the numbers of an update."""
        self._lr, self._loss = lr, sum(logged[task] for task in tasks)
        self._losses.add(logged)
        self._tick()
        if self._curves is not None:
            norms = {} if norm is None else {"grad_norm": norm}
            losses = {f"loss_{name}": value for name, value in logged.items()}
            self._curves.log(step, {"lr": lr, "loss": self._loss, **norms, **losses, SPEED: self._speed()})

    def note(self) -> str:
        """Return the last loss and the rate in words; waits for the device."""
        loss = float(self._loss)
        self._tick()
        return f"loss {loss:.3f}  {self._speed():.0f} rows/s"

    def epoch_log(self, epoch: int, step: int) -> EpochLog:
        """Return the log of the epoch that has just ended."""
        return EpochLog(epoch, step, self._lr, self._losses.means())

    def _tick(self) -> None:
        now = time.perf_counter()
        self.seconds += now - self._clock
        self._clock = now

    def _speed(self) -> float:
        return self.rows_seen / self.seconds


class Curves(Part):
    """Hand on, for every `every` steps and at the end, the mean of each number over the steps that had it.

    A mean, not every k-th value: a schedule of one task a step would show the same task each time. The means go to
    other tools, and into a CSV file with a row a point and a column a number, empty where a point has none. The same
    run gives the same bytes: `rows_per_second` is left out, and stands in metrics/timing.

    Args:
        path: the CSV file, which is written at the end.
        every: steps of a mean.
        table: whether the file has rows; it is written in any case, as an out of the stage.
        tools: accelerate's trackers, started.
    """

    saved = ("_step", "_steps", "_averages", "_rows")

    def __init__(self, path: str | Path, every: int, table: bool = True, tools: Sequence[Any] = ()) -> None:
        self._path, self._every, self._table, self._tools = path, every, table, tools
        self._step, self._steps, self._averages = 0, 0, Averages()
        self._rows: list[dict[str, float]] = []

    def log(self, step: int, values: Mapping[str, float | Tensor]) -> None:
        """Take the numbers of update `step`, from 1; names may differ from step to step, as tasks do."""
        self._step, self._steps = step, self._steps + 1
        self._averages.add(values)
        if self._steps == self._every:
            self._hand_on()

    def close(self) -> None:
        """Write what is still to be written."""
        if self._steps:
            self._hand_on()
        for tool in self._tools:
            tool.finish()
        columns = dict.fromkeys(["step", *(name for row in self._rows for name in row)])
        write_csv(pd.DataFrame(self._rows, columns=list(columns)), self._path)

    def _hand_on(self) -> None:
        means = self._averages.means()
        for tool in self._tools:
            tool.log(means, step=self._step)
        if self._table:
            self._rows.append({"step": self._step, **{name: of for name, of in means.items() if name != SPEED}})
        self._averages.clear()
        self._steps = 0


def start_tool(kind: str, folder: Path, name: str, settings: Mapping[str, object]) -> Any:
    """Return accelerate's tracker of a tool, started.

    TensorBoard writes to `folder`/tensorboard/<name>-<time>, so that runs can be laid over each other. Weights & Biases
    starts a run in project `bertrio` unless WANDB_PROJECT says otherwise, its own files in `folder`; WANDB_MODE=offline
    keeps it on this machine. DVCLive writes to `folder`/dvclive/<name>, anew for every run, without experiments and
    dvc.yaml of its own.
    """
    from accelerate.tracking import DVCLiveTracker, TensorBoardTracker, WandBTracker

    folder.mkdir(parents=True, exist_ok=True)
    try:
        if kind == "tensorboard":
            tool = TensorBoardTracker(f"{name}-{datetime.now():%Y%m%d-%H%M%S-%f}", folder / "tensorboard")
        elif kind == "wandb":
            project = os.environ.get("WANDB_PROJECT", "bertrio")
            tool = WandBTracker(project, name=name, dir=str(folder), config=dict(settings))
        else:
            live = folder / "dvclive" / name
            tool = DVCLiveTracker(dir=str(live), dvcyaml=None, save_dvc_exp=False, report=None)
        tool.start()
    except Exception as error:  # each package has its own
        raise UserError(f"tracking.to: {kind} can't start a run ({error})") from error
    return tool


def need_all_trackers(params: Params) -> None:
    """Check that what `tracking.to` names is installed, for every member of the ensemble.

    Raises:
        UserError: with the command that installs what is not.
    """
    for member in params.ensemble.members:
        names = member_params(params, member).tracking.to
        if missing := [name for name in names if name in TOOLS and find_spec(name) is None]:
            raise UserError(
                f"tracking.to of member {member}: {', '.join(missing)} is not installed; install it with: "
                f"pip install 'bertrio[{','.join(missing)}]', or take it out there"
            )


def build_curves(params: Params, table: str | Path) -> Curves:
    """Return the curves that `tracking` asks for.

    Args:
        params: as the member sees them; Weights & Biases gets what fine-tuning reads of it as a run's settings.
        table: the CSV file. Its name without ending is the run's name elsewhere.

    Raises:
        UserError: if a tool can't start a run.
    """
    options = params.tracking
    settings = params.model_dump(by_alias=True, include=set(MEMBER_GROUPS))
    tools = [start_tool(kind, Path(LOGS), Path(table).stem, settings) for kind in options.to if kind in TOOLS]
    return Curves(table, options.every, "table" in options.to, tools)


def report_epoch(line: Mapping[str, float], last: bool) -> None:
    """Append a line of JSON to the file that `BERTRIO_PROGRESS` names; without that, nothing.

    Args:
        line: the epoch's line of the history, with its scores.
        last: whether training ends with this epoch.
    """
    if path := os.environ.get(VARIABLE):
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"stage": os.environ.get(STAGE, ""), **line, "last": last}) + "\n")
