"""What of params is of one machine, and what makes a run another."""

import subprocess

from bertrio.experiments.machine_paths import (
    differences,
    is_override,
    overridden,
    settings_text,
    with_absolute_paths,
    without_place,
)
from bertrio.experiments.recipes.running import experiment_name


def test_folders_become_absolute_where_they_exist(tmp_path):
    (tmp_path / "repository").mkdir()
    (tmp_path / "models/encoder").mkdir(parents=True)
    settings = {
        "data": {"path": "../models", "corpora_path": None, "source": "models"},
        "encoder": {"name": "../models/encoder"},
    }
    found = with_absolute_paths(settings, tmp_path / "repository")
    assert found["data"] == {"path": str(tmp_path / "models"), "corpora_path": None, "source": "models"}
    assert found["encoder"]["name"] == str(tmp_path / "models/encoder")
    assert settings["data"]["path"] == "../models"
    for name in ("tiny", "bert-base-uncased", "sentence-transformers/all-MiniLM-L6-v2"):
        assert with_absolute_paths({"encoder": {"name": name}}, tmp_path)["encoder"]["name"] == name


def test_teachers_and_files_with_more_rows_become_absolute_and_another_teacher_is_another_run(tmp_path):
    (tmp_path / "t").mkdir()
    (tmp_path / "m.tsv").write_text("")
    settings = {
        "data": {"path": None, "extra_train": {"qqp": {"train": "m.tsv"}}},
        "distill": {"teacher": "t"},
        "ensemble": {"members": {"a": {"distill": {"teacher": "t"}}, "b": {}, "c": None}},
    }
    found = with_absolute_paths(settings, tmp_path)
    assert found["data"]["extra_train"]["qqp"]["train"] == str(tmp_path / "m.tsv")
    assert found["distill"]["teacher"] == str(tmp_path / "t")
    assert found["ensemble"]["members"]["a"]["distill"]["teacher"] == str(tmp_path / "t")
    one, other = ({"distill": {"teacher": f"/runs/{name}/models"}} for name in "ab")
    assert set(differences(one, other)) == {"distill.teacher"} and is_override("distill.teacher")


def test_files_become_absolute_unless_git_has_them_or_they_start_at_data_path(tmp_path):
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    for name in ("own.tsv", "tracked.tsv", "hard.csv"):
        (tmp_path / name).write_text("")
    subprocess.run(["git", "add", "tracked.tsv"], cwd=tmp_path, check=True)
    files = {"nli": {"train": "own.tsv", "dev": None}}
    settings = {
        "data": {"path": None, "files": files, "extra_train": {"qqp": {"train": "tracked.tsv"}}},
        "tasks": {"nli": {"data": {"train": "own.tsv", "dev": "tracked.tsv", "test": "gone.tsv"}, "head": "own.tsv"}},
        "evaluate": {"challenges": {"hard": {"path": "hard.csv"}}},
    }
    found = with_absolute_paths(settings, tmp_path)
    there = str(tmp_path / "own.tsv")
    assert found["data"]["files"] == {"nli": {"train": there, "dev": None}}
    assert found["data"]["extra_train"] == {"qqp": {"train": "tracked.tsv"}}
    assert found["tasks"]["nli"] == {
        "data": {"train": there, "dev": "tracked.tsv", "test": "gone.tsv"},
        "head": "own.tsv",
    }
    assert found["evaluate"]["challenges"]["hard"]["path"] == str(tmp_path / "hard.csv")
    settings["data"]["path"] = "somewhere"
    assert with_absolute_paths(settings, tmp_path)["data"]["files"] == files


def test_of_folders_and_links_git_may_have_a_part_alone(tmp_path):
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / "repository/course").mkdir(parents=True)
    (tmp_path / "repository/course/README.md").write_text("")
    (tmp_path / "outside.tsv").write_text("")
    (tmp_path / "repository/link.tsv").symlink_to("../outside.tsv")
    subprocess.run(["git", "add", "repository"], cwd=tmp_path, check=True)
    settings = {"data": {"path": "course"}, "tasks": {"nli": {"data": {"train": "link.tsv"}}}}
    found = with_absolute_paths(settings, tmp_path / "repository")
    assert found["data"]["path"] == str(tmp_path / "repository/course")
    assert found["tasks"]["nli"]["data"]["train"] == str(tmp_path / "repository/link.tsv")


def test_another_file_of_the_same_name_makes_another_run_and_measured_files_have_names_alone():
    one, other = ({"data": {"extra_train": {"qqp": {"train": f"/{place}/more.tsv"}}}} for place in ("here", "there"))
    assert set(differences(one, other)) == {"data.extra_train.qqp.train"}
    assert overridden({"data": {"extra_train": {}}}, one) == {"data.extra_train.qqp.train": "more.tsv"}
    names = [
        experiment_name("row", "quick", 1, {"data.extra_train.qqp": {"train": "/here/more.tsv"}}),
        experiment_name("row", "quick", 1, {"data.extra_train.qqp.train": "../there/more.tsv"}),
    ]
    assert names[0] == names[1]
    overrides = {"finetune.lr": 2e-5, "data.path": "/here/course", "data.extra_train.qqp": {"train": "/here/more.tsv"}}
    told = "; -S finetune.lr=2e-05; -S data.path=course; -S data.extra_train.qqp.train=more.tsv"
    assert settings_text(overrides) == told


def test_of_a_local_folder_only_the_last_name_counts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models/encoder").mkdir(parents=True)
    for name in (
        "models/encoder",
        "models/encoder/",
        f"../{tmp_path.name}/models/encoder",
        "/no/encoder",
    ):
        assert without_place("encoder.name", name) == "encoder"
    assert without_place("encoder.name", "sentence-transformers/encoder") == "sentence-transformers/encoder"
    assert without_place("finetune.select", "/no/encoder") == "/no/encoder"
    assert without_place("data.path", None) is None


def test_runs_differ_in_what_they_do_and_not_in_where():
    here = {"data": {"path": "/here/cs224n"}, "runtime": {"threads": 2, "device": "cpu"}, "finetune": {"lr": 2e-05}}
    there = {
        "data": {"path": "/there/cs224n"},
        "runtime": {"threads": 1, "device": "auto"},
        "finetune": {"lr": "2e-05"},
    }
    assert differences(here, there) == {}
    there["finetune"]["lr"] = "3e-05"
    assert differences(here, there) == {"finetune.lr": (2e-05, 3e-05)}


def test_settings_of_a_stage_that_is_off_do_not_make_another_run():
    off, other = ({"mlm": {"enabled": False, "lr": lr}} for lr in (1e-5, 2e-5))
    assert differences(off, other) == {}
    on = {"mlm": {"enabled": True, "lr": 2e-5}}
    assert differences(off, on) == {"mlm.enabled": (False, True), "mlm.lr": (1e-5, 2e-5)}


def test_overrides_are_what_no_field_of_a_measured_file_has():
    row = {
        "data": {"source": "sample", "path": None},
        "encoder": {"name": "tiny", "revision": None},
        "runtime": {"seed": 1},
    }
    run = {
        "data": {"source": "hub", "path": "/x"},
        "encoder": {"name": "a/b", "revision": "86e8312"},
        "runtime": {"seed": 2},
    }
    assert overridden(row, run) == {"encoder.revision": "86e8312"}
