"""The server over real sockets: answers, refusals with their reasons, limits, load, and its end."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")
pytest.importorskip("prometheus_client", reason="needs the extra serve")

from bertrio.inference.serve.app import build_app
from bertrio.inference.serve.requests import Limits
from tests.inference.serve.conftest import running, wait_until

JSON = {"content-type": "application/json"}
HEAD = b"POST /predict/sst HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


def refused(answer, status, where, found="", expected=""):
    """That an answer is a refusal of this kind, whose parts say these things."""
    code, body = answer
    assert code == status, body
    assert set(body) == {"error", "where", "found", "expected"}
    assert body["where"] == where and found in body["found"] and expected in body["expected"], body
    assert body["error"] == f"{where}: found {body['found']}, expected {body['expected']}"
    return True


def post(client, body, task="sst", headers=JSON):
    status, _, answer = client.send("POST", f"/predict/{task}", body, headers)
    return status, answer


@pytest.mark.parametrize(
    ("task", "rows"),
    [
        ("sst", ["a film", "x", "日本語のレビュー 🎬", "<script>alert(1)</script>"]),
        ("qqp", [["a", "b"], ["how?", "why?"]]),
        ("sts", [["a", "b"]]),
        ("nli", [["a", "b"]]),
    ],
)
def test_predictions_are_those_of_the_model_in_the_order_of_the_rows(client, predictor, task, rows):
    status, answer = client.predict(task, rows)
    expected = [predictor.answer(task, row if isinstance(row, str) else tuple(row)) for row in rows]
    assert status == 200
    assert answer == {"task": task, "predictions": json.loads(json.dumps([one._asdict() for one in expected]))}
    assert all(isinstance(one["label"], int) for one in answer["predictions"]) == (task != "sts")


def test_requests_that_come_together_are_joined_and_each_gets_its_own(served, predictor):
    client = served(max_wait=0.2, max_batch=64)
    texts = ["x" * length for length in range(1, 25)]
    with ThreadPoolExecutor(len(texts)) as pool:
        answers = list(pool.map(lambda text: client.predict("sst", [text]), texts))
    assert [answer["predictions"][0]["label"] for _, answer in answers] == [len(text) % 5 for text in texts]
    assert len(predictor.batches) < len(texts) / 2


@pytest.mark.parametrize(
    ("body", "status", "where", "found", "expected"),
    [
        (b"", 400, "body", "no JSON", '{"rows": ['),
        (b"{", 400, "body", "no JSON", '{"rows": ['),
        (b'{"rows": ["a"]} {}', 400, "body", "no JSON", '{"rows": ['),
        (b'{"rows": ["\xff"]}', 400, "body", "no JSON", '{"rows": ['),
        (b'{"rows": ["\\ud800"]}', 400, "body", "no JSON", '{"rows": ['),
        (b'{"rows": ' + b"[" * 100_000, 400, "body", "no JSON", '{"rows": ['),
        (b"[]", 422, "body", "a list of 0", "an object"),
        (b"null", 422, "body", "null", "an object"),
        (b"{}", 422, "body", "no field rows", "an object such as"),
        (b'{"row": ["a"]}', 422, "body", "no field rows", "an object such as"),
        (b'{"rows": ["a"], "top": 3}', 422, "top", "a number", "no field but rows"),
        (b'{"rows": "a"}', 422, "rows", "a text", "a list of one row or more"),
        (b'{"rows": []}', 422, "rows", "a list of 0", "a list of one row or more"),
        (b'{"rows": ["a", 3]}', 422, "rows[1]", "a number", "a text, as task sst is of kind single"),
        (b'{"rows": [true]}', 422, "rows[0]", "true or false", "a text"),
        (b'{"rows": [null]}', 422, "rows[0]", "null", "a text"),
        (b'{"rows": [["a", "b"]]}', 422, "rows[0]", "a list of 2", "a text, as task sst is of kind single"),
        (b'{"rows": [{"text": "a"}]}', 422, "rows[0]", "an object", "a text"),
        (b'{"rows": ["a", " \\t\\n"]}', 422, "rows[1]", "empty text", "characters"),
    ],
)
def test_a_body_that_is_not_as_it_should_be_is_refused_with_the_reason(client, body, status, where, found, expected):
    assert refused(post(client, body), status, where, found, expected)


@pytest.mark.parametrize(
    ("rows", "where", "found", "expected"),
    [
        (["a"], "rows[0]", "a text", "two texts, [a, b], as task qqp is of kind pair"),
        ([["a", "b"], ["a"]], "rows[1]", "a list of 1", "two texts"),
        ([["a", "b", "c"]], "rows[0]", "a list of 3", "two texts"),
        ([["a", 3]], "rows[0][1]", "a number", "a text"),
        ([["a", ""]], "rows[0]", "empty text", ""),
    ],
)
def test_pairs_are_checked_likewise(client, rows, where, found, expected):
    assert refused(client.predict("qqp", rows), 422, where, found, expected)


def test_what_is_not_there_is_named_with_what_is(client):
    assert refused(client.predict("ssst", ["a"]), 404, "task", "'ssst'", "one of sst, qqp, sts, nli")
    assert refused(client.predict("x" * 5000, ["a"]), 404, "task", "xxx...")
    status, _, body = client.get("/nothing")
    assert refused((status, body), 404, "request", "GET /nothing", "/openapi.json")
    assert refused(post(client, b'{"rows": ["a"]}', "sst/"), 404, "request", "POST /predict/sst/", "/openapi.json")
    assert client.get("/tasks/")[0] == 404
    status, headers, body = client.get("/predict/sst")
    assert refused((status, body), 405, "request", "GET", "method POST") and headers["allow"] == "POST"


def test_a_body_has_to_be_said_to_be_json(client):
    body = b'{"rows": ["a"]}'
    assert refused(post(client, body, headers={"content-type": "text/plain"}), 415, "content-type", "text/plain")
    assert refused(post(client, body, headers={}), 415, "content-type", "none", "application/json")
    assert post(client, body, headers={"content-type": "Application/JSON; charset=utf-8"})[0] == 200


def test_limits_hold_and_say_so(served):
    client = served(max_rows=3, max_chars=20, max_bytes=200)
    assert client.predict("sst", ["x" * 20] * 3)[0] == 200
    assert refused(client.predict("sst", ["x"] * 4), 413, "rows", "4 rows", "at most 3")
    assert refused(client.predict("sst", ["x", "x" * 21]), 413, "rows[1]", "21 characters", "at most 20")
    assert refused(client.predict("qqp", [["x", "x" * 21]]), 413, "rows[0]", "21 characters", "at most 20")
    assert refused(client.predict("sst", ["x" * 300]), 413, "body", "more than 200 bytes", "at most 200;")


def test_a_body_is_measured_while_it_is_read_whatever_its_header_says(served):
    client = served(max_bytes=1000)
    sent = 0

    def endless():
        nonlocal sent
        while sent < 50_000_000:
            sent += 10_000
            yield b" " * 10_000

    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=20)
    try:
        connection.request("POST", "/predict/sst", endless(), JSON)  # in chunks, without a length
        response = connection.getresponse()
        status, body = response.status, json.loads(response.read())
    except (BrokenPipeError, ConnectionResetError):  # the server has hung up, which is as good
        pass
    else:
        assert refused((status, body), 413, "body", "more than 1000 bytes")
    finally:
        connection.close()
    wait_until(lambda: client.metric('bertrio_requests_total{route="/predict/{task}",status="413"}') == 1)


def test_a_body_that_does_not_end_is_given_up_on(served, monkeypatch):
    monkeypatch.setattr("bertrio.inference.serve.requests.BODY_SECONDS", 0.2)
    client = served()
    with socket.create_connection(("127.0.0.1", client.port), timeout=20) as slow:
        slow.sendall(
            b"POST /predict/sst HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
        )
        assert slow.recv(100).startswith(b"HTTP/1.1 408 ")


def test_a_full_queue_refuses_at_once_with_when_to_try_again_and_recovers(served, predictor):
    client = served(max_batch=1, max_wait=0, max_rows=2, queue=2)
    predictor.hold.clear()
    with ThreadPoolExecutor(2) as pool:
        working = pool.submit(client.predict, "sst", ["working"])
        wait_until(lambda: predictor.batches)
        waiting = pool.submit(client.predict, "sst", ["a", "b"])
        wait_until(lambda: client.waiting() == 2)
        status, headers, body = client.send("POST", "/predict/sst", b'{"rows": ["c"]}', JSON)
        assert refused((status, body), 503, "server", "2 rows waiting") and int(headers["retry-after"]) >= 1
        predictor.hold.set()
        assert working.result()[0] == waiting.result()[0] == 200
    assert client.predict("sst", ["c"])[0] == 200


def test_a_row_that_fails_is_a_bare_500_for_its_request_alone_and_is_logged(served, caplog):
    client = served(max_wait=0.3)
    with caplog.at_level(logging.ERROR), ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda text: client.predict("sst", [text]), ["good", "explode", "fine"]))
    assert [status for status, _ in answers] == [200, 500, 200]
    assert answers[1][1] == {"error": "an error of the server"}
    assert "secret of the inside" in caplog.text
    assert client.predict("sst", ["good"])[0] == 200


def test_rows_of_a_client_that_has_gone_are_not_predicted(served, predictor):
    client = served(max_batch=1, max_wait=0)
    predictor.hold.clear()
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(client.predict, "sst", ["working"])
        wait_until(lambda: predictor.batches)
        body = b'{"rows": ["gone", "gone"]}'
        with socket.create_connection(("127.0.0.1", client.port)) as leaving:
            head = (
                "POST /predict/sst HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            )
            leaving.sendall((head % len(body)).encode() + body)
            wait_until(lambda: client.waiting() == 2)
        wait_until(lambda: client.waiting() == 0)
        predictor.hold.set()
        assert working.result()[0] == 200
    assert client.predict("sst", ["after"])[0] == 200
    assert [rows for _, rows in predictor.batches] == [["working"], ["after"]]
    assert client.metric('bertrio_requests_total{route="/predict/{task}",status="499"}') == 1


def test_told_to_stop_it_finishes_what_it_took(predictor):
    answers = []
    app = build_app(predictor, Limits(max_batch=1, max_wait=0))
    with running(app) as client:
        predictor.hold.clear()
        predictor.batches.clear()
        threads = [
            threading.Thread(target=lambda text=text: answers.append(client.predict("sst", [text]))) for text in "abc"
        ]
        for thread in threads:
            thread.start()
        wait_until(lambda: client.waiting() == 2)
        threading.Timer(0.5, predictor.hold.set).start()  # the server is told to stop before
    for thread in threads:
        thread.join(20)
    assert [status for status, _ in answers] == [200, 200, 200]


def test_it_is_ready_once_the_model_has_answered_and_no_sooner(predictor):
    app = build_app(predictor, Limits())
    with running(app) as client:
        assert {task for task, _ in predictor.batches} == set(predictor.tasks)
        status, _, body = client.get("/health")
        assert (status, body) == (200, {"status": "ready"})


def test_health_says_so_where_nothing_is_answered(predictor):
    """Without the server's start, as before it and after its end."""
    import asyncio

    app, sent = build_app(predictor, Limits()), []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/health", "query_string": b"", "headers": []}
    asyncio.run(app({**scope, "raw_path": b"/health", "root_path": "", "scheme": "http"}, receive, send))
    assert sent[0]["status"] == 503 and b"not ready" in sent[1]["body"]


def test_tasks_tell_what_they_take_and_give(client):
    _, _, body = client.get("/tasks")
    facts = {task["name"]: task for task in body["tasks"]}
    assert list(facts) == ["sst", "qqp", "sts", "nli"]
    assert facts["sst"] == {
        "name": "sst", "kind": "single", "encoding": "cross", "target": "ordered",
        "count": 5, "labels": None, "low": None, "high": None,
    }  # fmt: skip
    assert (facts["sts"]["target"], facts["sts"]["low"], facts["sts"]["high"]) == ("score", 0, 5)
    assert facts["nli"]["labels"] == ["entailed", "neutral", "contradicted"] and facts["nli"]["count"] == 3
    assert facts["qqp"]["target"] == "binary" and facts["qqp"]["kind"] == "pair"


def test_metrics_count_requests_batches_and_rows_under_a_bounded_number_of_names(served):
    client = served()
    client.predict("sst", ["a", "b", "c"])
    client.predict("nothing", ["a"])
    for place in range(20):
        client.get(f"/path-{place}")
    assert client.metric('bertrio_requests_total{route="/predict/{task}",status="200"}') == 1
    assert client.metric('bertrio_requests_total{route="/predict/{task}",status="404"}') == 1
    assert client.metric('bertrio_requests_total{route="other",status="404"}') == 20
    assert client.metric('bertrio_request_seconds_count{route="/predict/{task}"}') == 2
    assert client.metric('bertrio_batch_rows_sum{task="sst"}') == 3
    assert client.metric('bertrio_batch_seconds_count{task="sst"}') == 1
    assert client.waiting() == 0


def test_openapi_describes_bodies_answers_and_refusals_with_examples(client):
    _, _, schema = client.get("/openapi.json")
    assert set(schema["paths"]) == {"/predict/{task}", "/tasks", "/health", "/metrics"}
    models = schema["components"]["schemas"]
    for name in ("Answers", "Answer", "Tasks", "Health", "Refusal"):
        assert models[name]["examples"], name
    predict = schema["paths"]["/predict/{task}"]["post"]
    assert {"200", "400", "404", "413", "415", "422", "503"} <= set(predict["responses"])
    for reference in json.dumps(schema).split("#/components/schemas/")[1:]:
        assert reference.partition('"')[0] in models


def test_the_examples_of_openapi_are_answered(client):
    _, _, schema = client.get("/openapi.json")
    body = schema["paths"]["/predict/{task}"]["post"]["requestBody"]
    single, pair = body["content"]["application/json"]["schema"]["anyOf"]
    for model, task in ((single, "sst"), (pair, "qqp")):
        (example,) = model["examples"]
        assert post(client, json.dumps(example).encode(), task)[0] == 200


@pytest.mark.parametrize("path", ["/", "/page.css", "/page.js", "/tasks", "/nothing"])
def test_every_response_carries_the_policy(client, path):
    _, headers, _ = client.get(path)
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
