"""Params that depend on the machine, and params that define a run."""

import os
import subprocess

import pytest

from bertrio.experiments import machine_paths
from bertrio.experiments.recipes.params import flatten
from bertrio.experiments.recipes.running import experiment_name


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Our folder: a git repository with tracked files (course/README.md, tracked.tsv, a symlink) and untracked ones."""
    folder = tmp_path / "repository"
    for name in ("repository/course", "models/encoder"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("own.tsv", "tracked.tsv", "course/README.md", "../outside.tsv"):
        (folder / name).write_text("")
    (folder / "link.tsv").symlink_to("../outside.tsv")
    monkeypatch.chdir(folder)
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run(["git", "add", "tracked.tsv", "course", "link.tsv"], check=True)
    return folder


def test_paths_of_untracked_files_become_absolute(repository):
    def params(course, model, file, link):
        files, splits = {"nli": {"train": file, "dev": None}}, {"train": link, "dev": "tracked.tsv", "test": "gone.tsv"}
        return {
            "data": {"path": None, "corpora_path": course, "files": files, "unlabelled": {"a": {"path": file}}},
            "encoder": {"name": model}, "distill": {"teacher": course},
            "tasks": {"nli": {"data": splits, "head": "own.tsv"}}, "evaluate": {"challenges": {"hard": {"path": file}}},
        }  # fmt: skip

    names = ("course", "../models/encoder", "own.tsv", "link.tsv")
    settings = params(*names)
    absolute = [str((repository / name).parent.resolve() / name.rpartition("/")[2]) for name in names]
    assert machine_paths.with_absolute_paths(settings) == params(*absolute)
    assert settings == params(*names)


@pytest.mark.parametrize(
    "settings",
    [
        {"data": {"path": "gone", "files": {"nli": {"train": "own.tsv"}}}},  # relative to data.path
        {"encoder": {"name": "tiny"}},
        {"encoder": {"name": "sentence-transformers/all-MiniLM-L6-v2"}},
    ],
)
def test_values_that_are_no_local_paths_are_unchanged(repository, settings):
    assert machine_paths.with_absolute_paths(settings) == settings


def test_local_folder_is_reduced_to_its_name(repository, monkeypatch):
    monkeypatch.chdir(repository.parent)
    for name in ("models/encoder", "models/encoder/", "repository/../models/encoder", "/no/encoder"):
        assert machine_paths.without_folder("encoder.name", name) == "encoder"
    for param, value in (("encoder.name", "sentence-transformers/encoder"), ("finetune.select", "/no/encoder")):
        assert machine_paths.without_folder(param, value) == value


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ({"runtime": {"threads": 2, "device": "cpu"}}, {"runtime": {"threads": 1, "device": "auto"}}, {}),
        ({"finetune": {"lr": 2e-05}}, {"finetune": {"lr": 3e-05}}, {"finetune.lr": (2e-05, 3e-05)}),
        ({"distill": {"teacher": "/a/m"}}, {"distill": {"teacher": "/b/m"}}, {"distill.teacher": ("/a/m", "/b/m")}),
        ({"distill": {"teacher": "a/m"}}, {"distill": {"teacher": os.path.abspath("a/m")}}, {}),
        ({"mlm": {"enabled": True, "lr": 1}}, {"mlm": {"enabled": True, "lr": 2}}, {"mlm.lr": (1, 2)}),
    ],
)
def test_differences_ignore_machine_params(old, new, changed):
    assert machine_paths.differences(old, new) == changed


def test_runs_differ_by_path_and_measured_files_have_names():
    here, there = ({"data": {"extra_train": {"qqp": {"train": f"/{folder}/more.tsv"}}}} for folder in ("here", "there"))
    assert set(machine_paths.differences(here, there)) == {"data.extra_train.qqp.train"}
    assert machine_paths.overridden({"data": {"extra_train": {}}}, here) == {"data.extra_train.qqp.train": "more.tsv"}
    assert machine_paths.overridden({}, {"distill": {"teacher": "/here/teacher"}}) == {"distill.teacher": "teacher"}
    assert len({experiment_name("row", "quick", 1, flatten(params)) for params in (here, there)}) == 1
    overrides = {"finetune.lr": 2e-5, "data.path": "/here/course", **flatten(here)}
    text = "; -S finetune.lr=2e-05; -S data.path=course; -S data.extra_train.qqp.train=more.tsv"
    assert machine_paths.settings_text(overrides) == text


def test_params_with_fields_in_measured_files_are_no_overrides():
    params = {"data": {"source": "hub", "path": "a"}, "runtime": {"seed": 2}, "checkpoints": {"minutes": 1}}
    params |= {"encoder": {"name": "a", "revision": "v1"}}
    assert machine_paths.overridden({}, params) == {"encoder.revision": "v1"}
