"""`bertrio serve`: errors at start, and a server process with a small model."""

import os
import re
import signal
import socket
import subprocess
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

IN_USE = "can't be listened on"


@pytest.mark.parametrize(("port", "message"), [("70000", f"70000: {IN_USE}"), ("0", "nowhere: found"), (None, IN_USE)])
def test_bad_port_or_model_is_an_error(port, message, capsys):
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        assert main(["serve", "--port", port or str(occupied.getsockname()[1]), "--model", "nowhere"]) == 2
    assert message in capsys.readouterr().err


@pytest.fixture(scope="module")
def model(tmp_path_factory, root):
    """The models folder of a small run with two members."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return Run(folder, root / "params.yaml").two_members()


@pytest.mark.heavy
def test_server_predicts_as_the_predictor_and_shuts_down_cleanly(model, root, warm):
    """A server process prints its address, and on SIGTERM answers accepted requests before it exits."""
    command = [warm.python, "-m", "bertrio.cli.main", "serve", "--model", str(model), "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}
    command += ["--device", "cpu", "--max-wait-ms", "1000"]  # the last request waits when SIGTERM arrives
    server = subprocess.Popen(command, cwd=root, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        first_line = server.stderr.readline()
        listening = re.search(r"serving on http://127\.0\.0\.1:(\d+)", first_line)
        assert listening, first_line + server.stderr.read()
        client = Client(int(listening.group(1)))
        assert client.get("/health")[0] == 200
        predictor = Predictor.load(model, device="cpu")
        rows = {"sst": ["a fine film", "<b>awful</b>"], "qqp": [["why?", "how come?"]], "sts": [["a film", "a play"]]}
        for task, texts in rows.items():
            expected = predictor.predict(task, [text if isinstance(text, str) else tuple(text) for text in texts])
            status, answer = client.predict(task, texts)
            assert status == 200
            for served, prediction in zip(answer["predictions"], expected, strict=True):
                assert served["label"] == pytest.approx(prediction.label, abs=1e-4)
                assert (served["probabilities"] or []) == pytest.approx(list(prediction.probabilities or []), abs=1e-5)
                assert (served["score"] is None) == (prediction.score is None)
        responses = []
        thread = threading.Thread(target=lambda: responses.append(client.predict("sst", ["the last one"])))
        thread.start()
        wait_until(lambda: client.metric("bertrio_waiting_rows") == 1)
        server.send_signal(signal.SIGTERM)
        thread.join(20)
        assert responses[0][0] == 200
        assert server.wait(20) == -signal.SIGTERM
        assert server.stderr.read() == ""
    finally:
        server.kill()
        server.wait()
        server.stderr.close()
