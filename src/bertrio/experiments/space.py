"""Search spaces on the command line: params with the values that a search may give them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import yaml

from bertrio.core.errors import UserError, missing_package
from bertrio.experiments.recipes.params import value_text, with_numbers

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Space = Mapping[str, "BaseDistribution"]  # by dotted param
FORMS = "log:LOW:HIGH, uniform:LOW:HIGH, int:LOW:HIGH, or values with commas between them"
DIGITS = 4  # of drawn numbers


def import_optuna() -> Any:
    """Import Optuna and silence its progress messages.

    Raises:
        UserError: if it is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise missing_package("search", ["optuna"], "search") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def parse_space(texts: Sequence[str]) -> Space:
    """Parse texts such as `finetune.lr=log:1e-5:1e-4` or `smart.lambda=0,1,5` into Optuna's distributions.

    Raises:
        UserError: if a text has another form, or names a param twice.
    """
    space: dict[str, BaseDistribution] = {}
    for text in texts:
        param, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not all(param.split(".")):
            raise UserError(f"{text}: expected a dotted param and its values, PARAM= with {FORMS}")
        if param in space:
            raise UserError(f"{text}: {param} is given twice")
        kind, colon, ends = values.partition(":")
        numbers = bool(colon) and kind in ("log", "uniform", "int")
        space[param] = _numbers(text, kind, ends.split(":")) if numbers else _choices(text, values)
    return space


def values_at(point: Mapping[str, Any]) -> dict[str, Any]:
    """Return the params of a trial: Optuna's numbers with four digits, and the values that its choices stand for."""
    return {param: _value(coordinate) for param, coordinate in point.items()}


def _value(coordinate: Any) -> Any:
    if isinstance(coordinate, str):
        return json.loads(coordinate)
    return float(f"{coordinate:.{DIGITS}g}") if isinstance(coordinate, float) else coordinate


def _numbers(text: str, kind: str, ends: Sequence[str]) -> BaseDistribution:
    distributions = import_optuna().distributions
    try:
        low, high = (int(end) if kind == "int" else float(end) for end in ends)
    except ValueError:
        what = "whole numbers, as in int:1:4" if kind == "int" else f"numbers, as in {kind}:1e-5:1e-4"
        raise UserError(f"{text}: expected two {what}") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UserError(f"{text}: found {ends[0]} to {ends[1]}, expected a number and a greater one")
    if kind == "log" and low <= 0:
        raise UserError(f"{text}: found {ends[0]}, expected numbers above 0; use uniform: for others")
    if kind == "int":
        return distributions.IntDistribution(low, high)
    return distributions.FloatDistribution(low, high, log=kind == "log")


def _choices(text: str, values: str) -> BaseDistribution:
    """A choice of any YAML values, which Optuna stores as JSON texts."""
    try:
        choices = with_numbers(yaml.safe_load(f"[{values}]"))
    except yaml.YAMLError as error:
        raise UserError(f"{text}: the values are not valid YAML: {' '.join(str(error).split())}") from error
    if len(choices) < 2:
        raise UserError(f"{text}: found one value, expected {FORMS}; -S sets a param to one value")
    if len({value_text(value) for value in choices}) < len(choices):
        raise UserError(f"{text}: a value is given twice")
    return import_optuna().distributions.CategoricalDistribution([json.dumps(value, default=str) for value in choices])
