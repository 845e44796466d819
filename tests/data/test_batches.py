import numpy as np
import pandas as pd
import pytest
import torch

from bertrio.data.batches import BatchStream, Rows, similar_length_batches
from bertrio.runtime import generator


@pytest.fixture
def rows(tokenizer, tasks):
    rng = np.random.default_rng(0)
    words = ["good", "bad", "film", "question", "why"]
    text = lambda: " ".join(rng.choice(words, size=rng.integers(1, 30)))  # noqa: E731
    frame = pd.DataFrame({"id": [f"q{i}" for i in range(203)], "text_a": [text() for _ in range(203)]})
    frame["text_b"], frame["label"] = [text() for _ in range(203)], rng.integers(0, 2, 203).astype(float)
    return Rows(frame, tasks["qqp"], tokenizer, max_length=48)


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
