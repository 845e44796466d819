from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from bertrio.core.runtime import generator
from bertrio.data.batches import BatchStream, Rows, similar_length_batches
from bertrio.data.sources import cs224n, sample
from bertrio.model.tokenizer import build_tokenizer, load_tokenizer

SIZES = {"sst": 16, "qqp": 32, "sts": 16}  # as in params.yaml


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


def ids_of(tokens, index):
    """The token ids of one row without its padding."""
    return tokens["input_ids"][index][tokens["attention_mask"][index] == 1].tolist()


def a_pass(stream):
    """The row positions of one pass, batch by batch."""
    return [next(stream).rows.tolist() for _ in range(len(stream))]


def flat(batches):
    return [row for batch in batches for row in batch]


def test_every_row_comes_exactly_once_and_only_one_batch_is_small():
    lengths = np.random.default_rng(1).integers(3, 60, 1003)
    batches = similar_length_batches(lengths, 8, generator(1, "x"))
    assert sorted(np.concatenate(batches)) == list(range(1003))
    assert sorted(map(len, batches))[:2] == [3, 8]


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


def test_a_batch_holds_the_rows_padded_with_their_mask_and_types(rows, tokenizer):
    batch = rows.batch(np.array([3, 10, 7]))
    (tokens,) = batch.inputs
    assert tokens["input_ids"].shape == (3, rows.lengths[[3, 10, 7]].max())
    assert tokens["attention_mask"].sum(dim=1).tolist() == rows.lengths[[3, 10, 7]].tolist()
    assert (tokens["input_ids"][tokens["attention_mask"] == 0] == tokenizer.pad_token_id).all()
    assert set(tokens["token_type_ids"].unique().tolist()) == {0, 1}
    assert batch.labels.tolist() == rows.label_values[[3, 10, 7]].tolist()
    assert batch.labels.dtype == torch.float32


def test_long_pairs_are_cut_to_max_length_and_keep_both_sentences(rows, tokenizer):
    assert rows.lengths.max() == 48
    (tokens,) = rows.batch(np.array([int(rows.lengths.argmax())])).inputs
    assert (tokens["input_ids"] == tokenizer.sep_token_id).sum() == 2


def test_inference_goes_through_every_row_once_the_longest_first(rows):
    batches = list(rows.sorted_batches(32))
    assert sorted(np.concatenate([batch.rows for batch in batches])) == list(range(len(rows)))
    widths = [batch.inputs[0]["input_ids"].shape[1] for batch in batches]
    assert widths == sorted(widths, reverse=True)


def test_rows_without_labels_make_batches_without_labels(tokenizer, tasks):
    frame = pd.DataFrame({"id": ["a"], "text": ["good"], "label": [np.nan]})
    assert Rows(frame, tasks["sst"], tokenizer, 16).batch(np.array([0])).labels is None


def test_taking_rows_takes_all_that_belongs_to_them(rows):
    taken = rows.take(np.array([5, 2]))
    assert taken.ids.tolist() == ["q5", "q2"]
    for name, value in taken.batch(np.array([0, 1])).inputs[0].items():
        assert torch.equal(value, rows.batch(np.array([5, 2])).inputs[0][name])


def test_padding_leaves_every_sequence_as_the_tokenizer_made_it(frame, rows, bi_rows, tokenizer, tasks):
    at = np.array([12, 3, 44, 7])
    single = Rows(frame.rename(columns={"text_a": "text"}), tasks["sst"], tokenizer, 24)
    first, second = (frame[column].tolist() for column in ("text_a", "text_b"))
    alone = lambda text: tokenizer(text, truncation=True, max_length=24)["input_ids"]  # noqa: E731
    pair = lambda *texts: tokenizer(*texts, truncation=True, max_length=48)["input_ids"]  # noqa: E731
    for index, row in enumerate(at):
        assert [ids_of(tokens, index) for tokens in single.batch(at).inputs] == [alone(first[row])]
        assert [ids_of(tokens, index) for tokens in rows.batch(at).inputs] == [pair(first[row], second[row])]
        assert [ids_of(tokens, index) for tokens in bi_rows.batch(at).inputs] == [alone(first[row]), alone(second[row])]


def test_both_inputs_of_a_bi_batch_are_of_the_same_rows_and_padded_each_to_its_own_longest(frame, bi_rows, tokenizer):
    stream = BatchStream(bi_rows, 16, generator(1, "a"))
    columns = [frame[column].tolist() for column in ("text_a", "text_b")]
    widths = []
    for batch in [next(stream) for _ in range(len(stream))]:
        assert len(batch.inputs) == 2
        assert batch.labels.tolist() == frame["label"].to_numpy()[batch.rows].tolist()
        for tokens, texts in zip(batch.inputs, columns):
            expected = [tokenizer(texts[row], truncation=True, max_length=24)["input_ids"] for row in batch.rows]
            assert [ids_of(tokens, index) for index in range(len(expected))] == expected
            assert tokens["input_ids"].shape[1] == max(map(len, expected)) <= 24
            assert (tokens["token_type_ids"] == 0).all()
        widths.append([tokens["input_ids"].shape[1] for tokens in batch.inputs])
    assert any(first != second for first, second in widths)


def test_the_length_of_a_bi_encoded_row_is_that_of_both_sentences_together(bi_rows):
    batch = bi_rows.batch(np.arange(len(bi_rows)))
    assert (sum(tokens["attention_mask"].sum(dim=1) for tokens in batch.inputs)).tolist() == bi_rows.lengths.tolist()


def test_bi_encoded_rows_can_be_taken_and_inferred_too(bi_rows):
    taken = bi_rows.take(np.array([5, 2])).batch(np.array([0, 1]))
    for part, whole in zip(taken.inputs, bi_rows.batch(np.array([5, 2])).inputs):
        assert all(torch.equal(part[name], whole[name]) for name in whole)
    assert sorted(flat(batch.rows for batch in bi_rows.sorted_batches(32))) == list(range(len(bi_rows)))


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


def test_rows_drawn_once_still_come_in_a_new_order_every_pass_that_the_seed_alone_decides(rows):
    one, same, other = (BatchStream(rows, 16, generator(seed, "a"), 50, redraw=False) for seed in (1, 1, 2))
    passes = [a_pass(one), a_pass(one)]
    assert [a_pass(same), a_pass(same)] == passes
    assert passes[0] != passes[1]
    assert set(flat(a_pass(other))) != set(flat(passes[0]))


@pytest.mark.parametrize("cap", [0, -3])
def test_a_cap_below_one_is_an_error_that_says_so(rows, cap):
    with pytest.raises(ValueError, match=f"cap: found {cap}, expected 1 or more"):
        BatchStream(rows, 16, generator(1, "a"), cap)


def width_of(batch):
    """The longest sequence of a batch as it stands in memory."""
    return max(tokens["input_ids"].shape[1] for tokens in batch.inputs)


def padding_waste(rows, size):
    """The share of a training pass's tokens that are padding."""
    stream = BatchStream(rows, size, generator(1, f"batches {rows.task.name}"))
    padded = sum(width_of(batch) * len(batch.rows) for batch in (next(stream) for _ in range(len(stream))))
    return 1 - rows.lengths.sum() / padded


@pytest.fixture
def sample_rows(default_params, tasks, tmp_path):
    """The embedded data set, smaller than by default."""
    frames = {name: sample.generate(name, "train", 3000, 0, 0.04) for name in tasks}
    texts = [text for name, task in tasks.items() for column in task.text_columns for text in frames[name][column]]
    tokenizer = build_tokenizer(default_params.encoder, texts, tmp_path)
    return {name: Rows(frames[name], task, tokenizer, 128) for name, task in tasks.items()}


@pytest.fixture
def real_rows(shared, default_params, tasks):
    """The course's training rows."""
    data = default_params.data.model_copy(update={"source": "cs224n", "path": str(shared / "data/cs224n")})
    frames = cs224n.load_tasks(data, tasks).tables
    tokenizer = load_tokenizer(shared / "models/all-MiniLM-L6-v2")
    return {name: Rows(frames[name]["train"], task, tokenizer, 128) for name, task in tasks.items()}


def test_little_of_a_pass_over_the_sample_is_padding(sample_rows):
    for name, rows in sample_rows.items():
        assert padding_waste(rows, SIZES[name]) < 0.05, name


@pytest.mark.shared
def test_little_of_a_pass_over_the_real_data_is_padding(real_rows):
    for name, rows in real_rows.items():
        assert padding_waste(rows, SIZES[name]) < 0.05, name


def test_of_pairs_encoded_apart_the_longer_text_decides_and_no_order_by_both_wastes_less(bi_rows):
    def padded(rows):
        stream = BatchStream(rows, 8, generator(1, "x"))
        passes = [next(stream).inputs for _ in range(10 * len(stream))]
        return sum(tokens["input_ids"].numel() for inputs in passes for tokens in inputs)

    by_longer = padded(bi_rows)
    bi_rows.widths = bi_rows.lengths
    assert by_longer < 0.98 * padded(bi_rows)


def test_a_batch_in_one_piece_is_itself_and_nothing_is_copied(rows):
    batch = rows.batch(np.arange(5))
    assert batch.pieces(1)[0] is batch


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
