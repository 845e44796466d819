r"""Schedules: the order of tasks over the steps of training. A step is the tuple of tasks whose losses make one update.

A schedule is a pure function `(sizes, generator) -> list[Epoch]` that returns all steps of a run as a plan, before the
first step. With a plan, unlike with a stateful iterator, the number of steps is known to the learning-rate schedule,
and a resumed run rebuilds the plan from its seed and continues at its step. Steps are shared tuples, so that a plan of
400,000 steps is as many references.

Lengths are counted in batches. Batch streams continue across epochs: a task with fewer batches than its epoch takes
begins again within it, and one with more continues in the next epoch where it stopped.

docs/techniques.md has the papers' names for these schedules, and their sources.

To add a schedule, write the function and add it to `SCHEDULES`.

Where the papers draw a random batch of a larger set, the stream returns the next one of a shuffled pass. This is a draw
without replacement, which uses all rows equally often.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from bertrio.core.options import Count, Group, Real, one_of

Step = tuple[str, ...]
Epoch = list[Step]

UNTIL = ("shortest", "longest", "steps")  # values of `until` besides one task or several


@dataclass(frozen=True)
class Sizes:
    """Sizes and options that a plan is computed from.

    Args:
        batches: batches in one pass, 1 or more, of each task that trains, in training order.
        rows: N, training rows of the same tasks, 1 or more; they decide the sampling probabilities.
        epochs: number of epochs; 0 gives an empty plan.
        task_epochs: number of passes of tasks for which it differs from `epochs`; only for `sequential`.
        until: end of an epoch: `shortest` or `longest` (after one pass of the task with the fewest or most batches, or
            of all such tasks), a task, several tasks (after one pass of each), or `steps`.
        steps: length of an epoch if `until` is `steps`.
        cycle: whether a task begins again after a whole pass in a `joint` epoch; else it is left out of the rest.
        temperature: T of `temperature`, 1 or more, infinity allowed. Below 1, small tasks would hardly be drawn, and an
            epoch that waits for them would not end.
    """

    batches: Mapping[str, int]
    rows: Mapping[str, int]
    epochs: int
    task_epochs: Mapping[str, int] = field(default_factory=dict)
    until: str | Sequence[str] = "longest"
    steps: int = 0
    cycle: bool = True
    temperature: float = 1.0


def joint(sizes: Sizes, generator: torch.Generator) -> list[Epoch]:
    """Simultaneous training: every step takes one batch of each task (`smart` 4.2, `bertpp` 3).

    An epoch has as many steps as the task in `until` has batches, the largest number if there are several tasks, or
    `steps`. Without `cycle`, a step has the tasks with batches left in their pass: all tasks at first, the longest
    alone at the end (`bertpp` 4.4, before it cycles); the epoch ends when no batch is left. Does not use `generator`.
    """
    length = sizes.steps if sizes.until == "steps" else max(_awaited(sizes).values())
    if sizes.cycle:
        return [[tuple(sizes.batches)] * length for _ in range(sizes.epochs)]
    length = min(length, max(sizes.batches.values()))
    epoch = [tuple(task for task, count in sizes.batches.items() if step < count) for step in range(length)]
    return [list(epoch) for _ in range(sizes.epochs)]


def sequential(sizes: Sizes, generator: torch.Generator) -> list[Epoch]:
    """Tasks one after the other in order, each for its own number of epochs (`smart` 4.2).

    Every pass over a task is an epoch of the plan. Does not use `until` and `generator`.
    """
    return [
        [(task,)] * count
        for task, count in sizes.batches.items()
        for _ in range(sizes.task_epochs.get(task, sizes.epochs))
    ]


def per_epoch(sizes: Sizes, generator: torch.Generator) -> list[Epoch]:
    """Epochs of one whole pass over each task, one task after the other, in order.

    The individual training of `bertpp` 3 and the three independent loops of `strategies` 4. Does not use `until` and
    `generator`.
    """
    steps = [((task,), count) for task, count in sizes.batches.items()]
    return [[step for step, count in steps for _ in range(count)] for _ in range(sizes.epochs)]


def round_robin(sizes: Sizes, generator: torch.Generator) -> list[Epoch]:
    """One task per step, in turn, starting from the first task in every epoch (`beyond` 3.4).

    An epoch ends once each task in `until` has had as many batches as its pass: with K tasks, after step
    max_t (t + (n_t - 1) K), where t = 1 to K numbers the tasks and n_t is the number of batches of a pass. Does not use
    `generator`.
    """
    steps = [(task,) for task in sizes.batches]
    if sizes.until == "steps":
        length = sizes.steps
    else:
        awaited, turns = _awaited(sizes), enumerate(sizes.batches, start=1)
        length = max(turn + (awaited[task] - 1) * len(steps) for turn, task in turns if task in awaited)
    return [[steps[index % len(steps)] for index in range(length)] for _ in range(sizes.epochs)]


def annealed(sizes: Sizes, generator: torch.Generator) -> list[Epoch]:
    r"""One task per step, drawn at random, more evenly from epoch to epoch.

    .. math:: p_i \propto N_i^{\alpha}, \quad \alpha = 1 - 0.8 \, \frac{e - 1}{E - 1}

    with e = 1 to E the epoch: proportional to size in the first, nearly uniform in the last. Stickland and Murray 2019,
    "BERT and PALs: Projected Attention Layers for Efficient Adaptation in Multi-Task Learning", annealed sampling. For
    E = 1, which the paper leaves open, alpha is 1. Epochs end as in `temperature`.
    """
    exponents = [1 - 0.8 * epoch / max(1, sizes.epochs - 1) for epoch in range(sizes.epochs)]
    return [_drawn_epoch(sizes, sampling_probabilities(sizes.rows, exponent), generator) for exponent in exponents]


def temperature(sizes: Sizes, generator: torch.Generator) -> list[Epoch]:
    r"""One task per step, drawn with probabilities that the temperature T flattens.

    .. math:: p_i \propto N_i^{1 / T}

    T = 1 is proportional to size, T to infinity uniform. Raffel et al. 2020, "Exploring the Limits of Transfer Learning
    with a Unified Text-to-Text Transformer", section 3.5.2, without its artificial limit on N. Multilingual BERT
    samples languages in this way, with exponent 0.7.

    An epoch has `steps` steps if `until` is `steps`. Otherwise it ends once each task in `until` has been drawn as
    often as its pass has batches, so epochs differ in length.
    """
    probabilities = sampling_probabilities(sizes.rows, 1 / sizes.temperature)
    return [_drawn_epoch(sizes, probabilities, generator) for _ in range(sizes.epochs)]


SCHEDULES: dict[str, Callable[[Sizes, torch.Generator], list[Epoch]]] = {
    "joint": joint,
    "sequential": sequential,
    "per_epoch": per_epoch,
    "round_robin": round_robin,
    "annealed": annealed,
    "temperature": temperature,
}


WITHOUT_UNTIL = ("sequential", "per_epoch")  # schedules that do not use `until`
SEVERAL_TASKS_A_STEP = ("joint",)


class ScheduleOptions(Group):
    """The block `schedule` of params.yaml."""

    name: Annotated[str, one_of(SCHEDULES)]
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
    def _steps_are_there(self) -> ScheduleOptions:
        if self.until == "steps" and self.steps is None and self.reads_until:
            raise ValueError("steps: found null, expected the number of steps in an epoch, for until: steps")
        return self

    @property
    def reads_until(self) -> bool:
        """True if the schedule uses `until`."""
        return self.name not in WITHOUT_UNTIL

    def until_of(self, trains: Sequence[str]) -> str | Sequence[str]:
        """Return `until` for these tasks; a single task always ends an epoch by its own pass."""
        return "longest" if len(trains) == 1 and self.until != "steps" else self.until

    @property
    def until_names(self) -> tuple[str, ...]:
        """The values of `until` as a tuple."""
        return (self.until,) if isinstance(self.until, str) else tuple(self.until)


def sampling_probabilities(rows: Mapping[str, int], exponent: float) -> dict[str, float]:
    """Return p_i = N_i^exponent / sum_j N_j^exponent for tasks of N_i rows; see `annealed` and `temperature`."""
    weights = {task: count**exponent for task, count in rows.items()}
    return {task: weight / sum(weights.values()) for task, weight in weights.items()}


def proportional_batch_sizes(rows: Mapping[str, int], base_batch: int) -> dict[str, int]:
    r"""Batch sizes with which tasks of different sizes have about the same number of batches.

    .. math:: M = \lceil \max_i N_i / b \rceil, \quad \text{batch}_i = \max(1, \mathrm{round}(N_i / M))

    for N_i rows and the batch size b of the largest task; halves round to even. `losses` 4.2.1, Full Data. Because of
    rounding, small tasks have more or fewer than M batches, sometimes more than the largest task: 6,041 rows with
    M = 4,423 make 6,041 batches of one row. For the paper's epoch, set `until` to the largest task, since `longest`
    counts batches.

    Args:
        rows: training rows by task, 1 or more.
        base_batch: b, 1 or more.

    Returns:
        The batch size of each task.
    """
    batches = -(-max(rows.values()) // base_batch)
    return {task: max(1, round(count / batches)) for task, count in rows.items()}


def _awaited(sizes: Sizes) -> dict[str, int]:
    """Return the tasks whose passes end an epoch, with the number of batches of a pass."""
    if sizes.until in ("shortest", "longest"):
        count = {"shortest": min, "longest": max}[sizes.until](sizes.batches.values())
        return {task: batches for task, batches in sizes.batches.items() if batches == count}
    named = (sizes.until,) if isinstance(sizes.until, str) else tuple(sizes.until)
    return {task: sizes.batches[task] for task in named}


def _drawn_epoch(sizes: Sizes, probabilities: Mapping[str, float], generator: torch.Generator) -> Epoch:
    """Draw an epoch of steps of one task each with these probabilities."""
    steps = [(task,) for task in sizes.batches]
    odds = torch.tensor([probabilities[task] for task in sizes.batches], dtype=torch.float64)
    if sizes.until == "steps":
        return [steps[index] for index in _draw(odds, sizes.steps, generator).tolist()]
    awaited = _awaited(sizes)
    wanted = torch.tensor([awaited.get(task, 0) for task in sizes.batches])
    drawn = _draw(odds, sum(sizes.batches.values()), generator)
    while (drawn.bincount(minlength=len(steps)) < wanted).any():
        drawn = torch.cat([drawn, _draw(odds, len(drawn), generator)])
    ends = [(drawn == index).nonzero()[count - 1] for index, count in enumerate(wanted.tolist()) if count]
    return [steps[index] for index in drawn[: int(max(ends)) + 1].tolist()]


def _draw(odds: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draw `count` indices with replacement, with probabilities `odds` [K], float64: int64 [count]."""
    draws = torch.rand(count, generator=generator, dtype=torch.float64)
    return torch.bucketize(draws, odds.cumsum(0)[:-1], right=True)  # K - 1 edges: no index above the last
