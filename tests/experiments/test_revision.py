"""Revisions of git and DVC repositories: one stage copies the files of a run, and two clones share an experiment by a
bare git repository and a DVC remote folder."""

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
from bertrio.experiments.runs import read_run
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
def clones(tmp_path_factory, warm):
    """A project `mine` with a committed run and an experiment, both pushed, and `yours`, a clone with neither.

    The commit tagged `before` has no params.yaml.
    """
    root = tmp_path_factory.mktemp("repository")
    mine = root / "mine"
    mine.mkdir()
    for name, frame in (("base", tables(1)), ("better", tables(2, skill=1.6))):
        write_run(mine / "made" / name, frame, run=name)
        write_text(mine / "made" / name / "plots/history/base.csv", "epoch,step\n1,100\n")
    params = (mine / "made/base/params.yaml").read_text()
    metrics, outs = [{"metrics/evaluation.json": {"cache": False}}], ["predictions", "data", "plots/history/base.csv"]
    project = toy_project(mine, STAGE, params, warm.python, deps=["made"], outs=outs, metrics=metrics)
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
    return SimpleNamespace(mine=project, yours=Clone(root / "yours", warm.python))


def test_revision_by_every_kind_of_name(clones):
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
def test_workspace_and_commit_are_read_alike(clones, name):
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


def test_unknown_name_is_an_error(clones, tmp_path):
    with pytest.raises(UserError, match="nosuch: there is no such revision; expected workspace, a commit"):
        Revision.open("nosuch", clones.mine.folder)
    with pytest.raises(UserError, match="did you mean better.* gets its name when it ends: if it was stopped, the"):
        Revision.open("beter", clones.mine.folder)
    with pytest.raises(UserError, match="run this from the folder that holds dvc.yaml"):
        Revision.open("HEAD", tmp_path)
    with pytest.raises(UserError, match="before .*: params.yaml: is missing"):
        Revision.open("before", clones.mine.folder).settings()


def test_compare_is_the_same_in_two_clones(clones, monkeypatch, capsys):
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


def test_edited_params_do_not_change_the_settings_of_a_result(clones, tmp_path, monkeypatch, capsys, warm):
    project = Clone(shutil.copytree(clones.mine.folder, tmp_path / "project"), warm.python)
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
    assert "no longer matches" not in (project.folder / "report.html").read_text(), "no stage reads the new param"


def test_run_params_come_from_dvc_lock(tmp_path):
    params = "free: 1\nlr: 1e-3\ndata: {files: {a: b}, seed: 0}\nname: null\nensemble: {members: {new: {}}}\n"
    (tmp_path / "params.yaml").write_text(params)
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
        YAML().dump({"schema": "2.0", "stages": {"check": {"cmd": "true"}, **locked}}, file)  # as DVC does: no is text
    revision = Revision.open("workspace", tmp_path)
    assert revision.run_params == {
        "free": 1, "lr": 0.002, "data": {"files": {}, "seed": 0}, "name": {"of": {"model": None}},
        "ensemble": {"members": {"base": None}}, "classes": ["no", "yes"],
    }  # fmt: skip
    assert revision.edited_params()["lr"] == (0.002, 0.001)
    (tmp_path / "dvc.lock").write_text("<<<<<<< HEAD\n: a")
    with pytest.raises(UserError, match="workspace: dvc.lock: is not valid YAML"):
        Revision.open("workspace", tmp_path).tasks()


@pytest.mark.parametrize(
    ("stage", "path", "reader"),
    [
        ("check", "data/inputs/tasks.json", None),
        ("split", "data/splits", "did not run on the newest data/splits"),
        ("finetune@base", "plots/history/base.csv", "evaluate did not run on the newest plots/history"),
        ("evaluate", "metrics/evaluation.json", None),  # analyze reads it
    ],
)
def test_run_that_has_not_ended_has_no_scores(root, tmp_path, stage, path, reader):
    """DVC's own dvc.lock, with one output changed as by a new run that ended there."""
    lock = yaml.safe_load((root / "dvc.lock").read_text())
    [out] = [out for out in lock["stages"][stage]["outs"] if out["path"] == path]
    out["md5"] = "0" * 32
    shutil.copy(root / "params.yaml", tmp_path)
    (tmp_path / "dvc.lock").write_text(yaml.safe_dump(lock))
    revision = Revision.open("workspace", tmp_path)
    assert read_run(revision).state == ("unfinished" if reader else "no metrics")
    if reader:
        with pytest.raises(UserError, match=f"{reader}, so a run has not ended; run dvc repro to end it"):
            revision.tasks()


def test_workspace_has_a_report_without_git(clones, tmp_path, monkeypatch):
    folder = shutil.copytree(clones.mine.folder, tmp_path / "project", ignore=shutil.ignore_patterns(".git"))
    monkeypatch.chdir(folder)
    assert main(["report"]) == 0
    assert "There is no commit to compare them with" in (folder / "report.html").read_text()


def test_missing_cache_error_suggests_dvc_pull(clones, monkeypatch, capsys):
    """Runs last, since it removes the cache."""
    monkeypatch.chdir(clones.mine.folder)
    for folder in (".dvc/cache", "../storage"):
        shutil.rmtree(folder)
    for name in ("HEAD", "better"):
        assert main(["compare", name, name]) == 2
        message = capsys.readouterr().err
        assert message.startswith(f"error: {name} (") and "Traceback" not in message
        assert "the content of predictions/ensemble.parquet is not in DVC's cache; run dvc pull" in message
    clone = clones.mine.folder.parent / "clone"  # without a cache
    run(clone.parent, "git", "clone", "-q", str(clones.mine.folder), "clone")
    monkeypatch.chdir(clone)
    assert main(["report", "HEAD"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: HEAD (") and message.count("\n") == 1
    assert "is not in DVC's cache; run dvc pull if a remote has it. Or make it again: git checkout HEAD" in message
