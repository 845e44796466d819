"""Params that belong to one machine, and params that make a run another."""

import subprocess

import pytest

from bertrio.experiments.machine_paths import (
    differences,
    is_override,
    overridden,
    settings_text,
    with_absolute_paths,
    without_folder,
)
from bertrio.experiments.recipes.params import flatten
from bertrio.experiments.recipes.running import experiment_name


@pytest.fixture
def repository(tmp_path):
    """A git repository that tracks course/README.md, tracked.tsv and a link, with other files in it and beside it."""
    folder = tmp_path / "repository"
    for name in ("repository/course", "models/encoder"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("own.tsv", "tracked.tsv", "course/README.md", "../outside.tsv"):
        (folder / name).write_text("")
    (folder / "link.tsv").symlink_to("../outside.tsv")
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    subprocess.run(["git", "add", "tracked.tsv", "course", "link.tsv"], cwd=folder, check=True)
    return folder


def test_paths_become_absolute_where_git_does_not_track_the_files(repository):
    def params(course, model, own, link):
        files, tried = {"nli": {"train": own, "dev": None}}, {"train": link, "dev": "tracked.tsv", "test": "gone.tsv"}
        return {
            "data": {"path": None, "corpora_path": course, "files": files, "unlabelled": {"a": {"path": own}}},
            "encoder": {"name": model}, "distill": {"teacher": course},
            "tasks": {"nli": {"data": tried, "head": "own.tsv"}}, "evaluate": {"challenges": {"hard": {"path": own}}},
        }  # fmt: skip

    names = ("course", "../models/encoder", "own.tsv", "link.tsv")
    settings = params(*names)
    absolute = [str((repository / name).parent.resolve() / name.rpartition("/")[2]) for name in names]
    assert with_absolute_paths(settings, repository) == params(*absolute)
    assert settings == params(*names)


@pytest.mark.parametrize(
    "settings",
    [
        {"data": {"path": "gone", "files": {"nli": {"train": "own.tsv"}}}},  # files of data start at its path
        {"encoder": {"name": "tiny"}},
        {"encoder": {"name": "sentence-transformers/all-MiniLM-L6-v2"}},
    ],
)
def test_what_is_no_path_from_here_stays(repository, settings):
    assert with_absolute_paths(settings, repository) == settings


def test_of_a_local_folder_only_the_last_name_counts(repository, monkeypatch):
    monkeypatch.chdir(repository.parent)
    for name in ("models/encoder", "models/encoder/", "repository/../models/encoder", "/no/encoder"):
        assert without_folder("encoder.name", name) == "encoder"
    assert without_folder("encoder.name", "sentence-transformers/encoder") == "sentence-transformers/encoder"
    assert without_folder("finetune.select", "/no/encoder") == "/no/encoder"


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ({"runtime": {"threads": 2, "device": "cpu"}}, {"runtime": {"threads": 1, "device": "auto"}}, {}),
        ({"finetune": {"lr": 2e-05}}, {"finetune": {"lr": 3e-05}}, {"finetune.lr": (2e-05, 3e-05)}),
        ({"distill": {"teacher": "/a/m"}}, {"distill": {"teacher": "/b/m"}}, {"distill.teacher": ("/a/m", "/b/m")}),
        ({"tasks": {"sst": {"classes": 2}}}, {"tasks": {"sst": {"classes": ["bad", "good"]}}}, {}),
        ({"mlm": {"enabled": True, "lr": 1}}, {"mlm": {"enabled": True, "lr": 2}}, {"mlm.lr": (1, 2)}),
    ],
)
def test_runs_differ_in_what_they_do_and_not_in_where(old, new, changed):
    assert differences(old, new) == changed


def test_another_file_of_the_same_name_makes_another_run_and_measured_files_have_names_alone():
    here, there = ({"data": {"extra_train": {"qqp": {"train": f"/{place}/more.tsv"}}}} for place in ("here", "there"))
    assert set(differences(here, there)) == {"data.extra_train.qqp.train"}
    assert overridden({"data": {"extra_train": {}}}, here) == {"data.extra_train.qqp.train": "more.tsv"}
    assert len({experiment_name("row", "quick", 1, flatten(params)) for params in (here, there)}) == 1
    overrides = {"finetune.lr": 2e-5, "data.path": "/here/course", **flatten(here)}
    text = "; -S finetune.lr=2e-05; -S data.path=course; -S data.extra_train.qqp.train=more.tsv"
    assert settings_text(overrides) == text


def test_overrides_are_what_no_field_of_a_measured_file_has():
    fields = ("data.source", "data.path", "encoder.name", "runtime.seed", "checkpoints.minutes")
    assert not any(map(is_override, fields))
    assert is_override("encoder.revision") and is_override("distill.teacher")
