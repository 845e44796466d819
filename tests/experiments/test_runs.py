"""The table of a repository's runs and its page, with planted experiments and one queued by DVC."""

import copy
import csv
import io

import pytest

from bertrio.cli.main import main
from bertrio.config.loading import read_yaml
from bertrio.core.files import write_json, write_text
from bertrio.experiments import dvc_experiments, runs
from bertrio.experiments.recipes.params import set_param
from bertrio.experiments.revision import WORKSPACE, Revision
from bertrio.experiments.runs import Run, read_run, read_runs, tabulate, write_page
from tests.experiments.planted import Planted

EVIL = '<script>alert(1)</script> "x" & <b>'
STAGE = "stages:\n  train:\n    cmd: exit 1\n    params: [finetune.epochs]\n"


@pytest.fixture(scope="module")
def project(root, tmp_path_factory, warm) -> Planted:
    """Three finished experiments, a queued one, and a workspace with a changed param."""
    project = Planted(tmp_path_factory.mktemp("runs"), root, warm.python)
    params = read_yaml(root / "params.yaml")
    quick_a = {"finetune.lr": 3e-5, "runtime.device": "cpu"}
    runs = (("plain", 0.5, {}), ("quick-a", 0.7, quick_a), ("quick-b", 0.6, {"finetune.epochs": 1}))
    for name, score, changes in runs:
        settings = copy.deepcopy(params)
        for param, value in changes.items():
            set_param(settings, param, value)
        scores = {"sst": {"accuracy": score}, "qqp": {"accuracy": 1 - score}, "overall_normalized": score}
        project.experiment(name, settings, **scores)
    write_text(project.folder / "dvc.yaml", STAGE)
    project.dvc("exp", "run", "-q", "--queue", "-n", "later", "-S", "finetune.epochs=7")
    project.dvc("config", "--local", "core.analytics", "false")
    text = (root / "params.yaml").read_text()
    write_text(project.folder / "params.yaml", text.replace("\n  epochs: 3", "\n  epochs: 9", 1))
    return project


@pytest.fixture
def in_project(project, monkeypatch):
    monkeypatch.chdir(project.folder)


def test_runs_are_listed_best_first_with_their_changes(in_project, capsys):
    assert main(["runs", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["name"], row["state"], row["overall"], row["changed"]) for row in rows] == [
        ("quick-a", "", "0.7", "finetune.lr=3e-05"),
        ("quick-b", "", "0.6", "finetune.epochs=1"),
        ("plain", "", "0.5", ""),
        ("HEAD", "no metrics", "", ""),
        ("later", "queued", "", "finetune.epochs=7"),
        ("workspace", "no metrics", "", "finetune.epochs=9"),
    ]
    assert (float(rows[0]["low"]), float(rows[0]["high"])) == pytest.approx((0.68, 0.72))


def test_runs_by_name_sorted_and_formatted(in_project, capsys):
    assert main(["runs", "quick-*", "plain", "--sort", "qqp", "--format", "md"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in lines] == ["name", ":--------", "plain", "quick-b", "quick-a"]
    assert main(["runs"]) == 0
    printed = capsys.readouterr().out
    assert "0.700 [0.680, 0.720]" in printed and "queued" in printed
    for arguments, message in ((["quick_a"], "did you mean quick-a?"), (["--sort", "sts"], "expected one of name")):
        assert main(["runs", *arguments]) == 2
        assert message in capsys.readouterr().err


def test_run_has_minutes_and_the_mean_curve_of_its_members(run_of, root):
    folder = run_of("curves", ensemble={"members": {"one": {}, "two": {}}})
    write_json(folder / "metrics/timing.json", {"split": {"seconds": 30}, "finetune-one": {"seconds": 60}})
    for name, last in (("one", 0.6), ("two", 0.8)):
        write_text(folder / f"plots/history/{name}.csv", f"step,dev_overall_normalized\n10,0.5\n20,{last}\n")
    run = read_run(Revision.open(WORKSPACE, folder))
    assert run.minutes == 1.5 and run.curve == pytest.approx({10: 0.5, 20: 0.7})


def test_running_and_failed_experiments_have_a_state_and_no_scores(in_project, project, monkeypatch):
    """DVC shows the scores of their baseline for them, as for queued experiments."""
    commit = project.git("rev-parse", "refs/exps/celery/stash").strip()
    rows = [{"typ": "baseline", "rev": "main", "State": None, "Experiment": None}]
    rows += [
        {"typ": "branch_commit", "rev": commit, "State": state, "Experiment": name, "dev.sst": 0.5}
        for name, state in (("going", "Running"), (None, "Failed"), ("plain", None))
    ]
    monkeypatch.setattr("dvc.api.exp_show", lambda *arguments, **options: rows)
    states = {run.name: run.state for run in read_runs() if not run.scores}
    assert states["going"] == "running" and states[commit] == "failed"
    assert dvc_experiments.queued() == {"going"}


def test_page_shows_scores_curves_and_params_escaped(tmp_path):
    def run(name, at, **fields):
        return Run(name, {"a": EVIL, "b": name, "c": "same"}, {"sst accuracy": (at, at - 0.1, at + 0.1)}, **fields)

    scored = [run(EVIL, 0.5, curve={10: 0.4}), run("two", 0.7, curve={10: 0.5, 20: 0.7})]
    queued = Run("waits", {}, {}, "queued")
    old = Run("without an interval", {}, {"sst accuracy": (0.6, float("nan"), float("nan"))})
    write_page([*scored, old, queued], "overall", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "alert" in page and EVIL not in page and "<b>" not in page
    assert page.count("<polyline") == 2 and page.count('class="span"') == 2 and "queued" in page
    assert "<title>without an interval: 0.600</title>" in page
    assert "http" not in page.replace("http-equiv", "") and 'src="' not in page
    head = page.partition("<thead>")[2].partition("</thead>")[0]
    assert head.index("minutes") < head.index(">a<") < head.index(">b<") < head.index(">c<")
    write_page([queued], "name", tmp_path / "empty.html")
    assert "No run has scores yet." in (tmp_path / "empty.html").read_text()


def test_runs_without_intervals_have_scores():
    scores = runs.scores_of({"sst": {"accuracy": 0.5, "mae": 1.0}, "overall_normalized": 0.6}, {})
    table = tabulate([Run("old", {}, scores)])
    assert table.loc[0, ["sst", "overall"]].tolist() == [0.5, 0.6] and table["low"].isna().all()


def test_dvc_without_scm_is_an_error(in_project, project, capsys):
    project.dvc("config", "--local", "core.no_scm", "true")
    assert main(["runs"]) == 2
    project.dvc("config", "--local", "--unset", "core.no_scm")
    message = capsys.readouterr().err
    assert "dvc exp show failed: " in message and "Traceback" not in message and message.count("\n") == 1
