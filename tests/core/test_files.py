import csv
from pathlib import Path

import pandas as pd
import pytest

from bertrio.core.files import read_json, whole_file, whole_folder, write_csv, write_json, write_text


def test_an_interrupted_write_leaves_the_old_file_and_no_litter(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def interrupted():
        with whole_file(path) as temporary:
            temporary.write_text("half of the new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_json_is_rounded_if_asked_and_has_no_nan(tmp_path):
    value = {"b": 1 / 3, "a": {"x": [1, 2.0000000001, None, True, "é"]}}
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == {"b": 0.333333, "a": {"x": [1, 2.0, None, True, "é"]}}
    write_json(tmp_path / "a.json", value, digits=None)
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"a": float("nan")})
    assert read_json(tmp_path / "a.json") == value


@pytest.mark.parametrize("text", ["a\rb", "a\r\nb", "a\nb", 'say "a", b', "\r", ""])
def test_any_text_comes_back_from_a_quoted_table(tmp_path, text):
    table = pd.DataFrame({"id": ["1", "2"], "value": [0.25, 3.0], "text": [text, "plain"]})
    write_csv(table, tmp_path / "a.csv", quoted=True)
    with open(tmp_path / "a.csv", newline="", encoding="utf-8") as file:
        assert list(csv.reader(file)) == [["id", "value", "text"], ["1", "0.25", text], ["2", "3", "plain"]]
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "a.csv", keep_default_na=False, dtype={"id": str}), table)


def fill(folder, text):
    (folder / "inner").mkdir()
    (folder / "inner" / "a.txt").write_text(text)


def test_a_new_folder_takes_the_place_of_the_old_one_whole(tmp_path):
    path = tmp_path / "deep" / "model"
    for text in ("old", "new"):
        with whole_folder(path) as folder:
            fill(folder, text)
            (folder / f"only-{text}").touch()
            assert not (path / f"only-{text}").exists()
    assert sorted(file.name for file in path.iterdir()) == ["inner", "only-new"]
    assert (path / "inner" / "a.txt").read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("before", [True, False])
def test_an_interrupted_folder_leaves_the_old_one_and_no_litter(tmp_path, before):
    path = tmp_path / "model"
    if before:
        with whole_folder(path) as folder:
            fill(folder, "old")

    def interrupted():
        with whole_folder(path) as folder:
            fill(folder, "half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == ([path] if before else [])
    assert not before or (path / "inner" / "a.txt").read_text() == "old"


def test_a_folder_that_cannot_be_put_in_place_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "model"
    with whole_folder(path) as folder:
        fill(folder, "old")
    rename = Path.rename

    def fails(self, target):
        if self.name == ".model.new":
            raise OSError("no")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(OSError, match="no"), whole_folder(path) as folder:
        fill(folder, "new")
    assert (path / "inner" / "a.txt").read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_of_a_folder_is_removed(tmp_path):
    for name in (".model.new", ".model.old"):
        (tmp_path / name).mkdir()
        fill(tmp_path / name, "half")
    with whole_folder(tmp_path / "model") as folder:
        assert not list(folder.iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_link_to_a_folder_is_replaced_and_what_it_points_to_stays(tmp_path):
    (tmp_path / "cache").mkdir()
    fill(tmp_path / "cache", "old")
    (tmp_path / "model").symlink_to("cache")
    with whole_folder(tmp_path / "model") as folder:
        fill(folder, "new")
    assert not (tmp_path / "model").is_symlink()
    assert (tmp_path / "cache" / "inner" / "a.txt").read_text() == "old"
