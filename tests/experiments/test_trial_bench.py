"""Trials as real DVC experiments, of a project whose one stage tells its epochs as training does."""

import json
import os
from pathlib import Path

import pytest

from bertrio.core.errors import UserError
from bertrio.experiments.dvc_experiments import experiments
from bertrio.experiments.plan import Plan
from bertrio.experiments.recipes.rows import load_recipes
from bertrio.experiments.space import parse_space
from bertrio.experiments.trial_bench import CHECKPOINTS, Outcome, TrialBench, _Scores
from bertrio.training import checkpoints, progress
from tests.toy_project import toy_project

STAGE = """
import json, os, time
from pathlib import Path
import yaml
from bertrio.training.progress import report_epoch

weight = yaml.safe_load(open("params.yaml"))["smart"]["lambda"]
folder = Path(os.environ["BERTRIO_CHECKPOINTS"])
folder.mkdir(parents=True, exist_ok=True)
(folder / "state").write_text(str(os.getpid()))
for epoch in range(1, 4):
    score = weight / 10 + epoch / 100
    report_epoch({"epoch": epoch, "dev_sst_accuracy": 0.5, "dev_overall_normalized": score}, last=epoch == 3)
    if weight == 5 and epoch == 2:
        Path(os.environ["PIDS"]).write_text(str(os.getpid()))
        time.sleep(120)
dev = {"sst": {"accuracy": 0.5, "macro_f1": 0.4}, "overall_normalized": score}
Path("metrics").mkdir(exist_ok=True)
Path("metrics/evaluation.json").write_text(json.dumps({"dev": dev}))
Path("metrics/timing.json").write_text(json.dumps({"finetune-base": {"seconds": 3.0}}))
"""
PAPER = "title: A toy\noverall: normalized\ndata: {}\nbase: {}\ntables: {}\n"
BUDGETS = "paper: {title: as it is, multiply: {}, set: {}}\n"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    root = Path(__file__).parents[2]
    metrics = [{f"metrics/{name}.json": {"cache": False}} for name in ("evaluation", "timing")]
    made = toy_project(folder, STAGE, (root / "params.yaml").read_text(), metrics=metrics)
    (folder / "recipes").mkdir()
    (folder / "recipes/toy.yaml").write_text(PAPER)
    (folder / "recipes/budgets.yaml").write_text(BUDGETS)
    made.commit()
    return made


@pytest.fixture
def bench(project, root, tmp_path, monkeypatch):
    """Makes the bench of a search; the toy's stage tells as if it were training."""
    monkeypatch.setenv("PYTHONPATH", str(root / "src"))
    monkeypatch.setenv("PIDS", str(tmp_path / "pid"))
    monkeypatch.delenv(CHECKPOINTS, raising=False)
    monkeypatch.setattr("bertrio.experiments.trial_bench.STAGE", "train")

    def make(**plan):
        plan = Plan(parse_space(["smart.lambda=0,1,5"]), **plan)
        return TrialBench(plan, "toy", tmp_path / "out", load_recipes(project.folder / "recipes"), project.folder)

    return make


def test_a_run_tells_its_epochs_in_order_and_its_score(bench, project, tmp_path):
    told = []
    outcome = bench().run(1, {"smart.lambda": 1}, lambda score, last: told.append((score, last)))
    assert outcome == Outcome(pytest.approx(0.13), 3.0)
    assert told == [(pytest.approx(0.1 + epoch / 100), epoch == 3) for epoch in (1, 2, 3)]
    assert "toy-t1" in experiments(project.folder)
    again = []
    assert bench().run(1, {"smart.lambda": 1}, lambda score, last: again.append((score, last))) == outcome
    assert again == told  # a search that was stopped before it wrote the trial down
    assert not list((tmp_path / "out").glob("checkpoints*"))
    by_task = []
    assert bench(metric="sst").run(1, {"smart.lambda": 1}, lambda score, last: by_task.append(score)).score == 0.5
    assert by_task == [0.5, 0.5, 0.5]


def test_a_run_that_is_given_up_is_over_and_leaves_nothing(bench, project, tmp_path):
    assert bench().run(2, {"smart.lambda": 5}, lambda score, last: score > 0.515) is None
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()
    assert "toy-t2" not in experiments(project.folder)
    assert not list((project.folder / ".dvc/tmp/exps/standalone").glob("tmp*"))  # DVC's copy of the repository
    assert not list((tmp_path / "out").glob("checkpoints*"))
    assert project.git("status", "--porcelain") == ""


def test_params_that_can_not_be_run_are_told(bench):
    assert bench().refusal({"smart.lambda": 1}) is None
    refusal = bench(overrides={"finetune.lr": 1e-4}).refusal({"smart.lambdda": 1, "tasks.sst.dropout": 3})
    assert refusal.startswith("tasks.sst.dropout: expected less than 1, found 3; smart.lambdda: unknown param")
    with pytest.raises(UserError, match="--metric sts2: expected overall_normalized, overall_mean, sst, qqp, sts"):
        bench(metric="sts2")
    with pytest.raises(UserError, match="no such row"):
        bench(base="toy-x")


def test_epochs_are_read_once_whatever_a_killed_run_left(tmp_path):
    """Half a line at the end, an epoch told twice, one after a restart, other stages and members: each epoch once."""
    scores, lines = _Scores(tmp_path / "1.jsonl", "dev_x"), []

    def write(*more: str) -> list:
        lines.extend(more)
        scores.path.write_text("".join(lines))
        return list(scores.new())

    def line(epoch: int, stage: str = "finetune@a", last: bool = False) -> str:
        return json.dumps({"stage": stage, "epoch": epoch, "dev_x": epoch / 10, "last": last}) + "\n"

    assert list(scores.new()) == []
    assert write(line(1, "prefinetune"), line(1)) == [(0.1, False)]
    assert write('{"stage": "finetune@a", "epo') == []
    assert write("ch\n", line(1), line(2), line(3, last=True)) == [(0.2, False), (0.3, True)]
    assert write(line(1, "finetune@b"), line(4, "finetune@b")) == []
    assert list(_Scores(scores.path, "dev_x").new(over=True)) == [(0.1, False), (0.2, False), (0.3, True)]
    assert list(_Scores(scores.path, "dev_y").new(over=True)) == []


@pytest.mark.parametrize(
    ("told", "given"),
    [
        ([(1, 7)], [7]),  # a run of other code begins anew
        ([(1, 7), (2, 8)], [7, 8]),
        ([(3, 7)], [1, 2, 7]),  # one that goes on after its second epoch
        ([(2, 2), (3, 7)], [1, 2, 7]),  # one that was stopped before a checkpoint had the second
    ],
)
def test_what_an_earlier_run_told_counts_where_a_run_goes_on_from_it_and_nowhere_else(tmp_path, told, given):
    path = tmp_path / "1.jsonl"

    def write(stage: str, *epochs: tuple[int, float]) -> None:
        with open(path, "a") as file:
            for epoch, score in epochs:
                file.write(json.dumps({"stage": stage, "epoch": epoch, "dev_x": score, "last": False}) + "\n")

    write("finetune@a", (1, 1), (2, 2))
    write("finetune@b", (1, 9))
    scores = _Scores(path, "dev_x")
    assert list(scores.new()) == [], "nobody knows yet whether this run goes on"
    write("finetune@a", *told)
    assert [score for score, _ in scores.new()] == given
    write("finetune@b", (1, 9), (2, 9))
    assert list(scores.new(over=True)) == []


def test_a_run_that_ends_well_and_tells_nothing_has_what_was_told_before_it(tmp_path):
    """Its last epoch was scored when it was stopped, or its model came out of DVC's cache."""
    path = tmp_path / "1.jsonl"
    path.write_text(json.dumps({"stage": "finetune@a", "epoch": 1, "dev_x": 0.5, "last": True}) + "\n")
    scores = _Scores(path, "dev_x")
    assert list(scores.new()) == []
    assert list(scores.new(over=True)) == [(0.5, True)]


def test_a_failed_trial_is_not_judged_by_what_it_scored_before_it_was_mended(bench, tmp_path):
    (tmp_path / "out").mkdir()
    old = [{"stage": "train", "epoch": epoch, "dev_overall_normalized": -1.0, "last": False} for epoch in (1, 2)]
    (tmp_path / "out/epochs-t3.jsonl").write_text("".join(json.dumps(line) + "\n" for line in old))
    told = []
    assert bench().run(3, {"smart.lambda": 0}, lambda score, last: told.append(score) or score < 0)
    assert told == [pytest.approx(epoch / 100) for epoch in (1, 2, 3)]


def test_what_tells_of_epochs_never_ends_a_run(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv(progress.VARIABLE, raising=False)
    progress.report_epoch({"epoch": 1}, last=False)
    monkeypatch.setenv(progress.VARIABLE, str(tmp_path / "none/progress.jsonl"))
    progress.report_epoch({"epoch": 1}, last=False)
    assert "can't be written (No such file or directory)" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def test_the_variable_is_that_of_the_checkpoints():
    assert checkpoints.VARIABLE == CHECKPOINTS
