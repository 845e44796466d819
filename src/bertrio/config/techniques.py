"""The groups of params that say how tasks take turns, and what is added to plain training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from bertrio.config.choices import PluginOptions, choice
from bertrio.core.options import Count, Group, NotNegative, Positive, Real

# The names of bertrio's own; a test holds them against the modules, which import torch.
SCHEDULES = ("joint", "sequential", "per_epoch", "round_robin", "annealed", "temperature")
SURGERIES = ("none", "pcgrad", "mgda", "upgrad", "imtl_g", "aligned_mtl", "cagrad")
WEIGHTINGS = ("fixed", "uncertainty")
ScheduleName, SurgeryName = choice("schedules", SCHEDULES), choice("surgeries", SURGERIES)
WeightingName = choice("weightings", WEIGHTINGS)
WITHOUT_UNTIL = ("sequential", "per_epoch")  # schedules that do not read `until`


def _options_of_plugins(group: Any, name: str, own: tuple[str, ...]) -> Any:
    """The group itself, if its `options` are for a part that reads them."""
    if group.options.given() and name in own:
        raise ValueError(f"options: {name} takes none; they are for what other packages add")
    return group


class ScheduleParams(Group):
    name: ScheduleName
    options: PluginOptions = PluginOptions()  # of another package's schedule
    tasks: Annotated[list[str], Field(min_length=1)] | None
    first: dict[str, Count]
    until: str | Annotated[list[str], Field(min_length=1)]
    steps: Count | None
    cycle: bool
    temperature: Annotated[Real, Field(ge=1)]
    cap: Count | Literal["shortest"] | None
    redraw: bool
    match_lengths: bool
    batch_sizes: Literal["fixed", "proportional"]
    base_batch: Count
    max_batches: Count | None

    @model_validator(mode="after")
    def _steps_are_there(self) -> ScheduleParams:
        if self.until == "steps" and self.steps is None and self.reads_until:
            raise ValueError("steps: found null, expected the number of steps in an epoch, for until: steps")
        return _options_of_plugins(self, self.name, SCHEDULES)

    @property
    def reads_until(self) -> bool:
        """Whether the schedule reads `until`; another package's may."""
        return self.name not in WITHOUT_UNTIL

    def trains(self, tasks: list[str]) -> list[str]:
        """The tasks that train, in training order."""
        return list(tasks) if self.tasks is None else self.tasks

    def until_of(self, trains: Sequence[str]) -> str | tuple[str, ...]:
        """What ends an epoch of these tasks. One alone is what its epochs are counted by, whatever `until` says for
        several."""
        if len(trains) == 1 and self.until != "steps":
            return "longest"
        return self.until if isinstance(self.until, str) else tuple(self.until)

    @property
    def until_names(self) -> tuple[str, ...]:
        """What `until` names, as a tuple."""
        return (self.until,) if isinstance(self.until, str) else tuple(self.until)


class WeightingParams(Group):
    method: WeightingName
    options: PluginOptions = PluginOptions()  # of another package's weighting
    weights: dict[str, NotNegative]
    lr: Positive

    @model_validator(mode="after")
    def _options_are_read(self) -> WeightingParams:
        return _options_of_plugins(self, self.method, WEIGHTINGS)


class SurgeryParams(Group):
    method: SurgeryName
    options: PluginOptions = PluginOptions()  # of another package's method
    reduction: Literal["sum", "mean"]
    log_conflicts: bool

    @model_validator(mode="after")
    def _options_are_read(self) -> SurgeryParams:
        return _options_of_plugins(self, self.method, SURGERIES)


class PenaltyParams(Group):
    l1: NotNegative
    l2: NotNegative
    parameters: Literal["all", "encoder", "heads"]
