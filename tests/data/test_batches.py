import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from bertrio.core.runtime import generator
from bertrio.data.batches import BatchStream, Rows, similar_length_batches
from bertrio.data.tokens import tokenise


@pytest.fixture
def rows(make_frame, tokenizer, tasks):
    return Rows(frame := make_frame(0, 203), tasks["qqp"], tokenise(frame, tasks["qqp"], tokenizer, 48))


def take(stream, batches=None):
    """Return the row positions of the next batches, by default of one pass."""
    return [next(stream).rows.tolist() for _ in range(len(stream) if batches is None else batches)]


def flat(batches):
    return [row for batch in batches for row in batch]


def test_similar_length_batches_waste_little_padding():
    lengths = np.random.default_rng(1).integers(3, 60, 8000)
    batches = similar_length_batches(lengths, 16, generator(1, "x"))
    padded = sum(lengths[batch].max() * len(batch) for batch in batches)
    assert padded / lengths.sum() < 1.05


@pytest.mark.parametrize("sizes", [(8, 8), (8, 16), (24, 8)])
def test_common_ranks_align_batch_lengths_of_several_sets(sizes):
    """Also over several passes that end at different steps, and with windows that are not aligned."""
    rng = np.random.default_rng(1)
    sets = [rng.integers(3, 60, 3000), (3 + rng.geometric(0.06, 1777)).clip(max=100)]

    def correlation(matched):
        widest = []
        for index, (lengths, size) in enumerate(zip(sets, sizes)):
            draws = generator(1, f"rows {index}"), generator(1, "lengths") if matched else None
            passes = [similar_length_batches(lengths, size, *draws) for _ in range(9)]
            assert all(sorted(np.concatenate(batches)) == list(range(len(lengths))) for batches in passes)
            widest.append([lengths[batch].max() for batch in flat(passes)])
        widths = np.array(list(zip(*widest)))
        return np.corrcoef(widths.argsort(axis=0).argsort(axis=0).T)[0, 1]

    assert correlation(matched=True) > 0.9 and abs(correlation(matched=False)) < 0.3


def test_order_depends_on_the_seed_and_changes_every_pass(rows):
    one, same, other = (BatchStream(rows, 16, generator(seed, "a")) for seed in (1, 1, 2))
    passes = [take(one), take(one)]
    assert take(same, 2 * len(same)) == passes[0] + passes[1]
    assert take(other) != passes[0] and passes[0] != passes[1]
    assert sorted(flat(passes[1])) == list(range(len(rows)))


def test_sorted_batches_have_every_row_once_longest_first(rows):
    batches = list(rows.sorted_batches(32))
    assert sorted(np.concatenate([batch.rows for batch in batches])) == list(range(len(rows)))
    widths = [batch.inputs[0]["input_ids"].shape[1] for batch in batches]
    assert widths == sorted(widths, reverse=True)


def test_take_and_join_of_bi_encoded_rows(make_frame, tokenizer, tasks):
    frame, task = make_frame(0, 9), replace(tasks["qqp"], encoding="bi")
    bi_rows = Rows(frame, task, tokenise(frame, task, tokenizer, 24))
    selected = bi_rows.take(np.array([5, 2])).batch(np.array([0, 1]))
    for part, whole in zip(selected.inputs, bi_rows.batch(np.array([5, 2])).inputs):
        assert all(torch.equal(part[name], whole[name]) for name in whole)
    frame = make_frame(1, 4).assign(label=np.nan)
    unlabelled = Rows(frame, task, tokenise(frame, task, tokenizer, 24))
    mixed = bi_rows.join(unlabelled).batch(np.array([10, 2]))
    for part, whole in zip(mixed.inputs, unlabelled.batch(np.array([1])).inputs):
        length = int(whole["attention_mask"].sum())
        assert torch.equal(part["input_ids"][0, :length], whole["input_ids"][0])
    assert mixed.labelled.tolist() == [False, True] and mixed.labels[1] == 1
    assert bi_rows.join(unlabelled).batch(np.array([9])).labels is None


def test_cap_above_the_number_of_rows_has_no_effect(rows):
    expected = [batch.tolist() for batch in similar_length_batches(rows.widths, 16, generator(1, "a"))]
    for cap, redraw in itertools.product((None, len(rows), 1000), (True, False)):
        assert take(BatchStream(rows, 16, generator(1, "a"), cap, redraw)) == expected


@pytest.mark.parametrize("redraw", [True, False])
@pytest.mark.parametrize("cap", [1, 16, 50])
def test_capped_pass_draws_rows_once_or_every_pass(rows, cap, redraw):
    stream = BatchStream(rows, 16, generator(1, "a"), cap, redraw)
    assert len(stream) == -(-cap // 16)
    passes = [flat(take(stream)) for _ in range(60)]
    assert all(len(set(drawn)) == len(drawn) == cap for drawn in passes)
    assert (len({frozenset(drawn) for drawn in passes}) > 1) == redraw
    if redraw and cap == 50:
        assert set(flat(passes)) == set(range(len(rows)))


@pytest.mark.parametrize("count", [3, 4, 6, 7, 8, 201, 203])  # a window has 200 rows
@pytest.mark.parametrize("matched", [True, False])
def test_too_small_last_batch_joins_the_one_before(rows, count, matched):
    common = generator(1, "b") if matched else None
    stream = BatchStream(rows, 4, generator(1, "a"), cap=count, redraw=False, common=common, smallest=3)
    batches = take(stream)
    whole, remainder = divmod(count, 4)
    expected = [4] * whole + ([remainder] if remainder == 3 else [])
    expected[-1] += remainder if remainder < 3 else 0
    assert sorted(map(len, batches)) == sorted(expected)
    assert len(set(flat(batches))) == count and sorted(flat(take(stream))) == sorted(flat(batches))


def test_sources_give_a_pass_the_requested_number_of_rows(rows):
    rows.sources = np.repeat(["", "more"], [100, 103]).astype(object)
    passes = [flat(take(BatchStream(rows, 16, generator(seed, "a"), drawn={"more": 20}))) for seed in (1, 1, 2)]
    stream = BatchStream(rows, 16, generator(1, "a"), drawn={"more": 20})
    passes += [flat(take(stream)) for _ in range(40)]
    assert all(sorted(drawn)[:100] == list(range(100)) and len(set(drawn)) == len(drawn) == 120 for drawn in passes)
    assert passes[0] == passes[1] == passes[3] and len({frozenset(drawn) for drawn in passes[3:]}) == 40
    assert set(flat(passes)) == set(range(len(rows))) and len(stream) == 8


@pytest.mark.parametrize("options", [{}, {"cap": 50}, {"cap": 50, "redraw": False}, {"common": 1}, {"drawn": {"": 9}}])
def test_stream_resumes_from_its_state(rows, options):
    def new_stream():
        common = {"common": generator(1, "y")} if "common" in options else {}
        return BatchStream(rows, 16, generator(1, "x"), **options | common)

    stream = new_stream()
    for _ in range(3 * len(stream) + 2):
        other, again = new_stream(), new_stream()
        other.load_state_dict(stream.state_dict())
        again.load_state_dict(other.state_dict())
        expected = take(other, len(stream) + 1)
        assert take(again, len(stream) + 1) == expected
        assert take(stream, 1) == expected[:1]


def test_text_numbers_ignore_padding_and_agree_across_shards(rows):
    batch, single_rows = rows.batch(np.arange(40)), [rows.batch(np.array([row])) for row in range(40)]
    assert torch.equal(batch.text_numbers, torch.cat([one.text_numbers for one in single_rows]))
    texts = {tuple(tokens["input_ids"][0].tolist()) for one in single_rows for tokens in one.inputs}
    assert len(batch.text_numbers.unique()) == len(texts)
    part = batch.part(1, 3)
    assert torch.equal(part.shard.whole.text_numbers, batch.text_numbers)
    assert torch.equal(part.text_numbers, batch.text_numbers[part.shard.rows])
