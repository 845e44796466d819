"""Numbers of training that must be finite: looked at in time, at the price of few waits for a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from bertrio.core.errors import UserError

# Steps between two looks on a GPU: each makes the host wait, and the GPU run dry. A number that is not finite is found
# so many steps late, but before any checkpoint; on the CPU, before the update.
READ_EVERY = 16
SHOWN = 5  # row ids of a task that a message names

Rows = Mapping[str, np.ndarray]  # positions of rows, by the task that they are of


def read_every(device: torch.device) -> int:
    """Steps between two looks at the numbers on this device."""
    return 1 if device.type == "cpu" else READ_EVERY


class Watch:
    """Keeps numbers that nobody has looked at yet, with the steps and rows that they are of.

    Args:
        ids: the ids of rows of a task, from their positions.
        advice: what to try when training diverges.
    """

    def __init__(self, ids: Callable[[str, np.ndarray], Iterable[object]], advice: str) -> None:
        self._ids, self._advice = ids, advice
        self._unread: list[tuple[int, str, Rows, Tensor]] = []

    def add(self, step: int, what: str, rows: Rows, value: Tensor) -> None:
        """Takes a number, a scalar, of update `step`; `what` begins the message that names it."""
        self._unread.append((step, what, rows, value.detach()))

    def read(self) -> None:
        """Looks at all numbers since the last time; waits for the device.

        Raises:
            UserError: naming the first that is not finite, its step, tasks and rows.
        """
        if not self._unread:
            return
        values = torch.stack([value.float() for *_, value in self._unread]).tolist()
        for (step, what, rows, _), value in zip(self._unread, values):
            if not math.isfinite(value):
                raise self.error(step, what, rows, value)
        self._unread.clear()

    def error(self, step: int, what: str, rows: Rows, value: object) -> UserError:
        """The error for a number that is not finite."""
        named = "; ".join(f"{self._some(task, of)} of {task}" for task, of in rows.items())
        return UserError(
            f"{what} is {value} at step {step} (rows {named}); {self._advice}. "
            "The last checkpoint, if there is one, is from before and is kept"
        )

    def _some(self, task: str, rows: np.ndarray) -> str:
        ids: Sequence[str] = [str(of) for of in self._ids(task, rows[:SHOWN])]
        return ", ".join(ids) + (", ..." if len(rows) > SHOWN else "")
