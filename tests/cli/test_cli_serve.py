"""`bertrio serve`: what it refuses to start with, and a whole server with a small model of its own."""

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

from bertrio.cli.main import main
from bertrio.inference.predictor import Predictor
from tests.inference.serve.conftest import Client
from tests.small_run import Run
from tests.waiting import wait_until

TAKEN = "can't be listened on"


@pytest.mark.parametrize(("port", "message"), [("70000", f"70000: {TAKEN}"), ("0", "nowhere: found"), (None, TAKEN)])
def test_what_can_not_work_is_refused_with_the_reason_the_port_before_the_model(port, message, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", "--port", port or str(taken.getsockname()[1]), "--model", "nowhere"]) == 2
    assert message in capsys.readouterr().err


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
        listening = re.search(r"serving on http://127\.0\.0\.1:(\d+)", line)
        assert listening, line + server.stderr.read()
        client = Client(int(listening.group(1)))
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
        wait_until(lambda: client.metric("bertrio_waiting_rows") == 1)
        server.send_signal(signal.SIGTERM)
        asking.join(20)
        assert last[0][0] == 200
        assert server.wait(20) == -signal.SIGTERM
        assert server.stderr.read() == ""
    finally:
        server.kill()
        server.wait()
        server.stderr.close()
