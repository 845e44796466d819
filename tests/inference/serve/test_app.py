"""The server over real sockets: predictions, errors, limits and load."""

import http.client
import json
import logging
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from unittest.mock import ANY, Mock, call

import pytest
import torch
from pydantic import ValidationError

pytest.importorskip("fastapi", reason="needs the extra serve")

from bertrio.core.runtime import choose
from bertrio.inference.serve import server
from bertrio.inference.serve.limits import Limits
from bertrio.inference.serve.schemas import Rows
from bertrio.inference.serve.server import LOCAL_HOSTS
from tests.inference.serve.conftest import running
from tests.waiting import wait_until

JSON = {"content-type": "application/json"}
HEAD = b"POST /predict/sst HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


def assert_refused(response, status, message):
    """Check the status and a part of the message of an error response."""
    code, body = response
    assert code == status and set(body) == {"error"} and message in body["error"], response


def post(client, body, headers=JSON):
    return client.send("POST", "/predict/sst", body, headers)[::2]


@pytest.mark.parametrize(
    ("task", "rows"),
    [
        ("sst", ["a film", "x", "日本語のレビュー 🎬", "<script>alert(1)</script>"]),
        *((task, [["a", "b"], ["how?", "why?"]]) for task in ("qqp", "sts", "nli")),
    ],
)
def test_predictions_match_the_model_in_row_order(client, predictor, task, rows):
    status, answer = client.predict(task, rows)
    expected = [predictor.answer(task, row if isinstance(row, str) else tuple(row)) for row in rows]
    assert status == 200
    assert answer == {"task": task, "predictions": json.loads(json.dumps([row._asdict() for row in expected]))}
    assert all(isinstance(row["label"], int) for row in answer["predictions"]) == (task != "sts")


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 422, "body: is not valid JSON (Expecting property name"),
        (b'{"rows": ["\xff"]}', 400, "error parsing the body"),
        (b'{"rows": ' + b"[" * 100_000, 400, "error parsing the body"),
        (b'{"rows": ["\\ud800"]}', 422, "rows[0]: text is not Unicode"),
        (b'{"rows": []}', 422, 'rows: found []; expected {"rows": [...]} with 1 to 256 rows, each a text or'),
        (b'{"rows": ["a", 3]}', 422, "rows[1]: found 3; expected"),
        (b'{"rows": ["a", " \\t\\n"]}', 422, "rows[1]: empty text"),
    ],
)
def test_invalid_bodies_are_refused(client, body, status, message):
    assert_refused(post(client, body), status, message)


def test_checks_stop_at_the_first_wrong_row():
    with pytest.raises(ValidationError) as caught:
        Rows(rows=[1] * 1000)
    assert caught.value.error_count() == 2  # neither a text nor a pair


def test_unknown_tasks_paths_and_content_types_are_refused(client):
    assert_refused(client.predict("ssst", ["a"]), 404, "task: found 'ssst', expected one of sst, qqp, sts, nli")
    assert_refused(client.get("/nothing")[::2], 404, "Not Found")
    assert_refused(client.get("/predict/sst")[::2], 405, "use POST")
    assert_refused(client.predict("qqp", [["a", "b"], "a"]), 422, "rows[1]: not a pair: found 'a'")
    untyped = post(client, b'{"rows": ["a"]}', headers={})  # as curl -d sends it
    assert_refused(untyped, 422, 'body: found b\'{"rows": ["a"]}\'; expected')
    assert untyped[1]["error"].endswith("with Content-Type: application/json")


def test_limits_are_enforced(served):
    client = served(max_rows=3, max_bytes=200)
    assert client.predict("sst", ["x" * 20] * 3)[0] == 200
    assert_refused(client.predict("sst", ["x"] * 4), 422, "rows: found 4, expected 3 at most in one request")
    assert_refused(client.predict("sst", ["x" * 300]), 413, "body: found more than 200 bytes")


def test_limit_of_bytes_holds_for_a_body_without_length(served):
    client, body = served(max_bytes=1000), (b" " * 10_000 for _ in range(5000))
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=20)
    with closing(connection), suppress(BrokenPipeError, ConnectionResetError):  # the server closes the connection
        connection.request("POST", "/predict/sst", body, JSON)  # in chunks, without a length
        connection.getresponse()
    wait_until(lambda: client.metric('bertrio_requests_total{route="/predict/{task}",status="413"}') == 1)


@pytest.mark.parametrize(("sent", "answer"), [(HEAD % 9 + b"{", b"HTTP/1.1 408 "), (HEAD[:50], b""), (b"", b"")])
def test_stalled_requests_time_out(served, monkeypatch, sent, answer):
    monkeypatch.setattr("bertrio.inference.serve.limits.BODY_SECONDS", 0.2)
    monkeypatch.setattr("bertrio.inference.serve.limits.HEAD_SECONDS", 0.2)
    client = served()
    with socket.create_connection(("127.0.0.1", client.port), timeout=20) as slow:
        slow.sendall(sent)
        assert slow.recv(13) == answer


def test_idle_connections_do_not_block_others(served, monkeypatch, caplog):
    monkeypatch.setattr("resource.getrlimit", lambda _: (106, 4096))  # room for three
    client = served()
    with ExitStack() as stack:
        address = ("127.0.0.1", client.port)
        idle = [stack.enter_context(socket.create_connection(address, timeout=20)) for _ in range(20)]
        assert client.predict("sst", ["a"])[0] == 200
        assert [connection.recv(1) for connection in idle[:17]] == [b""] * 17 and not caplog.text


def test_keep_alive_requests_do_not_wait_for_acknowledgements(client):
    connection, seconds = http.client.HTTPConnection("127.0.0.1", client.port, timeout=20), []
    with closing(connection):
        for _ in range(20):
            began = time.perf_counter()
            connection.request("GET", "/health")
            connection.getresponse().read()
            seconds.append(time.perf_counter() - began)
    assert min(seconds[1:]) < 0.03  # 0.04 with Nagle's algorithm and delayed acknowledgements


def test_memory_does_not_grow_with_new_batch_shapes(root):
    if choose("cpu").compute != torch.bfloat16:
        pytest.skip("without bf16 units in the CPU no kernels are cached")
    script = """if True:
        import resource, torch
        from bertrio.inference.serve.server import limit_kernel_caches
        limit_kernel_caches()
        weight, peaks = torch.ones(1536, 384, dtype=torch.bfloat16), []
        for rows in range(1, 400):
            torch.nn.functional.linear(torch.ones(rows, 384, dtype=torch.bfloat16), weight)
            peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        print(peaks[-1] - peaks[99])
    """
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 50_000  # KB


def test_garbage_collection_is_frozen_before_the_first_request(monkeypatch, tmp_path):
    calls = Mock()
    for name in ("Predictor", "build_app", "server_for", "gc"):
        monkeypatch.setattr(server, name, getattr(calls, name))
    for variable in server.KERNEL_CACHES:
        monkeypatch.setenv(variable, "64")
    server.serve(str(tmp_path), "127.0.0.1", 0, "cpu", "auto", Limits())
    assert calls.mock_calls[-2:] == [call.gc.freeze(), call.server_for().run(sockets=ANY)]


@pytest.mark.parametrize(("host", "status"), [("a.b:80", 421), ("localhost.a.b", 421), ("LOCALHOST:1", 200)])
def test_host_names_of_other_sites_are_refused(served, host, status):
    client = served(hosts=LOCAL_HOSTS)
    assert client.send("GET", "/tasks", headers={"Host": host})[0] == status and client.get("/tasks")[0] == 200


def test_a_full_queue_refuses_with_retry_after_and_recovers(served, predictor):
    client = served(max_batch=1, max_wait=0, max_rows=2, queue=2)
    predictor.hold.clear()
    with ThreadPoolExecutor(2) as pool:
        working = pool.submit(client.predict, "sst", ["working"])
        wait_until(lambda: predictor.batches)
        waiting = pool.submit(client.predict, "sst", ["a", "b"])
        wait_until(lambda: client.metric("bertrio_waiting_rows") == 2)
        status, headers, body = client.send("POST", "/predict/sst", b'{"rows": ["c"]}', JSON)
        assert_refused((status, body), 503, "server: 2 rows are waiting")
        assert int(headers["retry-after"]) >= 1
        predictor.hold.set()
        assert working.result()[0] == waiting.result()[0] == 200
    assert client.predict("sst", ["c"])[0] == 200


def test_a_failing_row_is_a_logged_500_for_its_request_alone(served, caplog):
    logging.disable(logging.NOTSET)  # other tests disable it in this process
    client = served(max_wait=0.3)
    with caplog.at_level(logging.ERROR), ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda text: client.predict("sst", [text]), ["good", "explode", "fine"]))
    assert [status for status, _ in answers] == [200, 500, 200]
    assert "secret" not in answers[1][1]
    wait_until(lambda: "secret of the inside" in caplog.text)  # logged after the response
    assert client.predict("sst", ["good"])[0] == 200


def test_server_warms_up_and_describes_all_tasks(predictor):
    with running(predictor) as client:
        assert {task for task, _ in predictor.batches} == set(predictor.tasks)
        assert client.get("/health")[::2] == (200, {"status": "ready"})
        described = client.get("/tasks")[2]
    assert described["model"] == {"name": "models", "encoders": ["tiny"]}
    facts = {task["name"]: task for task in described["tasks"]}
    assert list(facts) == ["sst", "qqp", "sts", "nli"]
    assert facts["sst"] == {
        "name": "sst", "kind": "single", "encoding": "cross", "target": "ordered",
        "count": 5, "labels": list("01234"), "low": None, "high": None,
    }  # fmt: skip
    assert (facts["sts"]["target"], facts["sts"]["low"], facts["sts"]["high"]) == ("score", 0, 5)
    assert facts["nli"]["labels"] == ["entailed", "neutral", "contradicted"] and facts["nli"]["kind"] == "pair"


def test_metrics_count_requests_and_rows_under_few_names(served):
    client = served()
    client.predict("sst", ["a", "b", "c"])
    client.predict("nothing", ["a"])
    for number in range(20):
        client.get(f"/path-{number}")
    assert client.metric('bertrio_requests_total{route="/predict/{task}",status="200"}') == 1
    assert client.metric('bertrio_requests_total{route="/predict/{task}",status="404"}') == 1
    assert client.metric('bertrio_requests_total{route="other",status="404"}') == 20
    assert client.metric('bertrio_batch_rows_sum{task="sst"}') == 3
    assert client.metric('bertrio_batch_seconds_count{task="sst"}') == 1
    assert client.metric("bertrio_waiting_rows") == 0


def test_the_example_of_openapi_is_valid(client):
    _, _, schema = client.get("/openapi.json")
    assert {"200", "413", "422", "503"} <= set(schema["paths"]["/predict/{task}"]["post"]["responses"])
    (example,) = schema["components"]["schemas"]["Rows"]["properties"]["rows"]["examples"]
    assert client.predict("sst", example)[0] == 200


@pytest.mark.parametrize("path", ["/", "/page.css", "/page.js", "/tasks", "/nothing"])
def test_every_response_has_security_headers(client, path):
    _, headers, _ = client.get(path)
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
