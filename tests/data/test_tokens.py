from dataclasses import replace

import numpy as np
import pytest
import torch

from bertrio.data.tokens import CHUNK, tokenise

ROWS = 57


@pytest.mark.parametrize("name", ["single", "cross", "bi"])
def test_padded_rows_are_bit_for_bit_what_the_tokenizer_itself_pads(make_frame, tokenizer, tasks, name):
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


def test_rows_are_the_same_however_many_are_tokenised_together(make_frame, tokenizer, tasks):
    frame = make_frame(1, 2 * CHUNK + 3)
    (whole,) = tokenise(frame, tasks["qqp"], tokenizer, 24)
    for row in (0, CHUNK - 1, CHUNK, 2 * CHUNK + 2):
        (alone,) = tokenise(frame.iloc[[row]], tasks["qqp"], tokenizer, 24)
        assert torch.equal(whole.padded(np.array([row]))["input_ids"], alone.padded(np.array([0]))["input_ids"])
