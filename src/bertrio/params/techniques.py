"""The groups of params that say how tasks take turns, and what is added to plain training."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from bertrio.params.base import Count, Group, NotNegative, Positive, Real, Share, Whole

SAMPLED = ("joint", "round_robin", "annealed", "temperature")  # schedules that read `until`


class ScheduleParams(Group):
    name: Literal["joint", "sequential", "per_epoch", "round_robin", "annealed", "temperature"]
    tasks: Annotated[list[str], Field(min_length=1)] | None
    first: dict[str, Count]
    until: str | Annotated[list[str], Field(min_length=1)]
    steps: Count | None
    cycle: bool
    temperature: Annotated[Real, Field(ge=1)]
    cap: Count | Literal["shortest"] | None
    redraw: bool
    batch_sizes: Literal["fixed", "proportional"]
    base_batch: Count
    max_batches: Count | None

    @model_validator(mode="after")
    def _steps_are_there(self) -> ScheduleParams:
        if self.until == "steps" and self.steps is None and self.name in SAMPLED:
            raise ValueError("steps: found null, expected the number of steps in an epoch, for until: steps")
        return self

    def trains(self, tasks: list[str]) -> list[str]:
        """The tasks that train, in training order."""
        return list(tasks) if self.tasks is None else self.tasks

    @property
    def until_names(self) -> tuple[str, ...]:
        """What `until` names, as a tuple."""
        return (self.until,) if isinstance(self.until, str) else tuple(self.until)


class WeightingParams(Group):
    method: Literal["fixed", "uncertainty"]
    weights: dict[str, NotNegative]
    lr: Positive


class SurgeryParams(Group):
    method: Literal["none", "pcgrad", "mgda", "upgrad", "imtl_g", "aligned_mtl", "cagrad"]
    reduction: Literal["sum", "mean"]
    log_conflicts: bool


def _norm_name(value: Any) -> Any:
    """`dvc exp run -S smart.norm=inf` writes a float of YAML, and `=2` a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    return "2" if value == 2 else "inf" if value == math.inf else value


class SmartParams(Group):
    strength: NotNegative = Field(alias="lambda")
    tasks: list[str] | None
    eta: NotNegative
    sigma: NotNegative
    radius: Positive
    norm: Annotated[Literal["inf", "2"], BeforeValidator(_norm_name)]
    steps: Annotated[Whole, Field(ge=0)]
    projection: Literal["ball", "rescale"]
    guard: Positive
    every: Annotated[Whole, Field(ge=1)]
    layers: Annotated[Whole, Field(ge=1)] | None


class BregmanParams(Group):
    mu: NotNegative
    tasks: list[str] | None
    momentum: Share
    late_momentum: Share | None


class RDropParams(Group):
    alpha: NotNegative
    tasks: list[str] | None


class PenaltyParams(Group):
    l1: NotNegative
    l2: NotNegative
    parameters: Literal["all", "encoder", "heads"]
