"""That the rows of a request are read or refused in words, whatever its body is."""

from __future__ import annotations

import json
import time

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("hypothesis", reason="needs the extra dev")

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from bertrio.inference.serve.requests import BODIES, Limits, Refused, read_rows
from tests.inference.serve.conftest import TASKS

LIMITS = Limits(max_rows=3, max_chars=8)
scalars = st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=12)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["rows", "x"]), inner, max_size=2),
    max_leaves=8,
)
rows = st.lists(st.text(max_size=12) | st.lists(st.text(max_size=4), min_size=1, max_size=3) | values, max_size=5)
bodies = st.binary(max_size=60) | values.map(json.dumps).map(str.encode)
bodies |= rows.map(lambda value: json.dumps({"rows": value}, ensure_ascii=False).encode("utf-8", "surrogatepass"))


def outcome(body, task):
    """The rows of a body, or why there are none."""
    try:
        return read_rows(body, task, LIMITS)
    except Refused as refused:
        return refused


@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(bodies, st.sampled_from(["sst", "qqp"]))
def test_any_bytes_are_read_or_refused_in_words(body, name):
    found = outcome(body, TASKS[name])
    if isinstance(found, Refused):
        assert found.status in (400, 413, 422)
        assert found.where and found.found and found.expected
    else:
        assert 1 <= len(found) <= LIMITS.max_rows
        texts = [text for row in found for text in ([row] if name == "sst" else row)]
        assert all(isinstance(text, str) and text.strip() and len(text) <= LIMITS.max_chars for text in texts)
        assert len(texts) == len(found) * (1 if name == "sst" else 2)


def test_what_was_sent_is_shown_in_part_only():
    with pytest.raises(Refused) as caught:
        read_rows(json.dumps({"rows": ["a"], "x" * 10_000: 1}).encode(), TASKS["sst"], LIMITS)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("kind", BODIES)
def test_a_million_wrong_rows_cost_no_more_than_the_first(kind):
    """To note each one would hold up every other request for seconds."""
    with pytest.raises(ValidationError) as caught:
        BODIES[kind].model_validate_json(json.dumps({"rows": [1] * 1000}))
    assert caught.value.error_count() == 1


def test_any_number_of_unknown_fields_costs_little_more_than_to_parse_them():
    """To note each one would hold up every other request for most of a second."""
    body = json.dumps({f"k{place}": 1 for place in range(150_000)} | {"rows": ["a"]}).encode()

    def seconds(work):
        began = time.thread_time()
        found = work()
        return time.thread_time() - began, found

    parsing = min(seconds(lambda: json.loads(body))[0] for _ in range(3))
    refusing, refused = min((seconds(lambda: outcome(body, TASKS["sst"])) for _ in range(3)), key=lambda pair: pair[0])
    assert refusing < 3 * parsing
    assert str(refused) == "k0: found a number, expected no field but rows"
