"""Experiments shared between two clones: over a bare git repository and a DVC remote that is a folder."""

import shutil

import pytest
import yaml

from bertrio.cli.main import main
from bertrio.core.errors import UserError
from bertrio.experiments.revision import PREDICTIONS, Revision
from tests.toy_project import Clone, run, toy_project

STAGE = """
import shutil
import yaml

seed = yaml.safe_load(open("params.yaml"))["runtime"]["seed"]
for folder in ("predictions", "data", "metrics"):
    shutil.copytree(f"made/{seed}/{folder}", folder, dirs_exist_ok=True)
"""


@pytest.fixture(scope="module")
def clones(tmp_path_factory, make_tables, lay_out):
    """A project with a run that is committed and an experiment, both pushed; and a clone of it without any."""
    folder = tmp_path_factory.mktemp("remotes")
    (folder / "mine").mkdir()
    for seed, skill in ((1, 0.5), (2, 2.0)):
        lay_out(folder / f"mine/made/{seed}", make_tables(seed, skill))
    params = (folder / "mine/made/1/params.yaml").read_text()
    metrics = [{"metrics/evaluation.json": {"cache": False}}]
    project = toy_project(folder / "mine", STAGE, params, deps=["made"], outs=["predictions", "data"], metrics=metrics)
    run(folder, "git", "init", "-q", "--bare", "-b", "main", "origin.git")
    project.git("remote", "add", "origin", str(folder / "origin.git"))
    project.dvc("remote", "add", "-q", "-d", "storage", str(folder / "storage"))
    project.dvc("repro", "-q")
    project.commit()
    project.git("push", "-q", "-u", "origin", "main")
    project.dvc("push", "-q")
    project.dvc("exp", "run", "-q", "--temp", "-n", "better", "-S", "runtime.seed=2")
    project.dvc("exp", "push", "-q", "origin", "better")
    run(folder, "git", "clone", "-q", str(folder / "origin.git"), "yours")
    return project, Clone(folder / "yours")


def test_a_clone_has_the_committed_run_after_a_pull(clones):
    mine, yours = clones
    assert not (yours.folder / PREDICTIONS).exists()
    yours.dvc("pull", "-q")
    for path in (PREDICTIONS, "data/splits/sst/dev.parquet", "metrics/evaluation.json"):
        assert (yours.folder / path).read_bytes() == (mine.folder / path).read_bytes()
    assert yours.git("status", "--porcelain") == ""
    shutil.rmtree(yours.folder / "predictions")
    yours.dvc("checkout", "-q")
    assert (yours.folder / PREDICTIONS).read_bytes() == (mine.folder / PREDICTIONS).read_bytes()


def test_an_experiment_of_another_clone_is_compared_here(clones, monkeypatch, capsys):
    mine, yours = clones
    with pytest.raises(UserError, match="better: there is no such revision"):
        Revision.open("better", yours.folder)
    yours.dvc("pull", "-q")
    yours.dvc("exp", "pull", "-q", "origin", "better")
    theirs = Revision.open("better", mine.folder)
    assert Revision.open("better", yours.folder).read(PREDICTIONS) == theirs.read(PREDICTIONS)
    said = []
    for clone in (mine, yours):
        monkeypatch.chdir(clone.folder)
        assert main(["compare", "HEAD", "better"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] and "better" in said[0]


def test_an_applied_experiment_has_its_bytes_in_the_workspace(clones):
    mine, yours = clones
    yours.dvc("exp", "pull", "-q", "origin", "better")
    yours.dvc("exp", "apply", "-q", "better")
    assert (yours.folder / PREDICTIONS).read_bytes() == Revision.open("better", mine.folder).read(PREDICTIONS)
    assert yaml.safe_load((yours.folder / "params.yaml").read_text())["runtime"]["seed"] == 2
    yours.git("checkout", "-q", ".")
    yours.dvc("checkout", "-q")
    assert (yours.folder / PREDICTIONS).read_bytes() == (mine.folder / PREDICTIONS).read_bytes()
