"""Curves of training, step by step: a plain table that DVC plots, and what other tools read.

A tracker is handed numbers (`log`, `close`) and gives nothing back, so that training is the same with it and without.
What the table needs to go on is in checkpoints; other tools see a run that goes on as a new one. Their packages are
imported only where `tracking.to` names them.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bertrio.config import Params
from bertrio.config.loading import MEMBER_GROUPS, member_params
from bertrio.core.errors import UserError
from bertrio.core.files import write_csv

if TYPE_CHECKING:
    from torch import Tensor

MEASURED = "rows_per_second"  # differs from run to run: for watching, not for the table, which is a result


class Tracker(Protocol):
    """Takes the numbers of training as they come."""

    def log(self, step: int, values: Mapping[str, float | Tensor]) -> None:
        """Takes the values of update `step`, from 1; names may differ from step to step, as tasks do."""

    def close(self) -> None:
        """Writes what is still to be written; nothing is logged afterwards."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs of it."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave."""


class Means:
    """Hands on means: to each of `trackers`, for every `every` steps, the mean of each value over the steps that had
    it, and at the end those of the steps that are left.

    A mean, not every k-th value: a schedule of one task a step would show the same task each time.
    Tensors are summed where they are and read once in `every` steps, so that a GPU need not be waited for.
    """

    def __init__(self, trackers: Sequence[Tracker], every: int) -> None:
        self.trackers, self.every, self.step = trackers, every, 0
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
        self.path, self.rows = path, []

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.rows.append({"step": step, **{name: value for name, value in values.items() if name != MEASURED}})

    def close(self) -> None:
        import pandas as pd

        columns = dict.fromkeys(name for row in ({"step": 0}, *self.rows) for name in row)
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


OTHERS: dict[str, Callable[[Path, str, Mapping[str, object]], Tracker]] = {  # called as their packages are
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
