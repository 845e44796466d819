"""Charts of the HTML report: what they show as tables, and their scales; charts.html draws them as SVG."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pandas as pd

from bertrio.core.tasks import Task

POINTS = 200  # of a curve of running means


class Scale(NamedTuple):
    """Linear scale from values to pixels: `ticks` are round numbers from `start` to `end`."""

    ticks: list[float]
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        low, high = self.ticks[0], self.ticks[-1]
        return round(self.start + (value - low) / (high - low) * (self.end - self.start), 1)


def scale(values: Iterable[float], start: float, end: float) -> Scale:
    """Return a scale that covers all values but NaN."""
    from matplotlib.ticker import MaxNLocator  # takes half a second

    known = [float(value) for value in values if value == value]
    ticks = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(min(known), max(known))
    return Scale([float(tick) for tick in ticks], start, end)


def curves(tables: Mapping[str, pd.DataFrame], column: str) -> dict[str, pd.DataFrame]:
    """Return the points [x, y] of each table that has any, by name: the values of `column` by step."""
    points = {name: table[["step", column]].dropna().set_axis(["x", "y"], axis=1) for name, table in tables.items()}
    return {name: table for name, table in points.items() if len(table)}


def conflict_curves(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the running means of the cosine of two tasks' gradients, by pair of tasks."""
    means = {}
    for (one, other), rows in table.groupby(["task_a", "task_b"], sort=False):
        mean = rows["cosine"].rolling(max(1, len(rows) // 20), center=True, min_periods=1).mean()
        means[f"{one} and {other}"] = rows.assign(mean=mean).iloc[:: max(1, len(rows) // POINTS)]
    return curves(means, "mean")


def confusion(table: pd.DataFrame, task: Task) -> pd.DataFrame:
    """Return the number of rows by gold (index) and predicted class (columns), in the order of the classes."""
    names = [task.target.name_of(float(number)) for number in range(max(2, task.target.size))]
    table = table.replace({f"{number} {name}": name for number, name in enumerate(names)})  # numbered to sort them
    seen = {*table["gold"], *table["predicted"]}
    order = [*(name for name in names if name in seen), *sorted(seen.difference(names))]
    return pd.crosstab(table["gold"], table["predicted"]).reindex(index=order, columns=order, fill_value=0)
