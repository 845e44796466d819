"""The params of a run: params.yaml, then the row, the budget, the seed, and the user's overrides."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from typing import Any

from bertrio.config.reading import merged
from bertrio.core.errors import UserError
from bertrio.experiments.recipes.params import MEMBERS, Block, scale, set_param, value_text
from bertrio.experiments.recipes.rows import Recipes, Row

SEED = "runtime.seed"
SEED_STEP = 1000  # between the seeds of one member in two runs of an ensemble


def resolve(
    recipes: Recipes,
    row: Row,
    budget: str = "paper",
    overrides: Mapping[str, Any] | None = None,
    seed: int | None = None,
    check: bool = True,
) -> Block:
    """Return the raw params of a run of a row, in the layout of params.yaml.

    params.yaml is overridden by, in this order: the row (which replaces `ensemble.members` as a whole), the budget, the
    seed, and the user's overrides.

    Args:
        recipes: all recipes, with the budgets and params.yaml.
        row: the row; a row of another paper or tool can't be resolved.
        budget: name of the budget.
        overrides: the user's overrides by dotted param.
        seed: `runtime.seed` of this run, from 1; None takes it from `overrides`, if set there. An ensemble member with
            seed m gets m + 1000 (seed - 1), so that no two runs share a member.
        check: validate the params, which loads torch; False for runs that were valid when they were measured.

    Raises:
        UserError: naming the recipe's file and row, the budget, the overrides, and every wrong param; its cause names
            the params alone.
    """
    if row.literature:
        raise UserError(f"{row.name}: has no params: it is another tool's or paper's")
    chosen, overrides = recipes.budget(budget), overrides or {}
    seed = overrides.get(SEED) if seed is None else seed
    raw = copy.deepcopy(recipes.params)
    if MEMBERS in row.overrides:
        raw["ensemble"]["members"] = {}
    try:
        for name, value in row.overrides.items():
            set_param(raw, name, value)
        scale(raw, chosen.multiply)
        for name, value in chosen.overrides.items():
            set_param(raw, name, value)
        if isinstance(seed, int):
            _set_seed(raw, seed)
        for name, value in overrides.items():
            set_param(raw, name, value)
        if check:
            from bertrio.config.loading import check_params

            check_params(raw, "params.yaml")
    except UserError as error:
        where = f"{recipes.folder}/{row.paper}.yaml: {row.name}, budget {budget}"
        where += "".join(f", -S {name}={value_text(value)}" for name, value in overrides.items())
        raise UserError(f"{where}: " + str(error).replace("params.yaml: ", "")) from error
    return raw


def check_apart(runs: Iterable[Block], where: str) -> None:
    """Check that the runs of one row share no ensemble member, which would understate the variance over seeds.

    Args:
        runs: raw params of each seed.
        where: prefix of error messages.

    Raises:
        UserError: naming the members and their seed.
    """
    first_run: dict[str, int] = {}
    for run, params in enumerate(runs):
        for name, block in _members(params).items():
            member = merged({"runtime": {"seed": params["runtime"]["seed"]}}, block)
            if first_run.setdefault(json.dumps(member, sort_keys=True, default=str), run) != run:
                raise UserError(
                    f"{where}: member {name} with seed {member['runtime']['seed']} is in two of the runs; give members "
                    "seeds such as 101 and on, in a row of recipes/ or in params.yaml, where they move with the run"
                )


def _members(params: Block) -> dict[str, Block]:
    return {name: block or {} for name, block in params.get("ensemble", {}).get("members", {}).items()}


def _set_seed(raw: Block, seed: int) -> None:
    set_param(raw, SEED, seed)
    for member in _members(raw).values():
        runtime = member.get("runtime") or {}
        if isinstance(runtime.get("seed"), int):
            runtime["seed"] += SEED_STEP * (seed - 1)
