"""Revisions of real repositories, git and DVC: one stage copies what a run would have written, and two clones share an
experiment over a bare git repository and a DVC remote that is a folder."""

import json
import shutil
from types import SimpleNamespace

import pytest
import yaml
from ruamel.yaml import YAML

from bertrio.cli.main import main
from bertrio.core.errors import UserError
from bertrio.core.files import write_text
from bertrio.experiments.revision import PREDICTIONS, Revision
from tests.experiments.conftest import tables, write_run
from tests.toy_project import Clone, run, toy_project

STAGE = """
import shutil
import yaml

made = yaml.safe_load(open("params.yaml"))["run"]
for folder in ("predictions", "data", "metrics", "plots"):
    shutil.copytree(f"made/{made}/{folder}", folder, dirs_exist_ok=True)
"""


@pytest.fixture(scope="module")
def clones(tmp_path_factory):
    """A project `mine` with a run that is committed and an experiment, both pushed; and `yours`, a clone with neither.

    The commit tagged `before` has no params.yaml.
    """
    root = tmp_path_factory.mktemp("repository")
    mine = root / "mine"
    mine.mkdir()
    for name, frame in (("base", tables(1)), ("better", tables(2, skill=1.6))):
        write_run(mine / "made" / name, frame, run=name)
        write_text(mine / "made" / name / "plots/history/base.csv", "epoch,step\n1,100\n")
    params = (mine / "made/base/params.yaml").read_text()
    metrics = [{"metrics/evaluation.json": {"cache": False}}]
    project = toy_project(
        mine, STAGE, params, deps=["made"], outs=["predictions", "data", "plots/history/base.csv"], metrics=metrics
    )
    project.git("commit", "-q", "-m", "before")
    project.git("tag", "before")
    run(root, "git", "init", "-q", "--bare", "-b", "main", "origin.git")
    project.git("remote", "add", "origin", str(root / "origin.git"))
    project.dvc("remote", "add", "-q", "-d", "storage", str(root / "storage"))
    project.dvc("repro", "-q")
    project.commit()
    project.git("tag", "base")
    project.git("push", "-q", "-u", "origin", "main")
    project.dvc("push", "-q")
    project.dvc("exp", "run", "-q", "--temp", "-n", "better", "-S", "run=better")
    project.dvc("exp", "push", "-q", "origin", "better")
    run(root, "git", "clone", "-q", str(root / "origin.git"), "yours")
    return SimpleNamespace(mine=project, yours=Clone(root / "yours"))


def test_a_revision_is_read_by_every_name_it_has(clones):
    mine, folder = clones.mine, clones.mine.folder
    commit = mine.git("rev-parse", "base").strip()
    experiment = mine.git("for-each-ref", "refs/exps/*/*/better", "--format=%(objectname)").strip()
    for name in ("base", "HEAD", "main", commit[:9]):
        revision = Revision.open(name, folder)
        assert revision.commit == commit
        assert revision.read(PREDICTIONS) == (folder / "made/base" / PREDICTIONS).read_bytes()
    for name in ("better", experiment, experiment[:8]):
        revision = Revision.open(name, folder)
        assert revision.settings()["run"] == "better"
        assert revision.read(PREDICTIONS) == (folder / "made/better" / PREDICTIONS).read_bytes()
    assert Revision.open("workspace", folder).commit is None
    assert Revision.open("HEAD~1", folder).commit == mine.git("rev-parse", "before").strip()


@pytest.mark.parametrize("name", ["workspace", "main"])
def test_the_workspace_and_a_commit_are_read_alike(clones, name):
    revision = Revision.open(name, clones.mine.folder)
    assert revision.exists(PREDICTIONS) and revision.exists("data/splits/sst")
    assert not revision.exists("predictions/none.parquet")
    assert revision.files("data/splits") == [f"data/splits/{task}/dev.parquet" for task in ("qqp", "sst", "sts")]
    assert revision.files("nowhere") == []
    assert revision.json("metrics/evaluation.json")["selected_on"]["rows"] == "dev"
    assert list(revision.tasks()) == list(yaml.safe_load((clones.mine.folder / "params.yaml").read_text())["tasks"])
    assert len(revision.predictions()) == 3 * 200
    assert list(revision.rows("qqp", "dev")) == ["id", "text_a", "text_b", "label"]
    with pytest.raises(UserError, match="predictions/none.parquet: is missing"):
        revision.read("predictions/none.parquet")


def test_names_that_are_none_are_errors_that_say_what_would_be(clones, tmp_path):
    with pytest.raises(UserError, match="nosuch: there is no such revision; expected workspace, a commit"):
        Revision.open("nosuch", clones.mine.folder)
    with pytest.raises(UserError, match="did you mean better.* gets its name when it ends: if it was stopped, the"):
        Revision.open("beter", clones.mine.folder)
    with pytest.raises(UserError, match="run this from the folder that holds dvc.yaml"):
        Revision.open("HEAD", tmp_path)
    with pytest.raises(UserError, match="before .*: params.yaml: is missing"):
        Revision.open("before", clones.mine.folder).settings()


def test_an_experiment_is_compared_alike_in_two_clones_and_leaves_the_workspace_alone(clones, monkeypatch, capsys):
    with pytest.raises(UserError, match="better: there is no such revision"):
        Revision.open("better", clones.yours.folder)
    clones.yours.dvc("pull", "-q")
    clones.yours.dvc("exp", "pull", "-q", "origin", "better")
    outputs = []
    for clone in (clones.mine, clones.yours):
        monkeypatch.chdir(clone.folder)
        before = clone.git("status", "--porcelain")
        assert main(["compare", "HEAD", "better", "--rows", "2", "--json", ".git/compare.json"]) == 0
        outputs.append(capsys.readouterr().out)
        assert clone.git("status", "--porcelain") == before
    assert outputs[0] == outputs[1] and "better is better than HEAD" in outputs[0]
    result = json.loads((clones.yours.folder / ".git/compare.json").read_text())
    assert {figures["better"] for figures in result["overall"].values()} == {"second"}
    assert result["params"] == {"run": [["base"], ["better"]]}


def test_settings_that_made_a_result_are_stated_though_params_yaml_has_others(clones, tmp_path, monkeypatch, capsys):
    project = Clone(shutil.copytree(clones.mine.folder, tmp_path / "project"))
    project.dvc("exp", "apply", "better")
    project.git("checkout", "-q", "params.yaml")
    monkeypatch.chdir(project.folder)
    assert main(["compare", "HEAD", "workspace", "--json", ".git/compare.json"]) == 0
    assert json.loads((project.folder / ".git/compare.json").read_text())["params"] == {"run": [["base"], ["better"]]}
    capsys.readouterr()
    assert main(["runs", "workspace", "--format", "csv"]) == 0
    assert "run=better" in capsys.readouterr().out
    assert main(["report"]) == 0
    page = " ".join((project.folder / "report.html").read_text().split())
    assert "Changed settings: run = better." in page and "All settings are those" not in page
    warning = page.partition("params.yaml no longer matches this result")[2].partition("</p>")[0]
    assert all(text in warning for text in (": run.", "<code>dvc repro</code>", "<code>dvc exp apply NAME</code>"))
    project.dvc("exp", "apply", "better")
    assert Revision.open("workspace", project.folder).edited_params() == {}
    project.git("checkout", "-q", ".")
    (project.folder / "params.yaml").write_text((project.folder / "params.yaml").read_text() + "more: 1\n")
    assert main(["report"]) == 0
    assert "no longer matches" not in (project.folder / "report.html").read_text(), "no stage depends on it"


def test_params_of_a_run_are_those_of_the_lock_of_its_stages(tmp_path):
    (tmp_path / "params.yaml").write_text(
        "free: 1\nlr: 1e-3\ndata: {files: {a: b}, seed: 0}\nname: null\nensemble: {members: {new: {}}}\n"
    )
    revision = Revision.open("workspace", tmp_path)
    assert revision.run_params["lr"] == 0.001 and revision.edited_params() == {}, "without dvc.lock"
    stages = {
        "split": {"data.files": {}, "name.of.model": None},
        "finetune@base": {"lr": 0.002, "classes": ["no", "yes"]},
        "ensemble": {"ensemble": {"members": {"base": None}}},
        "evaluate": {"ensemble.members": {"base": None}, "lr": 0.003},  # of an earlier run
        "finetune@dropped": {"lr": 0.5},
    }
    locked = {name: {"cmd": "true", "params": {"params.yaml": params}} for name, params in stages.items()}
    with open(tmp_path / "dvc.lock", "w") as file:
        YAML().dump({"schema": "2.0", "stages": {"check": {"cmd": "true"}, **locked}}, file)  # as DVC: no is text
    revision = Revision.open("workspace", tmp_path)
    assert revision.run_params == {
        "free": 1, "lr": 0.002, "data": {"files": {}, "seed": 0}, "name": {"of": {"model": None}},
        "ensemble": {"members": {"base": None}}, "classes": ["no", "yes"],
    }  # fmt: skip
    assert revision.edited_params()["lr"] == (0.002, 0.001)
    (tmp_path / "dvc.lock").write_text("<<<<<<< HEAD\n: a")
    with pytest.raises(UserError, match="workspace: dvc.lock: is not valid YAML"):
        Revision.open("workspace", tmp_path).tasks()


def test_without_git_the_workspace_has_a_report_and_revisions_are_one_message(clones, tmp_path, monkeypatch, capsys):
    folder = shutil.copytree(clones.mine.folder, tmp_path / "project", ignore=shutil.ignore_patterns(".git"))
    monkeypatch.chdir(folder)
    assert main(["report"]) == 0
    assert "There is no commit to compare them with" in (folder / "report.html").read_text()
    capsys.readouterr()
    for command in (["report", "HEAD"], ["report", "--baseline", "HEAD"], ["compare", "HEAD", "workspace"]):
        assert main(command) == 2
        expected = f"error: {folder} is no git clone with dvc.yaml; run this from the folder that holds dvc.yaml\n"
        assert capsys.readouterr().err == expected


def test_what_the_cache_has_lost_is_an_error_that_says_how_to_get_it(clones, monkeypatch, capsys):
    """Last, since it takes the cache away."""
    monkeypatch.chdir(clones.mine.folder)
    for folder in (".dvc/cache", "../storage"):
        shutil.rmtree(folder)
    for name in ("HEAD", "better"):
        assert main(["compare", name, name]) == 2
        message = capsys.readouterr().err
        assert message.startswith(f"error: {name} (") and "Traceback" not in message
        assert "the content of predictions/ensemble.parquet is not in DVC's cache; run dvc pull" in message
    clone = clones.mine.folder.parent / "clone"  # that never had the cache
    run(clone.parent, "git", "clone", "-q", str(clones.mine.folder), "clone")
    monkeypatch.chdir(clone)
    assert main(["report", "HEAD"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: HEAD (") and message.count("\n") == 1
    assert "is not in DVC's cache; run dvc pull if a remote has it. Or make it again: git checkout HEAD" in message
