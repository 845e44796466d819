"""Revisions of a real repository, git and DVC: one stage that copies what a run would have written."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from bertrio.cli.main import main
from bertrio.core.errors import UserError
from bertrio.experiments.revision import Revision

DVC = {
    "stages": {
        "copy": {
            "cmd": "cp -r ../${run}/. .",
            "params": ["run"],
            "outs": ["predictions", "data/splits"],
            "metrics": [{"metrics/evaluation.json": {"cache": False}}],
        }
    }
}


class Repository:
    """A git repository with DVC in `folder`, beside the folders of runs that its stage copies."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder = root, root / "project"
        self.folder.mkdir()
        self.run("git", "init", "-q", "-b", "main")
        self.run("dvc", "init", "-q")
        self.run("dvc", "config", "core.analytics", "false")
        (self.folder / "dvc.yaml").write_text(yaml.safe_dump(DVC))
        (self.folder / ".gitignore").write_text("/predictions\n/data\n")

    def run(self, *command: str, cwd: Path | None = None) -> None:
        paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        who = {f"GIT_{role}_{what}": "t@t" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        environment = {**os.environ, **who, "PATH": paths}
        done = subprocess.run(
            command, cwd=cwd or self.folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def commit(self, tag: str) -> None:
        self.run("git", "add", "-A")
        self.run("git", "commit", "-q", "-m", tag)
        self.run("git", "tag", tag)

    def settings(self, **params: object) -> None:
        path = self.folder / "params.yaml"
        old = yaml.safe_load(path.read_text()) if path.exists() else {}
        path.write_text(yaml.safe_dump(old | params))


@pytest.fixture(scope="module")
def repository(tmp_path_factory, make_tables, lay_out):
    made = Repository(tmp_path_factory.mktemp("repository"))
    for name, frame in {
        "base": make_tables(1),
        "better": make_tables(2, skill=1.6),
        "fewer": make_tables(2, rows=150),
    }.items():
        lay_out(made.root / name, frame)
        settings = yaml.safe_load((made.root / name / "params.yaml").read_text())
        (made.root / name / "params.yaml").unlink()
    made.commit("before")  # nothing has run yet
    made.settings(**settings, run="base")
    made.run("dvc", "repro", "-q")
    made.commit("base")
    made.run("dvc", "exp", "run", "-q", "-n", "better", "-S", "run=better")
    made.run("git", "checkout", "-q", "--", ".")
    made.run("dvc", "checkout", "-q")
    made.settings(run="fewer")
    made.run("dvc", "repro", "-q")
    made.commit("fewer")
    return made


def lines_of(repository, *arguments: str) -> str:
    return subprocess.run(
        arguments, cwd=repository.folder, capture_output=True, text=True, check=True, env=os.environ
    ).stdout.strip()


def test_a_revision_is_read_by_every_name_it_has(repository):
    commit = lines_of(repository, "git", "rev-parse", "base")
    experiment = lines_of(repository, "git", "for-each-ref", "refs/exps/*/*/better", "--format=%(objectname)")
    for name, hash_of in (("base", commit), ("HEAD~1", commit), (commit[:9], commit)):
        revision = Revision.open(name, repository.folder)
        assert revision.commit == hash_of
        assert (
            revision.read("predictions/ensemble.parquet")
            == (repository.root / "base/predictions/ensemble.parquet").read_bytes()
        )
    for name in ("better", experiment, experiment[:8]):
        revision = Revision.open(name, repository.folder)
        assert revision.settings()["run"] == "better"
        assert (
            revision.read("predictions/ensemble.parquet")
            == (repository.root / "better/predictions/ensemble.parquet").read_bytes()
        )
    assert Revision.open("workspace", repository.folder).commit is None
    assert Revision.open("main", repository.folder).settings()["run"] == "fewer"


@pytest.mark.parametrize("name", ["workspace", "main"])
def test_the_workspace_and_a_commit_are_read_alike(repository, name):
    revision = Revision.open(name, repository.folder)
    assert revision.exists("predictions/ensemble.parquet")
    assert revision.exists("data/splits/sst")
    assert not revision.exists("predictions/none.parquet")
    assert revision.files("data/splits") == [f"data/splits/{task}/dev.parquet" for task in ("qqp", "sst", "sts")]
    assert revision.files("nowhere") == []
    assert revision.json("metrics/evaluation.json")["selected_on"]["rows"] == "dev"
    assert list(revision.tasks()) == ["qqp", "sst", "sts"]  # sorted by safe_dump
    assert len(revision.predictions()) == 3 * 150
    assert list(revision.rows("qqp", "dev")) == ["id", "text_a", "text_b", "label"]
    with pytest.raises(UserError, match="predictions/none.parquet: is missing"):
        revision.read("predictions/none.parquet")


def test_names_that_are_none_are_errors_that_say_what_would_be(repository, tmp_path):
    with pytest.raises(UserError, match="nosuch: there is no such revision; expected workspace, a commit"):
        Revision.open("nosuch", repository.folder)
    with pytest.raises(UserError, match="run this from the folder that holds dvc.yaml"):
        Revision.open("HEAD", tmp_path)
    with pytest.raises(UserError, match="before .*: params.yaml: is missing"):
        Revision.open("before", repository.folder).settings()


def test_compare_reads_an_experiment_and_leaves_the_workspace_alone(repository, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(repository.folder)
    before = lines_of(repository, "git", "status", "--porcelain")
    assert main(["compare", "base", "better", "--rows", "2", "--json", str(tmp_path / "compare.json")]) == 0
    result = json.loads((tmp_path / "compare.json").read_text())
    assert {name: figures["better"] for name, figures in result["overall"].items()} == {
        "overall_mean": "second",
        "overall_normalized": "second",
    }
    assert result["params"] == {"run": [["base"], ["better"]]}
    assert result["second"]["revisions"][0]["name"] == "better"
    assert "better is better than base" in capsys.readouterr().out
    assert lines_of(repository, "git", "status", "--porcelain") == before


def test_what_the_cache_has_lost_is_an_error_that_says_how_to_get_it(repository, monkeypatch, capsys):
    """Last, since it takes the cache away."""
    monkeypatch.chdir(repository.folder)
    cache = repository.folder / ".dvc" / "cache"
    cache.rename(repository.root / "gone")
    for name in ("HEAD", "better"):
        assert main(["compare", name, name]) == 2
        message = capsys.readouterr().err
        assert message.startswith(f"error: {name} (") and "Traceback" not in message
        assert "the content of predictions/ensemble.parquet is not in DVC's cache; run dvc pull" in message
    (repository.root / "gone").rename(cache)
