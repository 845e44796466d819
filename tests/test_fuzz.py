"""Readers of any bytes return a result or raise UserError: no other exception, and no hang."""

import copy
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("hypothesis")
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir

from bertrio.config import read_yaml
from bertrio.config.loading import check_params
from bertrio.core.errors import UserError
from bertrio.data.download import write_rejects
from bertrio.data.formats import READERS
from bertrio.data.sources.files import read_file
from bertrio.data.table import read_table, write_table
from bertrio.evaluation.predictions import SCHEMA, read_predictions
from tests.data.sources.test_files import serialized
from tests.inference.serve.conftest import TASKS as SERVED
from tests.inference.serve.conftest import FakePredictor, running
from tests.training.test_checkpoints import restored, saved

set_hypothesis_home_dir(Path(tempfile.gettempdir()) / "hypothesis")  # hypothesis would create a folder here
QUICK, LONG = 1, 8  # a few seconds in all, and a minute


@pytest.fixture(params=[QUICK, pytest.param(LONG, marks=pytest.mark.slow)], ids=["quick", "long"])
def fuzz(request) -> Callable[..., None]:
    """Call a check with values drawn from strategies: fixed examples in quick mode, random ones in long mode."""

    def run(check: Callable[..., None], *drawn: st.SearchStrategy, examples: int = 100) -> None:
        quick, limit = request.param == QUICK, timedelta(seconds=20)
        options = settings(max_examples=examples * request.param, deadline=limit, database=None, derandomize=quick)
        options(given(st.tuples(*drawn))(lambda values: check(*values)))()

    return run


TASKS = {"single": SERVED["sst"], "pair": SERVED["sts"]}
PIECES = [  # delimiters and edge cases of the file formats
    b"\n", b"\r\n", b"\r", b",", b"\t", b";", b'"', b'""', b'"\n', b"\0", b"\xef\xbb\xbf", b"\xff\xfe", b"\xe9",
    b"nan", b"-1", b"5.0001", b"1e999", b"inf", b"9" * 400, b"1", b"0", b"{", b"}", b"[", b"]", b":", b"null", b"true",
    b"\\ud800", b"\\u0000", b"\xf0\x9f\x98\x80", b"\xe2\x80\xa8", b"id", b"text", b"label", b"text_a", b"x" * 5000,
    b"[" * 3000, b"#", b"&a ", b"*a", b"<<: *a\n", b"!!int ", b"!!python/name:os.system ", b"---\n", b"? ", b"- ",
]  # fmt: skip
ROWS = {
    "single": pd.DataFrame({"id": ["a", "b", "c"], "text": ["one, two", 'say "x"', "three"], "label": [0, 4, 2]}),
    "pair": pd.DataFrame({"text_a": ["a", "b"], "text_b": ["c\td", "e\nf"], "label": [0.5, None]}),
}


def damage(content: bytes) -> st.SearchStrategy[bytes]:
    """Draw `content` with parts removed or replaced, or with flipped bits."""
    start, length = st.integers(0, len(content)), st.one_of(st.integers(0, 40), st.just(len(content)))
    other = st.one_of(st.just(b""), st.sampled_from(PIECES), st.binary(max_size=8))
    changes = st.lists(st.tuples(start, length, other, st.integers(0, 255)), max_size=6)
    return changes.map(partial(_apply, content))


def _apply(content: bytes, changes: list[tuple[int, int, bytes, int]]) -> bytes:
    for start, length, other, flip in changes:
        rest = content[start + length :]
        content = content[:start] + other + bytes(byte ^ flip for byte in rest[:1]) + rest[1:]
    return content


def any_bytes(content: bytes) -> st.SearchStrategy[bytes]:
    """Draw random bytes, most often a damaged file."""
    pieces = st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=6)), max_size=30).map(b"".join)
    return st.one_of(damage(content), pieces, st.binary(max_size=200))


@contextmanager
def allow_user_error() -> Iterator[None]:
    """Ignore a UserError whose message is short and not empty."""
    try:
        yield
    except UserError as error:
        if not str(error).strip() or len(str(error)) > 20_000:
            raise


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("ending", sorted(READERS))
def test_data_file_of_any_bytes_is_read_or_a_user_error(tmp_path, fuzz, ending, kind):
    path, out = tmp_path / f"rows{ending}", tmp_path / "table.parquet"

    def check(content: bytes, split: str) -> None:
        path.write_bytes(content)
        with allow_user_error():
            table, rejects = read_file(path, TASKS[kind], split, {}, f"data.files.{kind}", split)
            texts = [table[column] for column in TASKS[kind].text_columns]
            assert table["id"].is_unique and all((column.str.strip() == column).all() for column in texts)
            assert all(column.str.len().gt(0).all() for column in texts)
            assert split == "test" or table["label"].notna().all()
            write_table(table, out)
            pd.testing.assert_frame_equal(read_table(out), table, check_dtype=False)
            write_rejects(tmp_path / "rejects.csv", rejects)

    fuzz(check, any_bytes(serialized(ROWS[kind], ending)), st.sampled_from(["train", "test"]), examples=60)


def test_yaml_of_any_bytes_is_a_mapping_or_a_user_error(tmp_path, fuzz):
    path = tmp_path / "a.yaml"

    def check(content: bytes) -> None:
        path.write_bytes(content)
        with allow_user_error():
            assert isinstance(read_yaml(path), dict)

    fuzz(check, any_bytes(b"a: &x {b: [1, 2.5, null], c: 'text'}\nd: *x\n? e\n: !!str 3\n"), examples=300)


def children(block: Any) -> dict[Any, Any]:
    """Return the values of a block or list by key or index."""
    return block if isinstance(block, dict) else dict(enumerate(block)) if isinstance(block, list) else {}


def paths_of(raw: Any) -> list[tuple[Any, ...]]:
    """Return the paths of keys to all values in nested blocks and lists."""
    return [path for key, value in children(raw).items() for path in [(key,), *((key, *p) for p in paths_of(value))]]


def test_any_value_of_any_param_is_valid_or_a_user_error(root, fuzz):
    raw = read_yaml(root / "params.yaml")
    other = {"runtime": {"seed": 2}, "tasks": {"sst": {"dropout": 0.2}}, "answers": ["sst"]}
    raw["ensemble"]["members"]["other"] = other
    leaf = st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.binary(max_size=3), st.dates(),
        st.sampled_from(["sst", "qqp", "..", "/", "~nobody/x", "a\0b", "2e-05", "inf", "x" * 5000, 2**70, -1, 0, 1]),
    )  # fmt: skip
    key = st.one_of(st.text(max_size=6), st.sampled_from(["sst", "tasks", "lambda", "seed"]), st.integers(), st.none())
    nest = lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(key, inner, max_size=3))  # noqa: E731
    value = st.recursive(leaf, nest, max_leaves=6)

    def check(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
        changed = copy.deepcopy(raw)
        for (*outer, last), new in changes:
            block = changed
            for key in outer:
                block = children(block).get(key)
            if last in children(block):
                block[last] = new
        with allow_user_error():
            check_params(changed, "params.yaml")

    fuzz(check, st.lists(st.tuples(st.sampled_from(paths_of(raw)), value), min_size=1, max_size=3), examples=300)


def test_predictions_of_any_bytes_are_a_table_or_a_user_error(tmp_path, fuzz):
    rows = {
        "id": ["a", "b"], "task": ["sst", "sts"], "split": ["dev", "dev"], "label": [1.0, None],
        "prediction": [1.0, 2.5], "probabilities": [[0.5, 0.5], None], "score": [None, 2.5],
    }  # fmt: skip
    path = tmp_path / "predictions.parquet"
    pq.write_table(pa.table(rows, schema=SCHEMA), path)

    def check(content: bytes) -> None:
        with allow_user_error():
            assert read_predictions(path, content)["prediction"].notna().all()

    fuzz(check, any_bytes(path.read_bytes()), examples=200)


def test_server_survives_requests_of_any_bytes(fuzz):
    pytest.importorskip("fastapi", reason="needs the extra serve")
    body = b'{"rows": ["a film", "b"]}'
    head = b"POST /predict/sst HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"

    def check(sent: bytes, whole: bool) -> None:
        with socket.create_connection(("127.0.0.1", client.port), timeout=10) as connection:
            connection.sendall(head % len(sent) + sent if whole else sent)
            connection.shutdown(socket.SHUT_WR)
            with suppress(ConnectionResetError):
                answer = b"".join(iter(partial(connection.recv, 1 << 16), b""))
                assert not answer or 200 <= int(answer.split(b" ")[1]) < 500, answer

    with running(FakePredictor(SERVED)) as client:
        fuzz(check, any_bytes(body), st.just(True), examples=60)
        fuzz(check, any_bytes(head % len(body) + body), st.just(False), examples=60)
        assert client.predict("sst", ["a"])[0] == 200


def test_checkpoint_of_any_bytes_is_resumed_or_ignored(fuzz, tmp_path):
    saved(tmp_path, 1)
    (file,) = tmp_path.glob("*/step-*")

    def check(content: bytes) -> None:
        file.write_bytes(content)
        assert restored(tmp_path) in (0, 1)  # from scratch, or from the saved step

    fuzz(check, any_bytes(file.read_bytes()), examples=100)
