"""Ties the parts of a training stage to its checkpoints, so that a run that was stopped goes on to the same bytes.

A run that goes on builds everything as a fresh one does, from the same params, files and seeds, and then loads what
changed since: the parts' `state_dict`s and the global generators. What can be built again is in no checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertrio.console import say
from bertrio.interruption import Interruption, install
from bertrio.params import Params
from bertrio.runtime import Runtime
from bertrio.training.checkpoints import Checkpoints, identity
from bertrio.training.stateful import GlobalGenerators, Stateful

GENERATORS = "generators"  # the name of the global ones among the parts


def open_checkpoints(
    stage: str, params: Params, reads: Any, inputs: Sequence[str | Path], runtime: Runtime
) -> Checkpoints:
    """The checkpoints of a run of `stage`; a context manager, which holds their lock.

    Args:
        stage: its name, with the member's if it has one.
        params: all params, as the stage sees them.
        reads: which of them it reads, as `include` of pydantic's `model_dump`: groups, or a dict of groups and params.
        inputs: the files and folders that it reads.
        runtime: where it computes.

    Raises:
        UserError: if another process is at the same run.
    """
    settings = params.model_dump(by_alias=True, include=reads)
    return Checkpoints.open(stage, identity(stage, settings, inputs, runtime), params.checkpoints)


@contextmanager
def resumed(checkpoints: Checkpoints, runtime: Runtime, parts: Mapping[str, Stateful]) -> Iterator[Resume]:
    """Puts the parts where the last checkpoint left them, if there is one. In the block, training, a signal waits for
    the next time that `Resume` is called.

    Args:
        checkpoints: of this run.
        runtime: of the generator that dropout draws from.
        parts: all that changes, by name, built as for a fresh run.
    """
    resume = Resume(checkpoints, {**parts, GENERATORS: GlobalGenerators(runtime)})
    resume.restore()
    with install() as resume.interruption:
        yield resume


class Resume:
    """Saves the parts of a stage between its steps.

    Args:
        checkpoints: of this run.
        parts: all that changes, by name; loaded in this order.
    """

    def __init__(self, checkpoints: Checkpoints, parts: Mapping[str, Stateful]) -> None:
        self._checkpoints, self._parts = checkpoints, parts
        self.interruption = Interruption()
        self.step = 0
        self._saved: bool | None = None  # whether what the parts hold now was saved; None: nobody has tried

    def restore(self) -> None:
        """Loads the last checkpoint, if there is one."""
        state = self._checkpoints.latest()
        if state is None:
            return
        for name, part in self._parts.items():
            part.load_state_dict(state["parts"][name])
        self.step, self._saved = state["step"], True
        say(f"goes on after step {self.step}, from the checkpoint in {self._checkpoints.folder}")

    def after_step(self, step: int, in_any_case: bool = False) -> None:
        """To be called after every step; saves if it is time, or `in_any_case`.

        Raises:
            Interrupted: if a signal came; then it has saved.
        """
        self.step, self._saved = step, None
        if in_any_case or self._checkpoints.due(step):
            self._save()
        self.pause()

    def after_scoring(self) -> None:
        """To be called when an epoch is scored and its scores are kept; saves. Raises as `after_step`."""
        self._save()
        self.pause()

    def pause(self) -> None:
        """To be called now and then while no part changes, such as in scoring.

        Raises:
            Interrupted: if a signal came; then it has saved.
        """
        if self.interruption.requested is not None:
            if self._saved is None:
                self._save()
            self.interruption.stop(self.step, self._saved)

    def _save(self) -> None:
        parts = {name: part.state_dict() for name, part in self._parts.items()}
        self._saved = self._checkpoints.save(self.step, {"step": self.step, "parts": parts})
