from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from bertrio.data import tokens
from bertrio.data.table import write_table
from bertrio.data.tokens import CHUNK, load_tokens, tokenise
from bertrio.model.tokenizer import load_tokenizer

ROWS = 57


@pytest.mark.parametrize("name", ["single", "cross", "bi"])
def test_padding_equals_that_of_the_tokenizer(make_frame, tokenizer, tasks, name):
    frame = make_frame(0, ROWS)
    task = tasks["sst"] if name == "single" else replace(tasks["qqp"], encoding=name)
    columns = {"single": [["text"]], "cross": [["text_a", "text_b"]], "bi": [["text_a"], ["text_b"]]}[name]
    tokenised = tokenise(frame, task, tokenizer, 24)
    for positions in (np.array([3, 50, 7, 7]), np.array([12]), np.arange(ROWS)):
        for sequences, texts in zip(tokenised, columns, strict=True):
            one_by_one = [tokenizer(*frame.loc[row, texts], truncation=True, max_length=24) for row in positions]
            expected = tokenizer.pad(one_by_one, return_tensors="pt")
            padded = sequences.padded(positions)
            assert set(padded) == set(expected)
            for field, value in padded.items():
                assert value.dtype == torch.int64 and torch.equal(value, expected[field])


def test_tokens_do_not_depend_on_chunks(make_frame, tokenizer, tasks):
    frame = make_frame(1, 2 * CHUNK + 3)
    (whole,) = tokenise(frame, tasks["qqp"], tokenizer, 24)
    for row in (0, CHUNK - 1, CHUNK, 2 * CHUNK + 2):
        (single,) = tokenise(frame.iloc[[row]], tasks["qqp"], tokenizer, 24)
        assert torch.equal(whole.padded(np.array([row]))["input_ids"], single.padded(np.array([0]))["input_ids"])


@pytest.mark.parametrize("encoding", ["cross", "bi"])
def test_tokens_are_cached_on_disk(make_frame, tokenizer, tasks, tmp_path, monkeypatch, encoding):
    frame, task = make_frame(2, CHUNK + 7), replace(tasks["qqp"], encoding=encoding)
    table, folder, positions = tmp_path / "train.parquet", tmp_path / "tokens", np.arange(CHUNK + 7)
    write_table(frame, table)
    cached, in_memory = load_tokens(table, task, tokenizer, 24, folder), tokenise(frame, task, tokenizer, 24)
    for sequences, expected in zip(cached, in_memory, strict=True):
        padded = sequences.padded(positions)
        assert all(torch.equal(value, padded[name]) for name, value in expected.padded(positions).items())
    load_tokens(table, task, tokenizer, 12, folder)
    write_table(frame.iloc[1:], table)
    assert len(load_tokens(table, task, tokenizer, 24, folder)[0].lengths) == len(frame) - 1
    monkeypatch.setattr(tokens, "encode", None)
    monkeypatch.setattr(tokens, "parquet_batches", None)  # no text is read
    assert len(load_tokens(table, task, tokenizer, 24, folder)[0].lengths) == len(frame) - 1


def test_concurrent_loads_tokenise_once(make_frame, tokenizer_folder, tasks, tmp_path):
    write_table(make_frame(3, 40), tmp_path / "dev.parquet")
    calls, encode = [], tokens.encode

    def load(_):
        return load_tokens(tmp_path / "dev.parquet", tasks["qqp"], load_tokenizer(tokenizer_folder), 24, tmp_path)

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(4) as pool:
        patch.setattr(tokens, "encode", lambda *args: calls.append(1) or encode(*args))
        loaded = list(pool.map(load, range(4)))
    assert len(calls) == 1 and all(part.lengths.tolist() == loaded[0][0].lengths.tolist() for (part,) in loaded)
