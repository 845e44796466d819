import csv
import os
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from bertrio.core.errors import UserError
from bertrio.core.files import read_json, whole_file, whole_folder, write_csv, write_json, write_text
from bertrio.data.table import write_table


def fill(path, text):
    """Write a text to a file, or to a file inside a folder."""
    if path.is_dir():
        (path / "inner").mkdir()
        path /= "inner/a.txt"
    path.write_text(text)


@pytest.mark.parametrize("writer", [whole_file, whole_folder])
@pytest.mark.parametrize("before", [True, False])
def test_interrupted_write_keeps_old_content_and_no_temporary_files(tmp_path, writer, before):
    path = tmp_path / "model"
    if before:
        with writer(path) as new:
            fill(new, "old")

    def interrupted():
        with writer(path) as new:
            fill(new, "half of the new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == ([path] if before else [])
    assert not before or (path if path.is_file() else path / "inner/a.txt").read_text() == "old"


def test_json_rounds_floats_and_rejects_nan(tmp_path):
    value = {"b": 1 / 3, "a": {"x": [1, 2.0000000001, None, True, "é"]}}
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == {"b": 0.333333, "a": {"x": [1, 2.0, None, True, "é"]}}
    write_json(tmp_path / "a.json", value, digits=None)
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"a": float("nan")})
    assert read_json(tmp_path / "a.json") == value


@pytest.mark.parametrize("text", ["a\rb", "a\r\nb", "a\nb", 'say "a", b', "\r", ""])
def test_quoted_csv_round_trip(tmp_path, text):
    table = pd.DataFrame({"id": ["1", "2"], "value": [0.25, 3.0], "text": [text, "plain"]})
    write_csv(table, tmp_path / "a.csv", quoted=True)
    with open(tmp_path / "a.csv", newline="", encoding="utf-8") as file:
        assert list(csv.reader(file)) == [["id", "value", "text"], ["1", "0.25", text], ["2", "3", "plain"]]
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "a.csv", keep_default_na=False, dtype={"id": str}), table)


def test_whole_folder_replaces_the_old_one(tmp_path):
    path = tmp_path / "deep" / "model"
    for text in ("old", "new"):
        with whole_folder(path) as folder:
            fill(folder, text)
            (folder / f"only-{text}").touch()
            assert not (path / f"only-{text}").exists()
    assert sorted(file.name for file in path.iterdir()) == ["inner", "only-new"]
    assert (path / "inner" / "a.txt").read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


def test_failed_rename_keeps_the_old_folder(tmp_path, monkeypatch):
    path = tmp_path / "model"
    with whole_folder(path) as folder:
        fill(folder, "old")
    rename = Path.rename

    def fails(self, target):
        if self.name == "new":
            raise OSError("no")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(OSError, match="no"), whole_folder(path) as folder:
        fill(folder, "new")
    assert (path / "inner" / "a.txt").read_text() == "old" and list(tmp_path.iterdir()) == [path]


def run_python(script, folder):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run([sys.executable, "-c", script], cwd=folder, env=environment, capture_output=True, text=True)


KILLED = """
import os, signal
from bertrio.core import files
with files.whole_file("a.txt"), files.whole_folder("model") as folder:
    (folder / "half").touch()
    kill, rename = (lambda *_: os.kill(os.getpid(), signal.SIGKILL)), files.Path.rename
    files.Path.rename = lambda path, to: (rename if to.name == "old" else kill)(path, to)
"""


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    user_files = {".model.new", ".model.old", ".a.txt.0123abcd"}
    for name in user_files:
        (tmp_path / name).mkdir()
        fill(tmp_path / name, "mine")
    with whole_folder(tmp_path / "model") as folder:
        fill(folder, "old")
    assert run_python(KILLED, tmp_path).returncode == -signal.SIGKILL
    assert not (tmp_path / "model").exists() and len(list(tmp_path.iterdir())) == len(user_files) + 2
    with pytest.raises(ValueError, match="no"), whole_folder(tmp_path / "model"):
        raise ValueError("no")
    assert (tmp_path / "model" / "inner" / "a.txt").read_text() == "old", "the old folder is not restored"
    write_text(tmp_path / "a.txt", "new")
    assert {path.name for path in tmp_path.iterdir()} == user_files | {"model", "a.txt"}


def test_folders_have_one_writer_and_files_many(tmp_path):
    path = tmp_path / "model"
    with whole_folder(path) as first, whole_folder(tmp_path / "model.b"), whole_file(tmp_path / "a.txt") as one:
        with pytest.raises(UserError, match=f"{path}: another process is writing it"), whole_folder(path):
            pass
        fill(first, "first")
        one.write_text("one")
        write_text(tmp_path / "a.txt", "other")
        assert (tmp_path / "a.txt").read_text() == "other"
    assert (tmp_path / "a.txt").read_text() == "one" and (path / "inner" / "a.txt").read_text() == "first"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "model", "model.b"]


def test_parquet_is_read_without_threads(tmp_path):
    table = pd.DataFrame({"id": map(str, range(100_000)), "text": "words", "label": 1.0})
    write_table(table, tmp_path / "a.parquet")
    script = """if True:
        import os, sys
        from bertrio.data.table import read_table
        threads = len(os.listdir("/proc/self/task"))
        print(len(read_table("a.parquet")), len(os.listdir("/proc/self/task")) - threads)
    """
    result = run_python(script, tmp_path)
    assert result.stdout.split() == ["100000", "0"], result.stderr


def test_symlink_is_replaced_and_its_target_stays(tmp_path):
    (tmp_path / "cache").mkdir()
    fill(tmp_path / "cache", "old")
    (tmp_path / "model").symlink_to("cache")
    with whole_folder(tmp_path / "model") as folder:
        fill(folder, "new")
    assert not (tmp_path / "model").is_symlink()
    assert (tmp_path / "cache" / "inner" / "a.txt").read_text() == "old"
