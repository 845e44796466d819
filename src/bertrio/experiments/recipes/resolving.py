"""What a row is run with: params.yaml, then the row, the budget, the seed, and last what the user sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from bertrio.config.loading import check_trained, member_params, read_yaml, validate_params
from bertrio.core.errors import UserError
from bertrio.experiments.recipes.params import Block, layered, members_of, multiplied, put, value_text, with_numbers

if TYPE_CHECKING:
    from bertrio.experiments.recipes.rows import Recipes, Row

SEED = "runtime.seed"
SEED_STEP = 1000  # between the seeds of one member in two runs of an ensemble


def resolve(
    recipes: Recipes,
    row: Row,
    budget: str = "paper",
    overrides: Mapping[str, Any] | None = None,
    seed: int | None = None,
    base: Mapping[str, Any] | None = None,
) -> Block:
    """The params that a row is run with, as params.yaml would hold them.

    On the base go, in this order: the row's overrides (`ensemble.members` replaced whole, all other blocks merged) and,
    of a point of a sweep, its settings; the budget, which first multiplies and then sets; the seed; the user's
    overrides.

    Args:
        recipes: where the budget is found.
        row: the row; one quoted from the literature can't be resolved.
        budget: its name.
        overrides: what the user sets: dotted params and their values.
        seed: `runtime.seed` of this run, from 1. A member of an ensemble that has a seed m of its own gets
            m + 1000 (seed - 1), so that no two runs share a member, unless the user's overrides give it (see
            `check_apart`). None leaves all seeds as they are.
        base: raw params to start from; None reads params.yaml.

    Raises:
        UserError: naming the recipe's file and row, the budget or the setting, and every param that is wrong.
    """
    if row.literature:
        raise UserError(f"{row.name}: has no params: the paper quotes it from the literature")
    chosen = recipes.budget(budget)
    base = with_numbers(read_yaml("params.yaml") if base is None else base)
    where = f"{recipes.folder}/{row.paper}.yaml: {row.name}"
    _check_tasks(base, row, where)
    raw = _with(layered(base, row.overrides), row.settings, where)
    raw = layered(multiplied(raw, chosen.multiply), chosen.overrides)
    if seed is not None:
        _set_seed(raw, seed)
    raw = _with(raw, {}, f"{recipes.folder}/budgets.yaml: {budget}, for {row.name}")
    return _with(raw, overrides, f"{row.name} with -S {' -S '.join(overrides)}") if overrides else raw


def check_apart(runs: Iterable[Block], where: str) -> None:
    """Checks that no member stands in two of the runs that are to be seeds of one row: it would count as luck that did
    not happen.

    Args:
        runs: raw params of each.
        where: what errors begin with.

    Raises:
        UserError: naming the members and their seed.
    """
    first: dict[str, tuple[int, str]] = {}
    for run, raw in enumerate(runs):
        for name, member in members_of(raw).items():
            runtime = {"seed": raw["runtime"]["seed"], **(member.get("runtime") or {})}
            twin = first.setdefault(repr(sorted({**member, "runtime": sorted(runtime.items())}.items())), (run, name))
            if twin[0] != run:
                raise UserError(
                    f"{where}: member {name} of one run is member {twin[1]} of another, both with seed "
                    f"{runtime['seed']}, so that one model would stand in both; give members seeds such as 101 and on, "
                    "in a row of recipes/ or in params.yaml, where they move with the run"
                )


def without_seed(overrides: Mapping[str, Any]) -> tuple[int | None, Block]:
    """The `runtime.seed` among the user's overrides, None if there is none, and the others.

    Raises:
        UserError: if it is no whole number from 1 on.
    """
    others = dict(overrides)
    if SEED not in others:
        return None, others
    seed = others.pop(SEED)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 1:
        raise UserError(f"-S {SEED}={value_text(seed)}: expected a whole number from 1 on")
    return seed, others


def _with(raw: Block, settings: Mapping[str, Any], where: str) -> Block:
    """Raw params with settings on top, checked; `where` is what errors begin with."""
    try:
        for name, value in settings.items():
            put(raw, name, value)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    _check(raw, where)
    return raw


def _set_seed(raw: Block, seed: int) -> None:
    put(raw, SEED, seed)
    for member in members_of(raw).values():
        own = (member.get("runtime") or {}).get("seed")
        if isinstance(own, int):
            member["runtime"]["seed"] = own + SEED_STEP * (seed - 1)


def _check_tasks(base: Block, row: Row, where: str) -> None:
    """Raises a UserError if the row changes tasks that are not there. One with a `kind` it brings in itself."""
    changed = dict(row.overrides.get("tasks") or {})
    for name, value in row.settings.items():
        if name.startswith("tasks."):
            task, _, rest = name.removeprefix("tasks.").partition(".")
            block = {rest: value} if rest else value
            changed[task] = {**(changed.get(task) or {}), **(block if isinstance(block, dict) else {})}
    known = {"*", *(base.get("tasks") or {})}
    absent = [name for name, block in changed.items() if name not in known and "kind" not in (block or {})]
    if absent:
        tasks = f"task {absent[0]}" if len(absent) == 1 else f"tasks {', '.join(absent)}"
        raise UserError(f"{where}: params.yaml has no {tasks}, which this changes; put it back, or leave this out")


def _check(raw: Block, where: str) -> None:
    """Checks params and what each member of the ensemble makes of them, as training will."""
    params = validate_params(raw, where)
    try:
        check_trained(params, {name: member_params(params, name) for name in params.ensemble.members}, where)
    except UserError as error:
        raise UserError(str(error).replace("params.yaml:", f"{where}:")) from None
