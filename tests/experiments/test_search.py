"""Searches over runs that are functions of their params; the last test runs DVC."""

import json
import math
import sys
from pathlib import Path

import optuna
import pandas as pd
import pytest
from filelock import FileLock

from bertrio.cli.main import main
from bertrio.core.errors import UserError
from bertrio.experiments import search as module
from bertrio.experiments.revision import Revision, find_experiments
from bertrio.experiments.search import CHECKPOINTS, parse_space, read_epochs, search, values_at
from bertrio.training import monitoring
from tests.experiments.planted import Planted
from tests.toy_project import toy_project

SPACE = ["finetune.lr=log:1e-5:1e-2", "smart.lambda=0,1,5", "tasks.sst.dropout=uniform:0:0.5"]
EPOCHS = 4


def epoch_line(epoch: int, score: float, stage: str = "finetune@base", last: bool = False) -> str:
    return json.dumps({"stage": stage, "epoch": epoch, "dev_overall_normalized": score, "last": last}) + "\n"


class Project(Planted):
    """Fake runs of four epochs, best at lr 1e-3 and dropout 0.2; `runs` lists the started ones."""

    def __init__(self, folder, root):
        super().__init__(folder, root)
        self.runs, self.stop_before, self.fails = [], None, None

    def run_experiment(self, name, settings, watch, environment):
        lr, dropout = settings["finetune"]["lr"], settings["tasks"]["sst"]["dropout"]
        if name in self.names:
            return
        if len(self.runs) == self.stop_before:
            raise KeyboardInterrupt
        self.runs.append(lr)
        if len(self.runs) == self.fails:
            raise UserError(f"{name}: ran out of memory")
        penalty = abs(math.log10(lr) + 3) / 4 + abs(dropout - 0.2)
        for epoch in range(1, EPOCHS + 1):
            with open(environment[monitoring.PROGRESS], "a") as file:
                file.write(epoch_line(epoch, 0.9 - penalty - 0.2 / epoch, last=epoch == EPOCHS))
            watch()
        self.experiment(name, settings, overall_normalized=0.9 - penalty, sst={"accuracy": 0.5})


@pytest.fixture
def project(tmp_path, root, monkeypatch):
    (tmp_path / "project").mkdir()
    project = Project(tmp_path / "project", root)
    monkeypatch.chdir(project.folder)
    monkeypatch.setattr(module, "run_experiment", project.run_experiment)
    return project


@pytest.fixture
def run(project, tmp_path):
    def start(trials, space=SPACE, **options):
        return search(space, trials, **{"out": tmp_path / "out", **options})

    return start


def points(study):
    return [(trial.params, trial.value) for trial in study.trials if trial.state.is_finished()]


def test_resumed_search_tries_the_same_points(project, run, tmp_path, capsys):
    uninterrupted = run(8, out=tmp_path / "whole")
    started, project.runs = project.runs, []
    for name in project.names:
        project.remove(name)
    project.stop_before = 4
    with pytest.raises(KeyboardInterrupt):
        run(8)
    assert "the same command continues search-" in capsys.readouterr().err
    project.stop_before = None
    run(6)
    assert points(run(8)) == points(uninterrupted)
    assert project.runs == started
    assert points(run(5)) == points(uninterrupted), "extra trials are kept"


def test_bad_runs_are_pruned_before_their_last_epoch(run):
    study = run(25)
    pruned = [trial for trial in study.trials if trial.state.name == "PRUNED"]
    assert 3 < len(pruned) < 20 and all(1 <= len(trial.intermediate_values) < EPOCHS for trial in pruned)
    assert all(len(trial.intermediate_values) == EPOCHS for trial in study.trials if trial not in pruned)


def test_files_and_output_name_the_best_trial(project, run, tmp_path, capsys):
    study = run(12, prune="none")
    name = study.best_trial.user_attrs["experiment"]
    settings = Revision.open(name).settings()
    assert settings["finetune"]["lr"] == pytest.approx(study.best_params["finetune.lr"], rel=1e-3)
    (folder,) = (tmp_path / "out").iterdir()
    table = pd.read_csv(folder / "trials.csv")
    assert table["trial"][0] == study.best_trial.number and len(table) == 12
    assert table["score"].is_monotonic_decreasing
    for text in ((folder / "trials.md").read_text(), capsys.readouterr().out):
        assert f"`dvc exp apply {name}`" in text and "optimistic" in text and "Importance: " in text


def test_failed_run_does_not_stop_the_search(project, run):
    project.fails = 2
    with pytest.raises(UserError, match="1 runs failed; .*\n  trial 1: search-.*: ran out of memory"):
        run(4)
    assert len(project.runs) == 4
    assert [trial.state.name for trial in run(4).trials] == ["COMPLETE", "FAIL", *["COMPLETE"] * 3]


def test_equal_params_run_once_and_invalid_ones_never(project, run):
    space = ["smart.lambda=0,1", "surgery.method=none,pcgrad", "schedule.name=joint,sequential"]
    study = run(8, space=space, prune="none")
    ran = {trial.user_attrs.get("experiment") for trial in study.trials} - {None}
    assert len(project.runs) == len(ran) < 8
    reasons = [trial.user_attrs.get("why", "") for trial in study.trials]
    assert any(reason.startswith("invalid: params.yaml: surgery.method: found pcgrad") for reason in reasons)


def test_search_is_locked_and_identified_by_its_params(project, run, tmp_path):
    run(1)
    (folder,) = (tmp_path / "out").iterdir()
    with FileLock(folder / "lock"), pytest.raises(UserError, match="another process runs this search"):
        run(1)
    file = project.folder / "params.yaml"
    file.write_text(file.read_text().replace("max_grad_norm: 1.0", "max_grad_norm: 2.0", 1))
    run(1)
    assert len(list((tmp_path / "out").iterdir())) == len(project.runs) == 2


@pytest.mark.parametrize(
    ("message", "param", "options"),
    [
        (r"finetune\.lrr: unknown param; did you mean finetune\.lr\?", "finetune.lrr", {}),
        ("the search sets smart.lambda; leave out one", "smart.lambda", {"overrides": {"smart.lambda": 2}}),
        ("runtime.seed: the best of several seeds is the luckiest", "runtime.seed", {}),
        ("--metric sst3: expected overall_normalized", "smart.lambda", {"metric": "sst3"}),
        ("smart-concta: is not in", "smart.lambda", {"base": "smart-concta"}),
    ],
)
def test_invalid_arguments_are_errors_before_any_run(root, tmp_path, monkeypatch, message, param, options):
    monkeypatch.chdir(root)
    monkeypatch.setattr(module, "run_experiment", None)
    with pytest.raises(UserError, match=message):
        search([f"{param}=1,2"], 2, out=tmp_path, **options)


def test_read_epochs_skips_other_members_and_incomplete_lines(tmp_path):
    path = tmp_path / "epochs.jsonl"
    assert read_epochs(path, "dev_overall_normalized") == []
    others = epoch_line(1, 0.9, "prefinetune") + epoch_line(1, 0.5, "finetune@b")
    path.write_text(epoch_line(1, 0.1) + others + epoch_line(2, 0.2, last=True) + '{"stage": "finet')
    assert read_epochs(path, "dev_overall_normalized") == [(1, 0.1, False), (2, 0.2, True)]


STAGE = """
import json, os, time
from pathlib import Path
import yaml
from bertrio.training.monitoring import report_epoch

weight = yaml.safe_load(open("params.yaml"))["smart"]["lambda"]
folder = Path(os.environ["BERTRIO_CHECKPOINTS"])
folder.mkdir(parents=True, exist_ok=True)
os.environ["DVC_STAGE"] = "finetune@base"
for epoch in (1, 2):
    report_epoch({"epoch": epoch, "dev_overall_normalized": -weight}, last=epoch == 2)
    if weight == 5:
        Path(os.environ["PIDS"]).write_text(str(os.getpid()))
        time.sleep(120)
Path("metrics").mkdir(exist_ok=True)
Path("metrics/evaluation.json").write_text(json.dumps({"dev": {"overall_normalized": -weight}}))
"""


@pytest.mark.heavy
def test_pruned_dvc_run_leaves_no_processes_or_copies(root, tmp_path, monkeypatch, warm):
    folder = tmp_path / "project"
    folder.mkdir()
    metrics = [{"metrics/evaluation.json": {"cache": False}}]
    project = toy_project(folder, STAGE, (root / "params.yaml").read_text(), warm.python, metrics=metrics)
    (folder / "recipes").mkdir()
    (folder / "recipes/budgets.yaml").write_text("paper: {title: as it is, multiply: {}, set: {}}\n")
    (folder / "recipes/toy.yaml").write_text("title: A\noverall: normalized\nbase: {}\ntables: {}\n")
    project.commit()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(root / "src"))
    monkeypatch.setenv("PIDS", str(tmp_path / "pid"))
    monkeypatch.delenv(CHECKPOINTS, raising=False)
    monkeypatch.setattr(
        optuna.trial.Trial, "should_prune", lambda trial: min(trial.study.trials[-1].intermediate_values.values()) < -2
    )
    study = search(["smart.lambda=0,5"], 3, out=tmp_path / "out")
    assert {trial.state.name for trial in study.trials} == {"COMPLETE", "PRUNED"} and study.best_value == 0
    assert list(find_experiments()) == [study.best_trial.user_attrs["experiment"]]
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()
    assert not list((folder / ".dvc/tmp/exps/standalone").glob("tmp*"))
    assert not list((tmp_path / "out").glob("*/checkpoints*")) and project.git("status", "--porcelain") == ""


def test_parse_space():
    choices = "a.t=[sst, qqp],[sts],null,1.23456e-4"
    space = parse_space(["a.lr=log:1e-5:1e-4", "a.b=uniform:0:0.5", "a.n=int:1:4", choices])
    assert space["a.lr"] == optuna.distributions.FloatDistribution(1e-5, 1e-4, log=True)
    assert space["a.b"] == optuna.distributions.FloatDistribution(0, 0.5)
    assert space["a.n"] == optuna.distributions.IntDistribution(1, 4)
    point = {"a.lr": 1.23456e-5, "a.b": 0.499999, "a.n": 3}
    assert values_at(point) == {"a.lr": 1.235e-5, "a.b": 0.5, "a.n": 3}
    values = [values_at({"a.t": choice})["a.t"] for choice in space["a.t"].choices]
    assert values == [["sst", "qqp"], ["sts"], None, 1.23456e-4]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a..b=1,2", "expected a dotted param, named once, and its values"),
        ("a.lr=1,2", "expected a dotted param, named once"),
        ("a.n=1e-5", "found one value.*expected log:LOW:HIGH"),
        ("a.n=log:1e-3:1e-5", "found no range from a lower to a higher number"),
        ("a.n=int:1:2.5", "int:1:2.5: found no two whole numbers after int; expected log:LOW:HIGH"),
        ("a.n=log:1e-5", "log:1e-5: found no two numbers after log; expected log:LOW:HIGH"),
    ],
)
def test_invalid_space_is_an_error(text, message):
    with pytest.raises(UserError, match=message):
        parse_space(["a.lr=1,2", text])


def test_missing_optuna_error_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(["search", "finetune.lr=1e-5,2e-5"]) == 2
    assert "search: needs the package optuna; install it with: pip install 'bertrio[search]'" in capsys.readouterr().err
