"""An experiment shared between two clones: over a bare git repository and a DVC remote that is a folder."""

import pytest

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


@pytest.fixture
def clones(tmp_path, make_tables, lay_out):
    """A project with a run that is committed and an experiment, both pushed; and a clone of it without any."""
    mine = tmp_path / "mine"
    mine.mkdir()
    for seed, skill in ((1, 0.5), (2, 2.0)):
        lay_out(mine / f"made/{seed}", make_tables(seed, skill))
    params = (mine / "made/1/params.yaml").read_text()
    metrics = [{"metrics/evaluation.json": {"cache": False}}]
    project = toy_project(mine, STAGE, params, deps=["made"], outs=["predictions", "data"], metrics=metrics)
    run(tmp_path, "git", "init", "-q", "--bare", "-b", "main", "origin.git")
    project.git("remote", "add", "origin", str(tmp_path / "origin.git"))
    project.dvc("remote", "add", "-q", "-d", "storage", str(tmp_path / "storage"))
    project.dvc("repro", "-q")
    project.commit()
    project.git("push", "-q", "-u", "origin", "main")
    project.dvc("push", "-q")
    project.dvc("exp", "run", "-q", "--temp", "-n", "better", "-S", "runtime.seed=2")
    project.dvc("exp", "push", "-q", "origin", "better")
    run(tmp_path, "git", "clone", "-q", str(tmp_path / "origin.git"), "yours")
    return project, Clone(tmp_path / "yours")


def test_an_experiment_of_another_clone_is_compared_here(clones, monkeypatch, capsys):
    mine, yours = clones
    with pytest.raises(UserError, match="better: there is no such revision"):
        Revision.open("better", yours.folder)
    yours.dvc("pull", "-q")
    yours.dvc("exp", "pull", "-q", "origin", "better")
    theirs = Revision.open("better", mine.folder)
    assert Revision.open("better", yours.folder).read(PREDICTIONS) == theirs.read(PREDICTIONS)
    outputs = []
    for clone in (mine, yours):
        monkeypatch.chdir(clone.folder)
        assert main(["compare", "HEAD", "better"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] and "better" in outputs[0]
