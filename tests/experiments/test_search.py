"""The search itself, on runs that are pure functions of their params; and among real DVC experiments at the end."""

import argparse
import inspect
import json
import math
import sys
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest

from bertrio.cli.search import add_search_commands
from bertrio.core.errors import UserError
from bertrio.experiments import dvc_experiments
from bertrio.experiments.plan import Plan
from bertrio.experiments.proposer import Proposer
from bertrio.experiments.revision import Revision
from bertrio.experiments.search import explore, search
from bertrio.experiments.space import Choice, Range, parse_space, values_at
from bertrio.experiments.trial_bench import Outcome
from bertrio.experiments.trials import best, read_trials, write_trials
from bertrio.training import progress
from bertrio.training.folder_lock import FolderLock
from tests.experiments.planted import Planted

pytest.importorskip("optuna", reason="needs the extra search")

SPACE = parse_space(["finetune.lr=log:1e-5:1e-2", "smart.lambda=0,1,5", "tasks.sst.dropout=uniform:0:0.5"])
EPOCHS = 4


class Bench:
    """Runs of four epochs, best at lr 1e-3 and dropout 0.2; `runs` is what was started, in order."""

    def __init__(self, stop_before=None, refuses=lambda values: None, fails=()):
        self.runs, self.stop_before, self.refuses, self.fails = [], stop_before, refuses, fails

    def experiment(self, number):
        return f"run-t{number}"

    def refusal(self, values):
        return self.refuses(values)

    def run(self, number, values, stops):
        if number == self.stop_before:
            raise KeyboardInterrupt
        self.runs.append(number)
        if number in self.fails:
            stops(0.5, False)
            raise UserError("ran out\nof memory")
        worse = abs(math.log10(values["finetune.lr"]) + 3) / 4 + abs(values["tasks.sst.dropout"] - 0.2)
        scores = [0.9 - worse - 0.2 / epoch for epoch in range(1, EPOCHS + 1)]
        for epoch, score in enumerate(scores, start=1):
            if stops(score, epoch == EPOCHS):
                return None
        return Outcome(max(scores), 60.0)


def run(bench, plan, count, known=()):
    return [list(known), *[trials for _, trials in explore(plan, bench, count, known)]][-1]


@pytest.mark.parametrize("prune", ["median", "hyperband", "none"])
@pytest.mark.parametrize("stop", [1, 5, 12, 23])
def test_what_was_stopped_goes_on_as_if_nothing_had_been(prune, stop, tmp_path):
    """Stopped in trial `stop` and started again from its files: the same trials, and none of the others runs twice."""
    plan = Plan(SPACE, prune=prune)
    whole = Bench()
    trials = run(whole, plan, 24)
    first = Bench(stop_before=stop)
    with suppress(KeyboardInterrupt):
        for _, made in explore(plan, first, 24):
            write_trials(made, tmp_path, plan, ["title"])
    assert len(first.runs) < len(whole.runs)
    again = Bench()
    assert run(again, plan, 24, read_trials(tmp_path, plan)) == trials
    assert first.runs + again.runs == whole.runs


def test_more_trials_begin_with_those_that_there_are():
    plan = Plan(SPACE)
    ten = run(Bench(), plan, 10)
    bench = Bench()
    assert run(bench, plan, 15, ten) == run(Bench(), plan, 15)
    assert set(bench.runs) <= set(range(11, 16))
    assert run(bench, plan, 5, ten) == ten


def test_other_seeds_try_other_points():
    tried = [[trial.point for trial in run(Bench(), Plan(SPACE, seed=seed), 3)] for seed in (1, 1, 2)]
    assert tried[0] == tried[1] != tried[2]


def test_it_finds_better_points_than_chance():
    trials = run(Bench(), Plan(SPACE, prune="none"), 40)
    early, late = ([trial.score for trial in trials[part]] for part in (slice(10), slice(30, 40)))
    assert sum(late) / 10 > sum(early) / 10 + 0.05
    assert best(trials).score > 0.8


@pytest.mark.parametrize("prune", ["median", "hyperband"])
def test_hopeless_runs_are_given_up_and_the_last_epoch_never_is_the_reason(prune):
    trials = run(Bench(), Plan(SPACE, prune=prune), 40)
    pruned = [trial for trial in trials if trial.state == "pruned"]
    assert 5 < len(pruned) < 35
    assert all(1 <= len(trial.epochs) < EPOCHS and trial.score is None for trial in pruned)
    assert all(len(trial.epochs) == EPOCHS for trial in trials if trial.state == "finished")


def test_none_gives_nothing_up():
    assert {trial.state for trial in run(Bench(), Plan(SPACE, prune="none"), 30)} == {"finished"}


def test_params_that_do_not_go_together_are_told_and_not_run():
    def refuses(values):
        return "5 and dropout don't combine" if values["smart.lambda"] == 5 else None

    bench = Bench(refuses=refuses)
    trials = run(bench, Plan(SPACE, prune="none"), 30)
    refused = [trial for trial in trials if trial.state == "refused"]
    assert refused and {trial.why for trial in refused} == {"5 and dropout don't combine"}
    assert not {trial.number for trial in refused} & set(bench.runs)
    assert len(refused) < 10  # it learns to stay away


def test_a_failed_run_hinders_no_other_and_is_tried_again():
    plan = Plan(SPACE, prune="none")
    bench = Bench(fails=(2,))
    trials = run(bench, plan, 5)
    assert bench.runs == [1, 2, 3, 4, 5]
    assert (trials[1].state, trials[1].score, trials[1].why) == ("failed", None, "ran out; of memory")
    again = Bench()
    mended = run(again, plan, 5, trials)
    assert again.runs == [2]
    assert (mended[1].state, mended[1].point) == ("finished", trials[1].point)
    assert [mended[place] for place in (0, 2, 3, 4)] == [trials[place] for place in (0, 2, 3, 4)]


def test_the_same_params_are_run_once():
    class Few(Bench):
        def run(self, number, values, stops):
            self.runs.append(number)
            return Outcome(values["smart.lambda"] / 10, 1.0)

    bench = Few()
    trials = run(bench, Plan(parse_space(["smart.lambda=0,1,5"])), 12)
    assert len(bench.runs) == len({trial.experiment for trial in trials}) == 3
    assert all(trial.score == trial.values["smart.lambda"] / 10 for trial in trials)
    assert {trial.why for trial in trials if trial.number not in bench.runs} <= {
        f"has the params of t{number}" for number in bench.runs
    }


def test_the_files_hold_every_digit_and_the_best_stands_first(tmp_path):
    plan = Plan(parse_space(["finetune.lr=log:1e-5:1e-2", "smart.lambda=0,1,5", "tasks.sst.dropout=uniform:0:0.5"]))
    trials = run(Bench(fails=(3,)), plan, 20)
    write_trials(trials, tmp_path, plan, ["A search", "A note."])
    assert read_trials(tmp_path, plan) == trials
    table = pd.read_csv(tmp_path / "trials.csv")
    assert len(table) == 20 and table["trial"][0] == best(trials).number
    assert list(table["score"].dropna()) == sorted(table["score"].dropna(), reverse=True)
    text = (tmp_path / "trials.md").read_text()
    assert text.startswith("# A search\n\n| trial |") and text.endswith("A note.\n")
    assert "failed: ran out; of memory" in text and "pruned after epoch" in text


def test_trials_of_another_plan_are_not_taken_over(tmp_path):
    plan = Plan(SPACE, base="smart-concat")
    write_trials(run(Bench(), plan, 2), tmp_path, plan, ["title"])
    other = Plan(parse_space(["smart.lambda=0,1"]), base="smart-concat", seed=2)
    with pytest.raises(UserError, match="is of another search.*--study") as error:
        read_trials(tmp_path, other)
    assert "seed: there 1, asked for 2" in str(error.value)
    (tmp_path / "trials.json").write_text('{"plan": 1')
    with pytest.raises(UserError, match="trials.json: is damaged"):
        read_trials(tmp_path, plan)


def test_a_plan_has_one_name_on_every_machine(tmp_path):
    here = Plan(SPACE, overrides={"data.path": str(tmp_path / "cs224n"), "runtime.threads": 2})
    there = Plan(SPACE, overrides={"data.path": "/elsewhere/cs224n"})
    assert here.name == there.name
    others = [
        Plan(SPACE, seed=2),
        Plan(SPACE, prune="none"),
        Plan(SPACE, metric="sst"),
        Plan(SPACE, base="smart-concat"),
    ]
    others.append(Plan(parse_space(["smart.lambda=0,1"])))
    assert len({here.name, *[other.name for other in others]}) == 6


def test_a_space_in_words():
    space = parse_space(
        ["a.lr=log:1e-5:1e-4", "a.b=uniform:0:0.5", "a.n=int:1:4", "a.c=0,1,5e-1", "a.t=[sst, qqp],[sts],null"]
    )
    assert space["a.lr"] == Range("log", 1e-5, 1e-4)
    assert space["a.c"] == Choice((0, 1, 0.5))
    assert space["a.t"] == Choice((["sst", "qqp"], ["sts"], None))
    assert parse_space([f"{param}={of}" for param, of in space.items()]) == space
    point = {"a.lr": 1.23456e-5, "a.b": 0.499999, "a.n": 3, "a.c": 2, "a.t": 1}
    assert values_at(space, point) == {"a.lr": 1.235e-5, "a.b": 0.5, "a.n": 3, "a.c": 0.5, "a.t": ["sts"]}


def test_rounding_stays_in_the_range():
    of = Range("uniform", 0.123456, 0.987654)
    assert all(of.low <= of.value(coordinate) <= of.high for coordinate in (of.low, 0.12345678, 0.98765399, of.high))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr", "expected a dotted param and what it may be"),
        ("a..b=1,2", "expected a dotted param"),
        ("a.lr=1e-5", "found one value.*-S sets a param to one value"),
        ("a.lr=", "found one value|expected"),
        ("a.lr=1,1.0", "a value is given twice"),
        ("a.lr=[1,2", "not valid YAML"),
        ("a.lr=log:0:1", "expected numbers above 0"),
        ("a.lr=log:1e-3:1e-5", "found 1e-3 to 1e-5, expected a number and a greater one"),
        ("a.lr=uniform:0", "expected two numbers after uniform:"),
        ("a.lr=uniform:0:inf", "expected a number and a greater one"),
        ("a.n=int:1:2.5", "expected two whole numbers after int:"),
    ],
)
def test_a_space_that_is_none_is_an_error(text, message):
    with pytest.raises(UserError, match=message):
        parse_space([text])


def test_a_param_twice_is_an_error():
    with pytest.raises(UserError, match="a.lr is given twice"):
        parse_space(["a.lr=1,2", "a.lr=3,4"])


def test_without_optuna_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"needs the package optuna; .*pip install 'bertrio\[search\]'"):
        Proposer(SPACE, 1, "none")


def test_the_command_passes_on_what_it_is_given(monkeypatch):
    parser, given = argparse.ArgumentParser(), {}
    add_search_commands(parser.add_subparsers())
    known = inspect.signature(search)
    monkeypatch.setattr("bertrio.experiments.search.search", lambda *of: given.update(known.bind(*of).arguments))
    line = (
        "search a.b=1,2 c=log:1:2 --trials 7 --base row --budget quick --seed 3 -S x.y=1e-5 --prune none --metric sst"
    )
    args = parser.parse_args([*line.split(), "--study", "mine", "--out", "there"])
    args.run(args)
    assert given == {
        "texts": ["a.b=1,2", "c=log:1:2"],
        "trials": 7,
        "base": "row",
        "budget": "quick",
        "overrides": {"x.y": 1e-5},
        "seed": 3,
        "prune": "none",
        "metric": "sst",
        "study": "mine",
        "out": "there",
    }


@pytest.fixture
def planted(tmp_path, root, make_tables, monkeypatch):
    """A project in which a run is at once done, and the better the nearer dropout of sst is to 0.2."""
    made = Planted(tmp_path, root)
    made.runs, made.broken = [], set()

    def run_experiment(name, settings, root, watch, environment):
        made.runs.append(name)
        if name in made.broken:
            raise UserError(f"{name}: dvc exp run ended with exit code 2")
        skill = 2 - 4 * abs(settings["tasks"]["sst"]["dropout"] - 0.2)
        made.experiment(name, settings, make_tables(1, skill, 40))
        line = {"stage": "finetune@base", "epoch": 1, "dev_overall_normalized": 0.5, "last": True}
        Path(environment[progress.VARIABLE]).write_text(json.dumps(line) + "\n")
        watch()

    monkeypatch.setattr(dvc_experiments, "run_experiment", run_experiment)
    return made


def test_a_search_among_experiments(planted, capsys):
    space, out = ["tasks.sst.dropout=uniform:0:0.9", "smart.lambda=0,1"], planted.folder / "out"
    planted.broken = {"mine-t2"}
    options = {"budget": "quick", "study": "mine", "out": out, "root": planted.folder}
    with pytest.raises(UserError, match="1 of 3 runs failed; the same command tries them again:\n  t2: mine-t2: dvc"):
        search(space, trials=3, **options)
    planted.broken = set()
    trials = search(space, trials=6, **options)
    assert planted.runs == [f"mine-t{number}" for number in (1, 2, 3, 2, 4, 5, 6)]
    assert sorted(planted.names) == [f"mine-t{number}" for number in range(1, 7)]
    top = best(trials)
    assert abs(top.values["tasks.sst.dropout"] - 0.2) == min(abs(of.values["tasks.sst.dropout"] - 0.2) for of in trials)
    settings = Revision.open(top.experiment, planted.folder).settings()
    assert (settings["tasks"]["sst"]["dropout"], settings["smart"]["lambda"]) == tuple(top.values.values())
    text = (out / "mine/trials.md").read_text()
    assert f"Best: **t{top.number}**" in text and f"`dvc exp apply {top.experiment}`" in text
    assert "It was chosen on these rows, which flatters it" in text
    assert "No run had a second epoch, so there was nothing to prune." in text
    told = capsys.readouterr()
    assert "it has one epoch, so there is nothing to prune" in told.err
    assert f"dvc exp apply {top.experiment}" in told.out
    assert search(space, trials=6, **options) == trials
    assert len(planted.runs) == 7


def test_a_search_does_not_go_on_with_other_params_below_its_row(planted):
    space, file = ["smart.lambda=0,1"], planted.folder / "params.yaml"
    options = {"base": "smart-concat", "budget": "quick", "out": planted.folder / "out", "root": planted.folder}
    search(space, trials=1, study="mine", **options)
    file.write_text(file.read_text().replace("max_grad_norm: 1.0", "max_grad_norm: 2.0", 1))
    with pytest.raises(UserError, match="another search.*\n  params.optimizer.max_grad_norm: there 1, asked for 2"):
        search(space, trials=2, study="mine", **options)


def test_what_is_wrong_is_told_before_anything_is_run(planted):
    root, out = planted.folder, planted.folder / "out"
    for message, space, options in [
        ("none of 50 points.*finetune.lrr: unknown param", ["finetune.lrr=1e-5,1e-4"], {}),
        ("none of 50 points.*finetune.epochs", ["finetune.epochs=uniform:0.1:0.9"], {}),
        ("the search sets smart.lambda; leave out one", ["smart.lambda=0,1"], {"overrides": {"smart.lambda": 2}}),
        ("runtime.seed: the best of several seeds is the luckiest", ["runtime.seed=1,2"], {}),
        ("--study a/b: expected", ["smart.lambda=0,1"], {"study": "a/b"}),
        ("--metric sst3: expected overall_normalized", ["smart.lambda=0,1"], {"metric": "sst3"}),
        ("smart-concta: no such row", ["smart.lambda=0,1"], {"base": "smart-concta"}),
        ("no such budget", ["smart.lambda=0,1"], {"budget": "big"}),
    ]:
        with pytest.raises(UserError, match=message):
            search(space, root=root, out=out, **options)
    (planted.folder / "file").touch()
    with pytest.raises(UserError, match="file/mine: can't be written .*--out"):
        search(["smart.lambda=0,1"], study="mine", out=planted.folder / "file", root=root)
    assert planted.runs == []


def test_two_searches_at_a_time_are_not_one(planted):
    out = planted.folder / "out"
    (out / "mine").mkdir(parents=True)
    held = FolderLock(out / "mine")
    held.take("search mine")
    with pytest.raises(UserError, match="search mine: process .* is at work"):
        search(["smart.lambda=0,1"], study="mine", out=out, root=planted.folder)
    held.release()
