import io
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from bertrio.cli.main import main
from bertrio.data.table import read_table
from bertrio.evaluation.predictions import read_predictions
from tests.small_run import Run

PLAIN = ["--device", "cpu", "--precision", "float32"]


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory, root):
    """A run of two members with sts bi-encoded."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run = Run(folder, root / "params.yaml")
        bi_encoded = {"tasks": {"sts": {"encoding": "bi", "head": "cosine"}}}
        run.two_members(ensemble={"members": {"second": {"answers": ["sst", "qqp"]}}}, **bi_encoded)
    return run


@pytest.fixture
def run(finished_run, monkeypatch):
    monkeypatch.chdir(finished_run.root)
    return finished_run


def bertrio(*argv):
    return main([str(word) for word in argv])


def set_stdin(monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))


def test_predict_from_stdin_to_stdout_uses_the_ensemble(run, monkeypatch, capsysbinary):
    set_stdin(monkeypatch, read_table("data/splits/qqp/dev.parquet").to_csv(sep="\t", index=False))
    assert bertrio("predict", "--task", "qqp", *PLAIN) == 0
    out, err = capsysbinary.readouterr()
    header, *rows = [line.split("\t") for line in out.decode().splitlines()]
    assert header == ["id", "text_a", "text_b", "label", "prediction", "prediction_label", "p_no", "p_yes"]
    assert err.decode().splitlines()[-1] == "predict: 40 rows predicted"
    table = read_predictions("predictions/ensemble.parquet").query("task == 'qqp' and split == 'dev'")
    assert [row[0] for row in rows] == table["id"].tolist()
    assert [float(row[4]) for row in rows] == table["prediction"].tolist()
    assert np.allclose([[float(x) for x in row[6:]] for row in rows], np.stack(table["probabilities"]), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "begin"), [("a.csv", "text,prediction,"), ("a.jsonl", '{"text": "ab", "pred'), ("a.txt", "text\tpred")]
)
def test_format_follows_the_file_suffix(run, tmp_path, name, begin):
    (tmp_path / name).write_text('{"text": "ab"}\n' if name == "a.jsonl" else "text\nab\n")
    assert bertrio("predict", "--task", "sst", "--in", tmp_path / name, "--out", tmp_path / "out", *PLAIN) == 0
    assert (tmp_path / "out").read_text().startswith(begin)


def test_bad_rows_are_skipped_or_with_strict_an_error(run, tmp_path, capsys):
    rows, out = tmp_path / "rows.tsv", tmp_path / "out.tsv"
    rows.write_text("text\nab\n \ncd\n")
    out.write_text("old")
    assert bertrio("predict", "--task", "sst", "--in", rows, "--out", out, "--strict", *PLAIN) == 2
    assert "rows.tsv: line 3: text: empty text" in capsys.readouterr().err
    assert out.read_text() == "old" and len(list(tmp_path.iterdir())) == 2
    assert bertrio("predict", "--task", "sst", "--in", rows, "--out", out, *PLAIN) == 0
    assert len(out.read_text().splitlines()) == 3
    assert capsys.readouterr().err.splitlines()[-1] == "predict: 2 rows predicted, 1 left out"


def test_output_may_be_the_input_a_link_or_a_pipe(run, tmp_path):
    rows, link = tmp_path / "rows.tsv", tmp_path / "link"
    rows.write_text("said\nab\n")
    rows.chmod(0o600)
    link.symlink_to("rows.tsv")
    bertrio("predict", "--task", "sst", "--in", rows, "--out", link, "--columns", "text=said", *PLAIN)
    assert link.is_symlink() and rows.stat().st_mode & 0o777 == 0o600
    assert rows.read_text().startswith("said\tprediction\tprediction_label\tp_0\tp_1")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_text)
        rows.write_text("text\nab\n")
        bertrio("predict", "--task", "sst", "--in", rows, "--out", pipe, *PLAIN)
        assert read.result(10).startswith("text\tprediction") and pipe.is_fifo()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--task", "nli"], "task 'nli': no such task, expected one of sst, qqp, sts"),
        (["--task", "sst", "--model", "nowhere"], "nowhere: found neither bertrio.json nor ensemble.json"),
        (["--task", "sst", "--in", "nowhere.tsv"], "nowhere.tsv: there is no such file\n"),
        (
            ["--task", "qqp"],
            "expected 'text_a', 'text_b'; did you mean 'text'?; rename columns in the file, or say which are meant",
        ),
        (["--task", "sst", "--in", "a.tsv", "--out", "b.csv"], "rows are written as they are read, in tsv"),
        (["--task", "sst", "--columns", "text=words"], "found columns 'text', expected 'words'"),
        (["--task", "sst", "--device", "cuda:9"], "cuda:9 is not on this machine"),
    ],
)
def test_predict_errors(run, monkeypatch, capsys, argv, message):
    set_stdin(monkeypatch, "text\nab\n")
    assert bertrio("predict", *argv) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: ") and message in shown


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_leaves_no_partial_file(run, tmp_path, monkeypatch, number):
    (tmp_path / "rows.tsv").write_text("text\nab\n")
    monkeypatch.setattr("bertrio.inference.batch_predict.predict_file", lambda *_: signal.raise_signal(number))
    argv = ["--task", "sst", "--in", tmp_path / "rows.tsv", "--out", tmp_path / "out.tsv"]
    assert bertrio("predict", *argv, *PLAIN) == 128 + number
    assert [path.name for path in tmp_path.iterdir()] == ["rows.tsv"]


@pytest.mark.heavy
def test_closed_pipe_is_not_an_error(run, root, tmp_path, warm):
    (tmp_path / "rows.tsv").write_text("text\n" + f"{'word ' * 20}\n" * 3000)
    argv = ["predict", "--task", "sst", "--model", "models/members/base", "--in", str(tmp_path / "rows.tsv"), *PLAIN]
    command = [warm.python, "-m", "bertrio.cli.main", *argv]
    options = {"env": {**os.environ, "PYTHONPATH": str(root / "src")}, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, stderr=subprocess.PIPE, **options) as process:
        assert process.stdout.readline().startswith(b"text\tprediction")
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_mine_uses_the_bi_encoded_task(run, tmp_path, monkeypatch, capsysbinary):
    pytest.importorskip("sentence_transformers", reason="needs the extra mining")
    set_stdin(monkeypatch, "a good film\nnothing like it\na good film .\na good film\n")
    assert bertrio("mine", "--top", 2, *PLAIN) == 0
    header, *rows = [line.split("\t") for line in capsysbinary.readouterr().out.decode().splitlines()]
    assert header == ["cosine", "line_a", "line_b", "text_a", "text_b"] and len(rows) == 2
    assert float(rows[0][0]) >= float(rows[1][0]) and {row[1] for row in rows} <= {"1", "2"}
    (tmp_path / "some.txt").write_text("one\ntwo\n")
    assert bertrio("mine", tmp_path / "some.txt", "--task", "sts", "--out", tmp_path / "out.tsv", *PLAIN) == 0
    assert len((tmp_path / "out.tsv").read_text().splitlines()) == 2
    assert bertrio("mine", tmp_path / "some.txt", "--task", "qqp", *PLAIN) == 2
    assert b"expected a task that encodes its texts apart: sts" in capsysbinary.readouterr().err


def test_invalid_arguments_are_parser_errors(capsys):
    for argv, message in (
        (["predict"], "--task"),
        (["predict", "--task", "sst", "--columns", "text"], "found 'text', expected ours=theirs"),
        (["predict", "--task", "sst", "--batch-size", "0"], "expected a whole number from 1 on"),
    ):
        with pytest.raises(SystemExit) as stopped:
            bertrio(*argv)
        assert stopped.value.code == 2 and message in capsys.readouterr().err
