from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from bertrio.data.tokens import CHUNK, tokenise

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
def pair(tasks):
    return tasks["qqp"]


@pytest.mark.parametrize("name", ["single", "cross", "bi"])
def test_padded_rows_are_bit_for_bit_what_the_tokenizer_itself_pads(frame, tokenizer, tasks, name):
    task = tasks["sst"] if name == "single" else replace(tasks["qqp"], encoding=name)
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
