"""Params that choose a part by its name: one of bertrio's own, or one that an installed package adds."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, ConfigDict, model_validator

from bertrio.core.options import Group
from bertrio.core.plugins import Plugin, find

if TYPE_CHECKING:
    from bertrio.config.root import Params

SCIENTIFIC = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")  # YAML 1.1 reads 2e-05, as DVC writes it, for a text


def choice(group: str, own: Collection[str]) -> Any:
    """The type of a param that names a part.

    Args:
        group: a key of `plugins.GROUPS`.
        own: the names of bertrio's own.
    """
    return Annotated[str, AfterValidator(partial(_checked, group, tuple(own)))]


def _checked(group: str, own: tuple[str, ...], name: str) -> str:
    find(group, own, name)
    return name


class Options(Group):
    """Options of a part: those left out are its own defaults."""

    def given(self) -> dict[str, Any]:
        """The options that are set, by name."""
        return self.model_dump(exclude_none=True)


class PluginOptions(Options):
    """Options of a part that another package adds, which alone knows them: checked when it is loaded."""

    model_config = ConfigDict(extra="allow")

    @model_validator(mode="before")
    @classmethod
    def _numbers(cls, raw: Any) -> Any:
        if not isinstance(raw, dict):
            return raw
        return {key: _number(value) for key, value in raw.items()}


def _number(value: Any) -> Any:
    if isinstance(value, str) and SCIENTIFIC.fullmatch(value) and math.isfinite(float(value)):  # a hash: 12e3456
        return float(value)
    return value


def plugins_of(params: Params) -> dict[str, Plugin]:
    """The parts of other packages that params ask for, by the param that names them."""
    from bertrio.config.groups import POOLINGS
    from bertrio.config.tasks import HEAD_OPTIONS, LOSS_OPTIONS
    from bertrio.config.techniques import SCHEDULES, SURGERIES, WEIGHTINGS

    named = [
        *[(f"tasks.{name}.head", "heads", HEAD_OPTIONS, task.head) for name, task in params.tasks.items()],
        *[(f"tasks.{name}.loss", "losses", LOSS_OPTIONS, task.loss) for name, task in params.tasks.items()],
        ("encoder.pooling", "poolings", POOLINGS, params.encoder.pooling),
        ("schedule.name", "schedules", SCHEDULES, params.schedule.name),
        ("surgery.method", "surgeries", SURGERIES, params.surgery.method),
        ("weighting.method", "weightings", WEIGHTINGS, params.weighting.method),
    ]
    found = {param: find(group, own, name) for param, group, own, name in named}
    return {param: plugin for param, plugin in found.items() if plugin is not None}
