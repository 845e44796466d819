"""`bertrio serve`: what it refuses to start with, and a whole server with a small model of its own."""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import threading

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")
pytest.importorskip("prometheus_client", reason="needs the extra serve")

from bertrio.cli.serve import add_serve_commands
from bertrio.core.errors import UserError
from bertrio.inference.predictor import Predictor
from tests.inference.serve.conftest import Client, wait_until
from tests.small_run import Run


def serve(*args):
    """What the command line does with these arguments."""
    parser = argparse.ArgumentParser()
    add_serve_commands(parser.add_subparsers())
    parsed = parser.parse_args(["serve", *args])
    return parsed.run(parsed)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--queue", "10", "--max-rows", "20"], "--queue 10: .* --max-rows 20"),
        (["--host", "no.such.host.invalid"], "--host no.such.host.invalid --port 8000: can't be listened on"),
        (["--port", "0", "--model", "nowhere"], "nowhere: found neither"),
        (["--port", "0", "--device", "abacus"], "device: found 'abacus'"),
    ],
)
def test_what_can_not_work_is_refused_with_the_reason(args, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        serve(*args)


def test_a_port_that_is_taken_is_told_before_the_model_is_loaded():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"--port {port}: can't be listened on .*another port"):
            serve("--port", str(port), "--model", "nowhere")


@pytest.mark.parametrize(
    "args",
    [["--port", "70000"], ["--port", "-1"], ["--max-batch", "0"], ["--max-wait-ms", "-1"], ["--max-wait-ms", "nan"]],
)
def test_numbers_out_of_range_are_refused(args, capsys):
    with pytest.raises(SystemExit):
        serve(*args)
    assert f"argument {args[0]}" in capsys.readouterr().err


def test_without_the_extra_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(
        UserError, match=r"serve: needs the package uvicorn; install it with: pip install 'bertrio\[serve\]'"
    ):
        serve()


@pytest.fixture(scope="module")
def model(tmp_path_factory, root):
    """The folder models of a small run with two members."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return Run(folder, root / "params.yaml").two_members()


@pytest.mark.heavy
def test_a_server_answers_as_the_predictor_does_and_ends_in_good_order(model, root):
    """As a process: it says where it listens, and on SIGTERM answers what it took before it ends."""
    command = [sys.executable, "-m", "bertrio.cli.main", "serve", "--model", str(model), "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}
    command += ["--device", "cpu", "--max-wait-ms", "1000"]  # so that the last request still waits when the end comes
    server = subprocess.Popen(command, cwd=root, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        line = server.stderr.readline()
        found = re.search(r"serving on http://127\.0\.0\.1:(\d+)", line)
        assert found, line + server.stderr.read()
        client = Client(int(found.group(1)))
        assert client.get("/health")[0] == 200
        predictor = Predictor.load(model, device="cpu")
        rows = {"sst": ["a fine film", "<b>awful</b>"], "qqp": [["why?", "how come?"]], "sts": [["a film", "a play"]]}
        for task, texts in rows.items():
            expected = predictor.predict(task, [text if isinstance(text, str) else tuple(text) for text in texts])
            status, answer = client.predict(task, texts)
            assert status == 200
            for one, other in zip(answer["predictions"], expected, strict=True):
                assert one["label"] == pytest.approx(other.label, abs=1e-4)
                assert (one["probabilities"] or []) == pytest.approx(list(other.probabilities or []), abs=1e-5)
                assert (one["score"] is None) == (other.score is None)
        last = []
        asking = threading.Thread(target=lambda: last.append(client.predict("sst", ["the last one"])))
        asking.start()
        wait_until(lambda: client.waiting() == 1)
        server.send_signal(signal.SIGTERM)
        asking.join(20)
        assert last[0][0] == 200
        assert server.wait(20) == -signal.SIGTERM
        assert server.stderr.read() == ""
    finally:
        server.kill()
        server.wait()
        server.stderr.close()
