from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from bertrio.core.runtime import generator
from bertrio.data.batches import BatchStream, Rows, similar_length_batches


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    words = ["good", "bad", "film", "question", "why"]
    text = lambda: " ".join(rng.choice(words, size=rng.integers(1, 30)))  # noqa: E731
    frame = pd.DataFrame({"id": [f"q{i}" for i in range(203)], "text_a": [text() for _ in range(203)]})
    frame["text_b"], frame["label"] = [text() for _ in range(203)], rng.integers(0, 2, 203).astype(float)
    return frame


@pytest.fixture
def rows(frame, tokenizer, tasks):
    return Rows(frame, tasks["qqp"], tokenizer, max_length=48)


@pytest.fixture
def bi_rows(frame, tokenizer, tasks):
    return Rows(frame, replace(tasks["qqp"], encoding="bi"), tokenizer, max_length=24)


def a_pass(stream):
    """The row positions of one pass, batch by batch."""
    return [next(stream).rows.tolist() for _ in range(len(stream))]


def flat(batches):
    return [row for batch in batches for row in batch]


def test_batches_of_similar_length_waste_little_padding():
    lengths = np.random.default_rng(1).integers(3, 60, 8000)
    batches = similar_length_batches(lengths, 16, generator(1, "x"))
    padded = sum(lengths[batch].max() * len(batch) for batch in batches)
    assert padded / lengths.sum() < 1.05


@pytest.mark.parametrize("sizes", [(8, 8), (8, 16), (24, 8)])
def test_with_ranks_in_common_batches_of_several_sets_are_short_at_the_same_time(sizes):
    """Over several passes that end at different steps, and with windows that do not stand side by side."""
    rng = np.random.default_rng(1)
    sets = [rng.integers(3, 60, 3000), (3 + rng.geometric(0.06, 1777)).clip(max=100)]

    def correlation(matched):
        found = []
        for index, (lengths, size) in enumerate(zip(sets, sizes)):
            draws = generator(1, f"rows {index}"), generator(1, "lengths") if matched else None
            passes = [similar_length_batches(lengths, size, *draws) for _ in range(9)]
            assert all(sorted(np.concatenate(of)) == list(range(len(lengths))) for of in passes)
            found.append([lengths[batch].max() for of in passes for batch in of])
        widths = np.array(list(zip(*found)))
        return np.corrcoef(widths.argsort(axis=0).argsort(axis=0).T)[0, 1]

    assert correlation(matched=True) > 0.9 and abs(correlation(matched=False)) < 0.3


def test_the_order_depends_on_the_seed_alone_and_changes_every_pass(rows):
    one, same, other = (BatchStream(rows, 16, generator(seed, "a")) for seed in (1, 1, 2))
    passes = [[next(one).rows.tolist() for _ in range(len(one))] for _ in range(2)]
    assert [next(same).rows.tolist() for _ in range(2 * len(same))] == passes[0] + passes[1]
    assert [next(other).rows.tolist() for _ in range(len(other))] != passes[0]
    assert passes[0] != passes[1]
    assert sorted(row for batch in passes[1] for row in batch) == list(range(len(rows)))


def test_inference_goes_through_every_row_once_the_longest_first(rows):
    batches = list(rows.sorted_batches(32))
    assert sorted(np.concatenate([batch.rows for batch in batches])) == list(range(len(rows)))
    widths = [batch.inputs[0]["input_ids"].shape[1] for batch in batches]
    assert widths == sorted(widths, reverse=True)


def test_bi_encoded_rows_can_be_taken(bi_rows):
    taken = bi_rows.take(np.array([5, 2])).batch(np.array([0, 1]))
    for part, whole in zip(taken.inputs, bi_rows.batch(np.array([5, 2])).inputs):
        assert all(torch.equal(part[name], whole[name]) for name in whole)


def test_without_a_cap_or_with_one_that_cuts_nothing_off_the_order_is_that_of_all_rows(rows):
    expected = [batch.tolist() for batch in similar_length_batches(rows.lengths, 16, generator(1, "a"))]
    for cap in (None, len(rows), 1000):
        for redraw in (True, False):
            assert a_pass(BatchStream(rows, 16, generator(1, "a"), cap, redraw)) == expected


@pytest.mark.parametrize("redraw", [True, False])
@pytest.mark.parametrize("cap", [1, 16, 50])
def test_a_capped_pass_has_that_many_rows_each_once(rows, cap, redraw):
    stream = BatchStream(rows, 16, generator(1, "a"), cap, redraw)
    assert len(stream) == -(-cap // 16)
    for _ in range(4):
        taken = flat(a_pass(stream))
        assert len(set(taken)) == len(taken) == cap


def test_a_redrawn_cap_comes_to_all_rows_in_time_and_one_drawn_once_never_to_others(rows):
    anew, once = (BatchStream(rows, 16, generator(1, "a"), 50, redraw) for redraw in (True, False))
    passes = [[frozenset(flat(a_pass(stream))) for _ in range(60)] for stream in (anew, once)]
    assert len(set(passes[0])) == 60 and frozenset.union(*passes[0]) == set(range(len(rows)))
    assert len(set(passes[1])) == 1


@pytest.mark.parametrize("options", [{}, {"cap": 50}, {"cap": 50, "redraw": False}, {"common": True}])
def test_a_stream_goes_on_where_another_one_was(rows, options):
    """At any batch: before the first, within a pass, between two."""

    def begun():
        common = {"common": generator(1, "y")} if "common" in options else {}
        return BatchStream(rows, 16, generator(1, "x"), **options | common)

    stream = begun()
    for _ in range(3 * len(stream) + 2):
        other = begun()
        other.load_state_dict(stream.state_dict())
        again = begun()
        again.load_state_dict(other.state_dict())
        expected = [next(other).rows.tolist() for _ in range(len(stream) + 1)]
        assert [next(again).rows.tolist() for _ in range(len(stream) + 1)] == expected
        assert next(stream).rows.tolist() == expected[0]
