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


@pytest.mark.parametrize(
    ("until", "steps", "length"),
    [("shortest", 0, 2), ("longest", 0, 5), ("sst", 0, 3), (("sst", "sts"), 0, 3), ("steps", 7, 7)],
)
def test_a_joint_epoch_has_all_tasks_in_every_step_and_the_length_that_until_says(until, steps, length):
    assert plan("joint", until=until, steps=steps) == [[("sst", "qqp", "sts")] * length] * 2


def test_without_cycling_a_joint_epoch_gives_every_task_one_pass_and_then_leaves_it_out():
    three, two, one = ("sst", "qqp", "sts"), ("sst", "qqp"), ("qqp",)
    assert plan("joint", until="longest", cycle=False) == [[three, three, two, one, one]] * 2
    assert plan("joint", until="sst", cycle=False) == [[three, three, two]] * 2
    assert plan("joint", until="steps", steps=6, cycle=False) == plan("joint", until="longest", cycle=False)


def test_sequential_trains_each_task_for_its_own_epochs_and_never_again():
    sst, qqp, sts = [("sst",)] * 3, [("qqp",)] * 5, [("sts",)] * 2
    assert plan("sequential", task_epochs={"sst": 1, "sts": 3}) == [sst, qqp, qqp, sts, sts, sts]
    assert plan("sequential", task_epochs={"qqp": 0}, epochs=1, until="not read") == [sst, sts]


def test_per_epoch_goes_through_every_set_in_order_every_epoch():
    assert plan("per_epoch", until="not read") == [[("sst",)] * 3 + [("qqp",)] * 5 + [("sts",)] * 2] * 2


@pytest.mark.parametrize(
    ("until", "steps", "order"),
    [
        ("shortest", 0, "sst qqp sts sst qqp sts"),  # the second batch of sts
        ("sst", 0, "sst qqp sts sst qqp sts sst"),  # the third of sst
        (["sst", "sts"], 0, "sst qqp sts sst qqp sts sst"),  # sts was through before
        ("longest", 0, "sst qqp sts sst qqp sts sst qqp sts sst qqp sts sst qqp"),  # the fifth of qqp
        ("steps", 4, "sst qqp sts sst"),
    ],
)
def test_a_round_robin_epoch_takes_turns_and_ends_right_after_the_last_task_waited_for(until, steps, order):
    assert plan("round_robin", until=until, steps=steps) == [[(task,) for task in order.split()]] * 2


@pytest.mark.parametrize("name", ["annealed", "temperature"])
@pytest.mark.parametrize("until", ["shortest", "longest", "qqp", ("sst", "sts"), ("sst", "qqp", "sts")])
def test_a_drawn_epoch_ends_right_after_the_draw_that_completes_what_it_waits_for(name, until):
    named = {"shortest": ("sts",), "longest": ("qqp",), "qqp": ("qqp",)}.get(until, until)
    through = lambda steps: all(counts(steps)[task] >= BATCHES[task] for task in named)  # noqa: E731
    for seed in range(20):
        for epoch in plan(name, until=until, seed=seed):
            assert all(len(step) == 1 for step in epoch)
            assert through(epoch) and not through(epoch[:-1])


def within_chance(epoch, probabilities):
    """Every task's count lies within five standard deviations of a binomial one."""
    total = len(epoch)
    return all(
        abs(counts(epoch)[task] - total * p) < 5 * math.sqrt(total * p * (1 - p)) for task, p in probabilities.items()
    )


def test_annealed_draws_go_from_proportional_to_nearly_even():
    epochs = plan("annealed", {"sst": 1, "qqp": 1, "sts": 1}, REAL, epochs=5, until="steps", steps=20_000)
    for epoch, exponent in zip(epochs, (1.0, 0.8, 0.6, 0.4, 0.2)):
        total = sum(count**exponent for count in REAL.values())
        expected = {task: count**exponent / total for task, count in REAL.items()}
        assert len(epoch) == 20_000 and within_chance(epoch, expected)
    assert not within_chance(epochs[0], sampling_probabilities(REAL, 0.8))  # the bound can tell neighbours apart
    only = plan("annealed", {"sst": 1, "qqp": 1, "sts": 1}, REAL, epochs=1, until="steps", steps=20_000)
    assert only[0] == epochs[0], "alpha is 1 for a single epoch"


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [
        (1.0, {"a": 1 / 21, "b": 4 / 21, "c": 16 / 21}),
        (2.0, {"a": 1 / 7, "b": 2 / 7, "c": 4 / 7}),
        (math.inf, {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}),
    ],
)
def test_temperature_draws_with_the_root_of_the_size(temperature, expected):
    rows = {"a": 100, "b": 400, "c": 1600}
    sizes = {"until": "steps", "steps": 20_000, "temperature": temperature}
    for epoch in plan("temperature", {"a": 1, "b": 1, "c": 1}, rows, **sizes):
        assert within_chance(epoch, expected)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_plan_depends_on_sizes_and_seed_alone_and_may_be_of_one_task_or_empty(name):
    assert plan(name, seed=3) == plan(name, seed=3)
    drawn = name in ("annealed", "temperature")
    assert (plan(name, seed=3, epochs=4) != plan(name, seed=4, epochs=4)) == drawn
    assert counts(plan(name, {"sst": 3}, epochs=1)[0]) == {"sst": 3}
    assert plan(name, epochs=0) == []


def test_proportional_batches_are_those_of_the_paper():
    assert proportional_batch_sizes(REAL, 32) == {"sst": 2, "qqp": 32, "sts": 1}  # 4,423 batches
    assert proportional_batch_sizes({"a": 100, "b": 30, "c": 1}, 10) == {"a": 10, "b": 3, "c": 1}
    assert proportional_batch_sizes({"a": 7}, 100) == {"a": 7}
