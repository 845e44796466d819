import math
from collections import Counter
from itertools import chain

import pytest

from bertrio.core.runtime import generator
from bertrio.techniques.schedules import SCHEDULES, Sizes, proportional_batch_sizes, sampling_probabilities

BATCHES = {"sst": 3, "qqp": 5, "sts": 2}
REAL = {"sst": 8544, "qqp": 141506, "sts": 6041}  # training rows in the paper with full data


def plan(name, batches=BATCHES, rows=None, epochs=2, seed=1, **sizes):
    rows = rows or {task: 8 * count for task, count in batches.items()}
    return SCHEDULES[name](Sizes(batches, rows, epochs, **sizes), generator(seed, "schedule"))


def counts(epoch):
    return Counter(chain.from_iterable(epoch))


ALL, TWO, SST, QQP, STS = ("sst", "qqp", "sts"), ("sst", "qqp"), ("sst",), ("qqp",), ("sts",)
TURNS = [SST, QQP, STS] * 5


@pytest.mark.parametrize(
    ("name", "options", "plan_by_hand"),
    [
        # all tasks in every step, and the length that until says
        ("joint", {"until": "shortest"}, [[ALL] * 2] * 2),
        ("joint", {"until": "longest"}, [[ALL] * 5] * 2),
        ("joint", {"until": ("sst", "sts")}, [[ALL] * 3] * 2),
        ("joint", {"until": "steps", "steps": 7}, [[ALL] * 7] * 2),
        # without cycling a task is left out after one pass
        ("joint", {"until": "longest", "cycle": False}, [[ALL, ALL, TWO, QQP, QQP]] * 2),
        ("joint", {"until": "sst", "cycle": False}, [[ALL, ALL, TWO]] * 2),
        ("joint", {"until": "steps", "steps": 6, "cycle": False}, [[ALL, ALL, TWO, QQP, QQP]] * 2),
        # each task for its own epochs
        ("sequential", {"task_epochs": {"sst": 1, "sts": 3}}, [[SST] * 3, [QQP] * 5, [QQP] * 5, *[[STS] * 2] * 3]),
        ("sequential", {"task_epochs": {"qqp": 0}, "epochs": 1, "until": "not read"}, [[SST] * 3, [STS] * 2]),
        # every set in order every epoch
        ("per_epoch", {"until": "not read"}, [[SST] * 3 + [QQP] * 5 + [STS] * 2] * 2),
        # turns until the task named has had its last batch
        ("round_robin", {"until": "shortest"}, [TURNS[:6]] * 2),
        ("round_robin", {"until": "sst"}, [TURNS[:7]] * 2),
        ("round_robin", {"until": ["sst", "sts"]}, [TURNS[:7]] * 2),  # sts is done earlier
        ("round_robin", {"until": "longest"}, [TURNS[:14]] * 2),
        ("round_robin", {"until": "steps", "steps": 4}, [TURNS[:4]] * 2),
    ],
)
def test_deterministic_plans_by_hand(name, options, plan_by_hand):
    assert plan(name, **options) == plan_by_hand


@pytest.mark.parametrize("name", ["annealed", "temperature"])
@pytest.mark.parametrize("until", ["shortest", "longest", "qqp", ("sst", "sts"), ("sst", "qqp", "sts")])
def test_sampled_epochs_end_with_the_draw_that_completes_them(name, until):
    named = {"shortest": ("sts",), "longest": ("qqp",), "qqp": ("qqp",)}.get(until, until)
    complete = lambda steps: all(counts(steps)[task] >= BATCHES[task] for task in named)  # noqa: E731
    for seed in range(20):
        for epoch in plan(name, until=until, seed=seed):
            assert all(len(step) == 1 for step in epoch)
            assert complete(epoch) and not complete(epoch[:-1])


def is_plausible(epoch, shares):
    """Return whether the count of each task lies within five standard deviations of a binomial one."""
    total = len(epoch)
    return all(abs(counts(epoch)[task] - total * p) < 5 * math.sqrt(total * p * (1 - p)) for task, p in shares.items())


def test_annealed_sampling_goes_from_proportional_to_nearly_even():
    epochs = plan("annealed", {"sst": 1, "qqp": 1, "sts": 1}, REAL, epochs=5, until="steps", steps=20_000)
    for epoch, exponent in zip(epochs, (1.0, 0.8, 0.6, 0.4, 0.2)):
        total = sum(count**exponent for count in REAL.values())
        expected = {task: count**exponent / total for task, count in REAL.items()}
        assert len(epoch) == 20_000 and is_plausible(epoch, expected)
    assert not is_plausible(epochs[0], sampling_probabilities(REAL, 0.8))  # the bound tells neighbouring epochs apart
    only = plan("annealed", {"sst": 1, "qqp": 1, "sts": 1}, REAL, epochs=1, until="steps", steps=20_000)
    assert only[0] == epochs[0], "alpha is 1 for a single epoch"


@pytest.mark.parametrize(("temperature", "ratio"), [(1.0, 4), (2.0, 2), (math.inf, 1)])
def test_temperature_sampling_goes_by_the_root_of_the_size(temperature, ratio):
    rows, total = {"a": 100, "b": 400, "c": 1600}, 1 + ratio + ratio**2
    expected = {"a": 1 / total, "b": ratio / total, "c": ratio**2 / total}
    sizes = {"until": "steps", "steps": 20_000, "temperature": temperature}
    for epoch in plan("temperature", {"a": 1, "b": 1, "c": 1}, rows, **sizes):
        assert is_plausible(epoch, expected)


@pytest.mark.parametrize("name", SCHEDULES)
def test_plans_depend_on_sizes_and_seed_alone(name):
    assert plan(name, seed=3) == plan(name, seed=3)
    drawn = name in ("annealed", "temperature")
    assert (plan(name, seed=3, epochs=4) != plan(name, seed=4, epochs=4)) == drawn
    assert counts(plan(name, {"sst": 3}, epochs=1)[0]) == {"sst": 3}
    assert plan(name, epochs=0) == []


def test_proportional_batch_sizes_match_the_paper():
    assert proportional_batch_sizes(REAL, 32) == {"sst": 2, "qqp": 32, "sts": 1}  # 4,423 batches
    assert proportional_batch_sizes({"a": 100, "b": 30, "c": 1}, 10) == {"a": 10, "b": 3, "c": 1}
    assert proportional_batch_sizes({"a": 7}, 100) == {"a": 7}
