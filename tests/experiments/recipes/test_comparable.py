import shlex

import numpy as np
import pytest

from bertrio.core.errors import UserError
from bertrio.experiments.recipes import comparable
from bertrio.experiments.recipes.comparable import Runs, Setting, differ, value_of
from bertrio.experiments.recipes.params import parse_settings
from bertrio.experiments.recipes.rows import load_recipes
from tests.experiments.simulated import seeds, simulate

A, B = "smart-baseline", "smart-concat"
FIVE, SIX = ({"smart.lambda": value} for value in (5, 6))


@pytest.fixture(autouse=True)
def in_project(root, monkeypatch):
    monkeypatch.chdir(root)


def runs_of(measured, rows, setting) -> Runs:
    """Return the runs of rows of the project's recipes."""
    return comparable.runs_of(measured, rows, setting, load_recipes())


@pytest.mark.parametrize("other", [{"budget": "paper"}, {"source": "hub"}, {"encoder": "large"}])
def test_setting_with_most_runs_is_chosen_and_noted(other):
    measured = [*reversed(seeds(A)), simulate("losses-e1"), simulate(B, **other)]
    chosen_runs = runs_of(measured, [A, B], Setting())
    assert [(run.row, run.seed) for run in chosen_runs.all] == [(A, 1), (A, 2), (A, 3)]
    assert chosen_runs.setting == Setting("quick", "cs224n", "small")
    assert chosen_runs.note.startswith("This uses the 3 runs of --budget quick --source cs224n --encoder small; ")
    assert f"--{next(iter(other))} {next(iter(other.values()))}" in chosen_runs.note and "has 1." in chosen_runs.note
    chosen = runs_of(measured, [A, B], Setting(**other))
    assert chosen.by_row.keys() == {B} and not chosen.note
    assert not runs_of(measured, [A, "smart-cos-sim"], Setting()).note


def test_overrides_of_most_runs_are_chosen():
    """A row that has the override itself is measured without it."""
    plain, pooled = "strategies-multitask-capped", "strategies-cosine-mean"
    measured = [*seeds(plain, 2, overrides={"encoder.pooling": "mean"}), *seeds(pooled, 2), simulate(plain, 9)]
    chosen_runs = runs_of(measured, [plain, pooled], Setting())
    assert {row: len(chosen_runs.of(row)) for row in (plain, pooled)} == {plain: 2, pooled: 2}
    assert chosen_runs.setting.overrides == {"encoder.pooling": "mean"} and chosen_runs.left_out == 1
    assert "-S encoder.pooling=mean; " in chosen_runs.note


def test_runs_with_other_overrides_are_left_out_and_counted():
    overrides = {"finetune.lr": 3e-5}
    measured = [*seeds(A), simulate(A, overrides=overrides), simulate(A, budget="paper", overrides=overrides)]
    plain = runs_of(measured, [A], Setting())
    assert (len(plain.of(A)), plain.left_out) == (3, 1)
    requested = runs_of(measured, [A], Setting(budget="quick", overrides=overrides))
    assert [run.overrides for run in requested.of(A)] == [overrides]


def test_requested_overrides_apply_to_every_row():
    """As with `recipes run -S ...`: stars, and overrides that a row has itself."""
    requested = {"tasks.*.dropout": 0.3, "encoder.pooling": "mean"}
    cosine, pooled = "strategies-multitask-capped", "strategies-cosine-mean"
    measured = [
        simulate(cosine, overrides={"tasks.sts.dropout": 0.3, "encoder.pooling": "mean"}),
        simulate(cosine, 2, overrides={"tasks.sts.dropout": 0.2, "encoder.pooling": "mean"}),
        simulate(pooled, overrides={"tasks.sts.dropout": 0.3}),
        simulate(pooled, 2),
    ]
    matching = runs_of(measured, [cosine, pooled], Setting(overrides=requested))
    assert [(run.row, run.seed) for run in matching.all] == [(cosine, 1), (pooled, 1)]
    assert matching.left_out == 2
    assert matching.setting.changed == ["encoder.pooling mean", "tasks.*.dropout 0.3"]
    with pytest.raises(UserError, match="tasks.sst.dropuot: unknown param"):
        runs_of(measured, [cosine], Setting(overrides={"tasks.sst.dropuot": 0.3}))


def test_overrides_of_a_run_need_not_fit_other_rows():
    alone, both = "smart-sst-lambda-1", "smart-concat-smart-simultaneous"
    measured = [*seeds(alone), *seeds(both), simulate(both, overrides={"surgery.method": "pcgrad"})]
    assert runs_of(measured, [alone, both], Setting()).left_out == 1
    selected = runs_of(measured, [alone, both], Setting(overrides={"surgery.method": "pcgrad"}))
    assert [run.row for run in selected.all] == [both]


def test_rows_of_another_tool_match_any_overrides():
    overrides = {"finetune.lr": 3e-5}
    measured = [simulate("trainer", budget="paper"), simulate("real", budget="paper", overrides=overrides)]
    matching = runs_of(measured, ["trainer", "real"], Setting(overrides=overrides))
    assert [run.row for run in matching.all] == ["trainer", "real"] and matching.left_out == 0


def test_flags_round_trip():
    setting = Setting("quick", "cs224n", "a model", {"schedule.tasks": ["sst", "qqp"], "optimizer.max_grad_norm": None})
    words = shlex.split(setting.flags)
    assert words[:6] == ["--budget", "quick", "--source", "cs224n", "--encoder", "a model"]
    assert parse_settings([word for word in words[6:] if word != "-S"]) == setting.overrides
    command = "bertrio recipes run smart --budget quick -S optimizer.max_grad_norm=null -S "
    assert setting.run_command("smart").startswith(command)
    assert Setting().run_command("smart", "beyond") == "bertrio recipes run smart beyond"


@pytest.mark.parametrize(
    ("measured", "setting", "message"),
    [
        (seeds(A), Setting("paper"), "no runs --budget paper, but\n  --budget quick"),
        ([simulate(A, overrides=FIVE)], Setting(overrides=SIX), "no runs -S smart.lambda=6, .*\n.*smart.lambda=5: 1 r"),
        ([simulate(A, name="one"), simulate(A, name="two")], Setting(), "two runs of .* have seed 1, one and two"),
    ],
)
def test_no_matching_runs_error_lists_the_existing_ones(measured, setting, message):
    with pytest.raises(UserError, match=message):
        runs_of(measured, [A], setting)
    assert not runs_of(seeds(A), [B], Setting("paper")).all  # a row without runs is no error


@pytest.mark.parametrize("metric", ["sst", "sts", "overall_mean", "overall_normalized"])
@pytest.mark.parametrize("count", [1, 3])
def test_difference_is_that_of_the_means(metric, count):
    a, b = seeds("a", count), seeds("b", count, skill=0.8)
    difference = differ(a, b, metric)
    means = [np.mean([value_of(run, metric) for run in side]) for side in (a, b)]
    assert (difference.first, difference.second) == pytest.approx(means)
    assert difference.low < difference.difference < difference.high
    assert difference.rows_alone == (count == 1)


def test_incomparable_runs_are_an_error():
    without = simulate("b", metrics={"dev": {"qqp": {"accuracy": 0.7}}, "test": {}})
    other_rows = "b and a were measured on other dev rows of sst"
    for second, message in ((seeds("b", data=1), other_rows), ([without], "b has no sst on dev")):
        with pytest.raises(UserError, match=message):
            differ(seeds("a"), second, "sst")
