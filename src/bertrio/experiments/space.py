"""What a search may set: params, each with the values that it may have."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import yaml

from bertrio.core.errors import UserError
from bertrio.experiments.recipes.params import value_text, with_numbers

FORMS = "log:LOW:HIGH, uniform:LOW:HIGH, int:LOW:HIGH, or values with commas between them"
DIGITS = 4  # of numbers that are drawn: enough to tell them apart, few enough to read
Kind = Literal["log", "uniform", "int"]
Point = Mapping[str, float]  # a place in the space, a coordinate for each param


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included.

    A coordinate is the number itself, of which a run gets four digits. `kind` says how numbers are drawn: `log` (evenly
    in their logarithm), `uniform`, or `int` (whole ones, evenly).
    """

    kind: Kind
    low: float
    high: float

    def value(self, coordinate: float) -> float:
        """The param's value there."""
        if self.kind == "int":
            return int(coordinate)
        return min(max(float(f"{coordinate:.{DIGITS}g}"), self.low), self.high)

    def __str__(self) -> str:
        return f"{self.kind}:{value_text(self.low)}:{value_text(self.high)}"


@dataclass(frozen=True)
class Choice:
    """Some values, of any kind and in no order; a coordinate is the place of one among them."""

    values: tuple[Any, ...]

    def value(self, coordinate: float) -> Any:
        """The param's value there."""
        return self.values[int(coordinate)]

    def __str__(self) -> str:
        return ",".join(map(value_text, self.values))


Space = Mapping[str, Range | Choice]  # by dotted param


def parse_space(texts: Sequence[str]) -> Space:
    """A space in the words of the command line: `finetune.lr=log:1e-5:1e-4`, `smart.lambda=0,1,5`.

    Raises:
        UserError: if a text is not of that form, or names a param a second time.
    """
    space: dict[str, Range | Choice] = {}
    for text in texts:
        param, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not all(param.split(".")):
            raise UserError(f"{text}: expected a dotted param and what it may be, PARAM= with {FORMS}")
        if param in space:
            raise UserError(f"{text}: {param} is given twice")
        kind, colon, _ = values.partition(":")
        space[param] = _range(text, values) if colon and kind in ("log", "uniform", "int") else _choice(text, values)
    return space


def values_at(space: Space, point: Point) -> dict[str, Any]:
    """The params' values at a point."""
    return {param: of.value(point[param]) for param, of in space.items()}


def _range(text: str, values: str) -> Range:
    kind, *ends = values.split(":")
    try:
        low, high = (int(end) if kind == "int" else float(end) for end in ends)
    except ValueError:
        what = "two whole numbers" if kind == "int" else "two numbers"
        raise UserError(
            f"{text}: expected {what} after {kind}:, as in {kind}:{'1:4' if kind == 'int' else '1e-5:1e-4'}"
        ) from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UserError(f"{text}: found {ends[0]} to {ends[1]}, expected a number and a greater one")
    if kind == "log" and low <= 0:
        raise UserError(
            f"{text}: found {ends[0]}, expected numbers above 0, which alone have a logarithm; or use uniform:"
        )
    return Range(cast(Kind, kind), low, high)


def _choice(text: str, values: str) -> Choice:
    try:
        found = with_numbers(yaml.safe_load(f"[{values}]"))
    except yaml.YAMLError as error:
        raise UserError(f"{text}: the values are not valid YAML: {' '.join(str(error).split())}") from error
    if len(found) < 2:
        raise UserError(f"{text}: found one value, expected {FORMS}; -S sets a param to one value")
    texts = [value_text(value) for value in found]
    if len(set(texts)) < len(texts):
        raise UserError(f"{text}: a value is given twice")
    return Choice(tuple(found))
