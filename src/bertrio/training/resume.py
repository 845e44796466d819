"""Tie the parts of a training stage to its checkpoints, so that a run that was stopped goes on to the same bytes.

A run that goes on builds everything as a fresh one does, from the same params, files and seeds, and then loads what
changed since: the parts' `state_dict`s and the global generators. What can be built again is in no checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from signal import Signals
from typing import Any

from bertrio.config import Params
from bertrio.core.console import say
from bertrio.core.distributed import ALONE, Processes
from bertrio.core.interruption import Interruption, install
from bertrio.core.runtime import Runtime
from bertrio.training.checkpoints import Checkpoints, identity
from bertrio.training.stateful import GlobalGenerators, Stateful

GENERATORS = "generators"  # the name of the global ones among the parts


def open_checkpoints(
    stage: str, params: Params, reads: Any, inputs: Sequence[str | Path], runtime: Runtime
) -> Checkpoints:
    """Return the checkpoints of a run of `stage`; a context manager, which holds their lock.

    Several processes of a run have one state, which the main one saves; the others get checkpoints that are never due.
    How many share the run decides no more than roundings: they may be more or fewer when it goes on.

    Args:
        stage: its name, with the member's if it has one.
        params: all params, as the stage sees them.
        reads: which of them it reads, as `include` of pydantic's `model_dump`: groups, or a dict of groups and params.
        inputs: the files and folders that it reads.
        runtime: where it computes.

    Raises:
        UserError: if another process is at the same run.
    """
    processes = runtime.processes
    if not processes.is_main:
        return Checkpoints(Path(), params.checkpoints, lock=None)
    settings = params.model_dump(by_alias=True, include=reads)
    settings.get("runtime", {}).pop("processes", None)
    # Heads are drawn, and tasks trained, in these orders, which the identity would not tell apart
    ordered = {"tasks": settings.get("tasks"), "schedule.first": settings.get("schedule", {}).get("first")}
    settings["order"] = {param: list(of) for param, of in ordered.items() if of}
    decides = identity(stage, settings, inputs, runtime)
    if params.runtime.threads is None and not processes.alone:
        decides["threads"] = processes.threads
    return Checkpoints.open(stage, decides, params.checkpoints)


@contextmanager
def resumed(checkpoints: Checkpoints, runtime: Runtime, parts: Mapping[str, Stateful]) -> Iterator[Resume]:
    """Restore the parts from the last checkpoint, if there is one. In the block, a signal waits for the next call of
    `Resume`.

    Args:
        checkpoints: of this run.
        runtime: of the generator that dropout draws from.
        parts: all that changes, by name, built as for a fresh run.
    """
    resume = Resume(checkpoints, {**parts, GENERATORS: GlobalGenerators(runtime)}, runtime.processes)
    resume.restore()
    with install() as resume.interruption:
        yield resume


class Resume:
    """Saves the parts of a stage between its steps.

    Args:
        checkpoints: of this run.
        parts: all that changes, by name; loaded in this order.
        processes: that share the run. All of them make the same calls, but only the main one saves.
    """

    def __init__(self, checkpoints: Checkpoints, parts: Mapping[str, Stateful], processes: Processes = ALONE) -> None:
        self._checkpoints, self._parts, self._processes = checkpoints, parts, processes
        self.interruption = Interruption()
        self.step = 0
        self._saved: bool | None = None  # whether what the parts hold now was saved; None: nobody has tried

    def restore(self) -> None:
        """Load the last checkpoint, if there is one."""
        state = self._processes.broadcast(self._checkpoints.latest() if self._processes.is_main else None)
        if state is None:
            return
        for name, part in self._parts.items():
            part.load_state_dict(state["parts"][name])
        self.step, self._saved = state["step"], True
        say(f"goes on after step {self.step}, from the checkpoint in {self._checkpoints.folder}")
        before, now = state["run"], self._run()
        if before != now:
            say(f"it is of a run in {_counted(**before)}; in {_counted(**now)}, numbers are rounded otherwise")

    def after_step(self, step: int, in_any_case: bool = False) -> None:
        """Save if it is time, or `in_any_case`; call it after every step.

        Raises:
            Interrupted: if a signal came; then it has saved.
        """
        self.step, self._saved = step, None
        if in_any_case or self._checkpoints.due(step):
            self._save()
        self.pause()

    def after_scoring(self) -> None:
        """Save; call it when an epoch is scored. Raises as `after_step`."""
        self._save()
        self.pause()

    def pause(self) -> None:
        """Stop if a signal came; call it now and then while no part changes, such as in scoring.

        A signal that has reached one of the processes stops them all, in the same place.

        Raises:
            Interrupted: if a signal came; then it has saved.
        """
        requested = self._processes.all_reduce_max(self.interruption.requested or 0)
        if requested:
            if self._saved is None:
                self._save()
            self._processes.all_reduce_max(0)  # the launcher stops the others when the first one ends
            self.interruption.requested = Signals(requested)
            self.interruption.stop(self.step, bool(self._saved))

    def _save(self) -> None:
        self._saved = False
        if self._processes.is_main:
            parts = {name: part.state_dict() for name, part in self._parts.items()}
            state = {"step": self.step, "run": self._run(), "parts": parts}
            self._saved = self._checkpoints.save(self.step, state)

    def _run(self) -> dict[str, Any]:
        """Return what the rounding of numbers depends on."""
        return {"processes": self._processes.world_size}


def _counted(processes: int) -> str:
    return "1 process" if processes == 1 else f"{processes} processes"
