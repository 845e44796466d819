"""All that decides which trials a search makes, and what they score."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bertrio.experiments.dvc_experiments import short_digest
from bertrio.experiments.places import of_any_machine
from bertrio.experiments.proposer import Prune
from bertrio.experiments.space import Space


@dataclass(frozen=True)
class Plan:
    """The plan of a search; searches of one plan are one search.

    Args:
        space: what the trials may set.
        base: the row to start from; None: params.yaml as it is.
        budget: of every run.
        overrides: dotted params and values that go on top of base and budget.
        seed: of what is drawn. Runs have the seed that params.yaml or `overrides` give them.
        prune: median, hyperband or none.
        metric: what to raise on dev: overall_normalized, overall_mean, or a task (its first metric).
        params: those of params.yaml, on which the base row goes.
    """

    space: Space
    base: str | None = None
    budget: str = "paper"
    overrides: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 1
    prune: Prune = "median"
    metric: str = "overall_normalized"
    params: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """It in words that are the same on every machine."""
        plain = {
            "space": {param: str(of) for param, of in self.space.items()},
            "base": self.base,
            "budget": self.budget,
            "overrides": of_any_machine(self.overrides),
            "seed": self.seed,
            "prune": self.prune,
            "metric": self.metric,
            "params": of_any_machine(self.params),
        }
        return json.loads(json.dumps(plain, default=str))  # YAML knows dates

    @property
    def name(self) -> str:
        """What its search is called, if the user does not say: six digits stand for the plan."""
        text = json.dumps(self.as_json(), sort_keys=True)
        return f"search-{short_digest(text)}"
