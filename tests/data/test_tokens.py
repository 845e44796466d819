import os
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from bertrio.data import tokens as module
from bertrio.data.table import write_table
from bertrio.data.tokens import CHUNK, KEPT, LEFT, TokenCache, tokenise
from bertrio.training.build import load_split

ROWS = 57
WORDS = ["good", "bad", "film", "question", "why"]


def make_frame(seed, rows=ROWS):
    rng = np.random.default_rng(seed)
    text = lambda: " ".join(rng.choice(WORDS, size=rng.integers(1, 30)))  # noqa: E731
    texts = {name: [text() for _ in range(rows)] for name in ("text", "text_a", "text_b")}
    return pd.DataFrame({"id": [f"q{i}" for i in range(rows)], **texts, "label": 1.0})


@pytest.fixture
def frame():
    return make_frame(0)


@pytest.fixture
def cache(frame, tokenizer, tmp_path):
    """A cache beside a split and a tokenizer on disk."""
    write_table(frame, tmp_path / "splits/qqp/train.parquet")
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    return TokenCache(tmp_path / "splits/qqp/train.parquet", tmp_path / "tokenizer", tmp_path / "tokens")


@pytest.fixture
def pair(tasks):
    return tasks["qqp"]


def encoded(task, encoding):
    return replace(task, encoding=encoding)


def files(cache):
    return sorted(path.name for path in cache.folder.iterdir())


def assert_equal(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        assert list(one.fields) == list(other.fields) and one.padding == other.padding
        arrays = [(one.starts, other.starts), (one.lengths, other.lengths)]
        for a, b in [*arrays, *((one.fields[name], other.fields[name]) for name in one.fields)]:
            assert a.dtype == b.dtype and np.array_equal(a, b)


def no_tokenizer(tokenizer):
    """Knows what the ids of `tokenizer` are padded with, and can't tokenise."""
    return SimpleNamespace(pad_token_id=tokenizer.pad_token_id)


@pytest.mark.parametrize("name", ["single", "cross", "bi"])
def test_padded_rows_are_bit_for_bit_what_the_tokenizer_itself_pads(frame, tokenizer, tasks, name):
    task = tasks["sst"] if name == "single" else encoded(tasks["qqp"], name)
    columns = {"single": [["text"]], "cross": [["text_a", "text_b"]], "bi": [["text_a"], ["text_b"]]}[name]
    found = tokenise(frame, task, tokenizer, 24)
    assert len(found) == len(columns)
    for at in (np.array([3, 50, 7, 7]), np.array([12]), np.arange(ROWS)):
        for sequences, texts in zip(found, columns):
            one_by_one = [tokenizer(*frame.loc[row, texts], truncation=True, max_length=24) for row in at]
            expected = tokenizer.pad(one_by_one, return_tensors="pt")
            padded = sequences.padded(at)
            assert set(padded) == set(expected)
            for field, value in padded.items():
                assert value.dtype == torch.int64 and torch.equal(value, expected[field])


def test_rows_are_the_same_however_many_are_tokenised_together(tokenizer, pair):
    frame = make_frame(1, 2 * CHUNK + 3)
    whole = tokenise(frame, pair, tokenizer, 24)
    for at in (0, CHUNK - 1, CHUNK, 2 * CHUNK + 2):
        alone = tokenise(frame.iloc[[at]], pair, tokenizer, 24)
        assert torch.equal(whole[0].padded(np.array([at]))["input_ids"], alone[0].padded(np.array([0]))["input_ids"])


def test_a_tokenizer_without_types_gives_batches_without_them(frame, tokenizer, pair, cache):
    without = lambda *texts, **options: tokenizer(*texts, return_token_type_ids=False, **options)  # noqa: E731
    without.pad_token_id = tokenizer.pad_token_id
    for found in (cache.sequences(frame, pair, without, 24), cache.sequences(frame, pair, without, 24)):
        assert set(found[0].padded(np.arange(3))) == {"input_ids", "attention_mask"}


def test_taken_rows_share_the_tokens(frame, tokenizer, pair):
    (whole,) = tokenise(frame, pair, tokenizer, 24)
    taken = whole.take(np.array([5, 2]))
    assert np.shares_memory(taken.fields["input_ids"], whole.fields["input_ids"])
    assert torch.equal(taken.padded(np.array([1, 0]))["input_ids"], whole.padded(np.array([2, 5]))["input_ids"])


@pytest.mark.parametrize("encoding", ["cross", "bi"])
def test_what_is_cached_is_what_was_made_and_is_not_made_again(frame, tokenizer, pair, cache, encoding):
    task = encoded(pair, encoding)
    made = tokenise(frame, task, tokenizer, 24)
    assert_equal(cache.sequences(frame, task, tokenizer, 24), made)
    assert_equal(cache.sequences(frame, task, no_tokenizer(tokenizer), 24), made)
    assert [name.endswith(".arrow") for name in files(cache)] == [True]


def test_anything_that_decides_the_tokens_makes_them_anew(frame, tokenizer, tasks, pair, cache, monkeypatch):
    keys = [cache._key(task, 24) for task in (pair, encoded(pair, "bi"), tasks["sst"])]
    keys += [cache._key(pair, 25)]
    for name in ("tokenizer.json", "tokenizer_config.json"):
        path = cache.tokenizer / name
        path.write_text(path.read_text() + " ")
        keys.append(cache._key(pair, 24))
    write_table(frame.assign(text_a=frame["text_a"] + " good"), cache.table)
    keys.append(cache._key(pair, 24))
    monkeypatch.setattr(module, "version", lambda package: "another")
    keys.append(cache._key(pair, 24))
    monkeypatch.setattr(module, "FORMAT", module.FORMAT + 1)
    keys.append(cache._key(pair, 24))
    assert len(set(keys)) == len(keys) == 9


def test_changed_rows_are_read_as_they_are_now(frame, tokenizer, pair, cache):
    cache.sequences(frame, pair, tokenizer, 24)
    other = make_frame(1)
    write_table(other, cache.table)
    assert_equal(cache.sequences(other, pair, tokenizer, 24), tokenise(other, pair, tokenizer, 24))


def test_a_damaged_file_is_never_believed_wherever_the_damage_is(frame, tokenizer, pair, cache):
    frame = frame.iloc[:5]
    made = cache.sequences(frame, pair, tokenizer, 24)
    path = cache.folder / files(cache)[0]
    whole, key = path.read_bytes(), cache._key(pair, 24)
    rng, rejected = np.random.default_rng(0), 0
    for at in range(0, len(whole), 3):
        flipped = bytes([whole[at] ^ 1 << int(rng.integers(8))])
        path.write_bytes(whole[:at] + flipped + whole[at + 1 :])
        found = module._read(path, key, tokenizer.pad_token_id)
        if found is None:
            rejected += 1
        else:  # what was hit does not matter, such as the filling between buffers
            assert_equal(found, made)
    assert rejected > len(whole) / 6


@pytest.mark.parametrize("content", [b"", b"not Arrow at all", "half", "zeros", "another key"])
def test_a_file_that_is_not_whole_or_not_ours_is_made_again(frame, tokenizer, pair, cache, content):
    made = cache.sequences(frame, pair, tokenizer, 24)
    path = cache.folder / files(cache)[0]
    whole = path.read_bytes()
    if content == "another key":
        module._write(path, "0" * 64, tokenise(make_frame(1), pair, tokenizer, 24))
    else:
        path.write_bytes({"half": whole[: len(whole) // 2], "zeros": bytes(len(whole))}.get(content, content))
    assert_equal(cache.sequences(frame, pair, tokenizer, 24), made)
    assert path.read_bytes() == whole


def test_where_no_file_can_be_written_rows_are_tokenised_every_time(frame, tokenizer, pair, cache):
    cache.folder.write_text("a file where the folder should be")
    for _ in range(2):
        assert_equal(cache.sequences(frame, pair, tokenizer, 24), tokenise(frame, pair, tokenizer, 24))


def test_a_write_that_fails_leaves_nothing_behind(frame, tokenizer, pair, cache, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.pa.ipc, "new_file", fail)
    assert_equal(cache.sequences(frame, pair, tokenizer, 24), tokenise(frame, pair, tokenizer, 24))
    assert files(cache) == []


def test_the_newest_files_of_a_split_stay_and_other_splits_keep_theirs(frame, tokenizer, pair, cache):
    write_table(frame, cache.table.with_name("dev.parquet"))
    dev = replace(cache, table=cache.table.with_name("dev.parquet"))
    dev.sequences(frame, pair, tokenizer, 24)
    for number, length in enumerate(range(10, 12 + KEPT)):
        cache.sequences(frame, pair, tokenizer, length)
        newest = max(cache.folder.glob("train-*"), key=lambda path: path.stat().st_mtime_ns)
        os.utime(newest, ns=(number, 10**18 + number))  # file systems may keep times too coarsely to tell these apart
    kept = [path.name for path in cache.folder.glob("train-*")]
    assert len(kept) == KEPT and len(files(cache)) == KEPT + 1
    for length in range(12, 12 + KEPT):
        assert f"train-{cache._key(pair, length)[:16]}.arrow" in kept


def test_what_a_killed_process_left_half_written_goes_once_it_is_old(frame, tokenizer, pair, cache):
    cache.sequences(frame, pair, tokenizer, 24)
    (written,) = files(cache)
    old, young, of_dev = (f".{name}" for name in (f"{written}.a1b2", f"{written}.c3d4", "dev-0123.arrow.e5f6"))
    for name in (old, young, of_dev):
        (cache.folder / name).write_bytes(b"half")
        at = time.time() - LEFT + (30 if name == young else -30)
        os.utime(cache.folder / name, (at, at))
    cache.sequences(frame, pair, tokenizer, 24)  # nothing has to be written for it
    assert files(cache) == sorted([young, of_dev, written])


def test_tokens_that_are_in_use_outlive_their_file(frame, tokenizer, pair, cache):
    made = cache.sequences(frame, pair, tokenizer, 24)
    mapped = cache.sequences(frame, pair, tokenizer, 24)
    (cache.folder / files(cache)[0]).unlink()
    assert_equal(mapped, made)


def test_a_split_is_tokenised_once_for_all_stages(frame, tokenizer, default_params, tmp_path, monkeypatch):
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    for task, columns in (("sst", ["text"]), ("qqp", ["text_a", "text_b"]), ("sts", ["text_a", "text_b"])):
        write_table(frame[["id", *columns, "label"]], tmp_path / "data/splits" / task / "train.parquet")
    load = lambda: load_split(default_params, "train", tmp_path / "data/splits", tmp_path / "tokenizer")  # noqa: E731
    first = load()
    assert {path.parent.name for path in (tmp_path / "data/tokens").rglob("train-*.arrow")} == {"sst", "qqp", "sts"}
    monkeypatch.setattr(module, "tokenise", lambda *_: pytest.fail("tokenised again"))
    again = load()
    for task, rows in first.items():
        one, other = (of.batch(np.arange(ROWS)) for of in (rows, again[task]))
        assert torch.equal(one.labels, other.labels)
        assert all(torch.equal(value, other.inputs[0][name]) for name, value in one.inputs[0].items())
