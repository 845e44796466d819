import pytest
import yaml

from bertrio.config import merged, read_yaml
from bertrio.core.errors import UserError
from bertrio.core.files import read_json
from bertrio.data.inputs import check_inputs


@pytest.fixture
def check(tmp_path, root):
    """Run the check with overrides and return the digests."""

    def run(**overrides):
        path = tmp_path / "params.yaml"
        path.write_text(yaml.safe_dump(merged(read_yaml(root / "params.yaml"), overrides), sort_keys=False))
        check_inputs(path, tmp_path / "inputs")
        names = ("source", "corpora", "encoder", "tasks", "order", "members", "prefinetune", "challenges")
        return {name: read_json(tmp_path / "inputs" / f"{name}.json") for name in names}

    return run


@pytest.fixture
def course(tmp_path):
    folder = tmp_path / "course"
    folder.mkdir()
    for name in ("ids-sst-train.csv", "sts-dev.csv", "imdb.tsv"):
        (folder / name).write_text("x\n")
    return folder


def test_prefinetuning_task_is_digested_only_when_used(check):
    assert check()["prefinetune"] == {}
    on = check(prefinetune={"epochs": 1})["prefinetune"]
    assert set(on) == {"qqp"}
    assert check(prefinetune={"epochs": 1}, tasks={"qqp": {"dropout": 0.1 + 1e-9}})["prefinetune"] != on
    assert check(prefinetune={"epochs": 1}, tasks={"sst": {"dropout": 0.3}})["prefinetune"] == on


def test_order_of_tasks_and_members_is_digested(check, root):
    raw = read_yaml(root / "params.yaml")
    names = list(raw["tasks"])
    assert check()["order"] == {"tasks": names} and check()["members"] == ["base"]
    first, reverse = {"qqp": 1, "sst": 1}, {"sst": 1, "qqp": 1}
    assert check(schedule={"first": first})["order"] == {"tasks": names, "schedule.first": {"": ["qqp", "sst"]}}
    assert check(schedule={"first": reverse})["order"] != check(schedule={"first": first})["order"]
    digests = check(ensemble={"members": {"second": {"schedule": {"first": reverse}}}})
    assert digests["members"] == ["base", "second"]
    assert digests["order"]["schedule.first"] == {"ensemble.members.second.": ["sst", "qqp"]}
    assert check(ensemble={"members": {"second": {}}})["order"] == {"tasks": names}


def test_digest_depends_on_files_not_on_their_folder(check, course, tmp_path):
    def source(folder):
        return check(data={"source": "cs224n", "path": str(folder)})["source"]

    before = source(course)
    assert set(before) == {"ids-sst-train.csv", "sts-dev.csv"}
    assert source(course.rename(tmp_path / "moved")) == before
    (tmp_path / "moved/sts-dev.csv").write_text("y\n")
    assert source(tmp_path / "moved") != before


def test_digest_depends_on_files_of_extra_rows(check, course, tmp_path):
    (course / "more.csv").write_text("x\n")
    more = {"extra_train": {"qqp": {"train": "more.csv"}}, "unlabelled": {"a": {"task": "sts", "path": "more.csv"}}}
    before = check(data={"path": str(course), **more})["source"]
    (course / "more.csv").write_text("y\n")
    after = check(data={"path": str(course), **more})["source"]
    assert set(before) == {"extra_train", "unlabelled"} and all(after[name] != before[name] for name in before)
    more["unlabelled"]["a"]["share"] = 0.5
    assert check(data={"path": str(course), **more})["source"] == after, "the share affects only training"
    expected = {"qqp": {"extra_train": [None, None]}, "sts": {"unlabelled-a": [0.5, None]}}
    assert read_json(tmp_path / "inputs/sampling.json") == expected


def test_teacher_is_digested_only_when_used(check, tmp_path, monkeypatch):
    for name in ("members/base/heads.safetensors", "ensemble/ensemble.json", "splits.txt"):
        (tmp_path / "teacher" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "teacher" / name).write_text("x")
    teacher = {"teacher": str(tmp_path / "teacher")}

    def digest(**overrides):
        check(**overrides)
        return read_json(tmp_path / "inputs/teacher.json")

    assert digest(distill=teacher) == {}
    shared = digest(distill={**teacher, "weight": 1, "temperature": 2, "tasks": ["sst"]})
    assert set(shared["files"]) == {"members/base/heads.safetensors", "ensemble/ensemble.json"}
    assert shared == digest(distill={**teacher, "weight": 3}), "params of the student are in the digest"
    members = {"student": {"distill": {"weight": 1, "vectors": {"loss": "mse"}}}}
    assert digest(distill=teacher, ensemble={"members": members}) == {**shared, "vectors": True}
    with pytest.raises(UserError, match=r"student\.distill\.teacher: can't differ between members"):
        check(ensemble={"members": {"student": {"distill": {**teacher, "weight": 1}}}})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "teacher").rename("models")
    (tmp_path / "copied").mkdir()
    (tmp_path / "copied/ensemble.json").write_text("{}")
    for folder, problem in {
        "models/members/base": "found models.*, which every run writes anew; copy it",
        "copied": "found copied, an ensemble whose members lie beside it",
        "gone": "there is no file or folder gone",
    }.items():
        with pytest.raises(UserError, match=rf"distill\.teacher: {problem}"):
            check(distill={"weight": 1, "teacher": folder})


def test_corpora_are_digested_only_for_mlm(check, course):
    data = {"source": "cs224n", "path": str(course), "corpora_path": str(course)}
    assert check(data=data)["corpora"] == {}
    assert set(check(data=data, mlm={"enabled": True})["corpora"]) == {"imdb.tsv"}
    with pytest.raises(UserError, match=r"data\.corpora_path: found null, expected a folder"):
        check(data={"source": "cs224n", "path": str(course)}, mlm={"enabled": True})
    for rows, expected in (({}, set()), ({"mine": 5}, {"imdb.tsv"}), ({"theirs": 5}, set())):  # sample source
        hub = {"corpora": {"theirs": {"id": "some/corpus", "split": "train", "columns": ["text"]}}}
        digests = check(data={"corpora_path": str(course), "hub": hub}, mlm={"enabled": True, "rows": rows})
        assert set(digests["corpora"]) == expected


def test_only_kind_and_labels_of_a_task_are_digested(check):
    assert check()["tasks"]["sts"] == {"kind": "pair", "target": "score", "classes": None, "range": [0.0, 5.0]}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"data": {"source": "cs224n"}}, r"data\.path: found null, expected a folder"),
        ({"data": {"source": "cs224n", "path": "../gone"}}, r"data\.path: there is no file or folder \.\./gone"),
        ({"data": {"source": "cs224n", "path": "~nobody-here/x"}}, r"data\.path: .*~nobody-here/x.*a user who is"),
        ({"tasks": {"sst": {"data": {"train": "nil.tsv"}}}}, r"tasks\.sst\.data\.train: there is no file or .* nil"),
        ({"data": {"extra_train": {"qqp": {"train": "gone.csv"}}}}, r"data\.extra_train\.qqp\.train: there is no"),
        ({"evaluate": {"challenges": {"a": {"task": "qqp", "path": "gone"}}}}, r"challenges\.a\.path: there is"),
    ],
)
def test_errors_come_before_any_work(check, overrides, message):
    with pytest.raises(UserError, match=message):
        check(**overrides)


def test_encoder_digest_covers_only_model_files(check, tmp_path):
    folder = tmp_path / "encoder"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "vocab.txt", "README.md"):
        (folder / name).write_text(name)
    assert set(check(encoder={"name": str(folder)})["encoder"]) == {"config.json", "model.safetensors", "vocab.txt"}
