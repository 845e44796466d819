import numpy as np
import pandas as pd
import pytest

from bertrio.data.splits import join_train

PAIR = ("text_a", "text_b")


def pairs(prefix, *texts):
    rows = [(f"{prefix}-{number}", *pair, 1.0) for number, pair in enumerate(texts, start=1)]
    return pd.DataFrame(rows, columns=["id", *PAIR, "label"])


@pytest.fixture
def splits():
    return {
        "train": pairs("train", ("a", "b"), ("c", "d")),
        "dev": pairs("dev", ("e", "f"), ("a", "b")),
        "test": pairs("test", ("g", "h")).assign(label=np.nan),
    }


def test_more_rows_stand_behind_those_of_train_and_dev_and_test_stay_as_they_are(splits):
    joined, left_out = join_train(splits, pairs("extra", ("i", "j"), ("k", "l")), PAIR, grouped=True)
    assert joined["train"]["text_a"].tolist() == ["a", "c", "i", "k"] and left_out.empty
    assert joined["train"]["id"].is_unique
    assert joined["dev"] is splits["dev"] and joined["test"] is splits["test"]


def test_rows_that_stand_in_a_split_or_come_twice_are_left_out_with_the_gravest_reason(splits):
    more = pairs("extra", ("f", "e"), ("h", "g"), ("d", "c"), ("i", "j"), ("j", "i"), ("b", "a"), ("e", "i"))
    joined, left_out = join_train(splits, more, PAIR, grouped=False)
    assert joined["train"]["id"].tolist() == ["train-1", "train-2", "extra-4", "extra-7"]
    assert dict(zip(left_out["id"], left_out["reason"], strict=True)) == {
        "extra-1": "also in dev",
        "extra-2": "also in test",
        "extra-3": "also in train",
        "extra-5": "given twice",
        "extra-6": "also in dev",
    }


def test_case_and_white_space_make_no_new_row(splits):
    extra = pairs("extra", ("E", " f"), ("Straße e", "x"), ("STRASSE\n E", "X "))
    _, left_out = join_train(splits, extra, PAIR, grouped=False)
    assert left_out["reason"].tolist() == ["also in dev", "given twice"]


def test_where_splits_are_grouped_one_sentence_of_dev_or_test_is_enough_and_of_train_it_is_not(splits):
    more = pairs("extra", ("e", "i"), ("h", "j"), ("c", "i"))
    joined, left_out = join_train(splits, more, PAIR, grouped=True)
    assert joined["train"]["id"].tolist() == ["train-1", "train-2", "extra-3"]
    assert left_out["reason"].tolist() == ["shares a sentence with dev", "shares a sentence with test"]


def test_ids_that_the_splits_use_as_well_are_changed(splits):
    joined, _ = join_train(splits, pairs("dev", ("i", "j"), ("k", "l")), PAIR, grouped=False)
    assert joined["train"]["id"].tolist()[2:] == ["extra-dev-1", "extra-dev-2"]
    taken = {**splits, "test": splits["test"].assign(id="extra-dev-1")}
    joined, _ = join_train(taken, pairs("dev", ("i", "j")), PAIR, grouped=False)
    assert joined["train"]["id"].tolist()[2:] == ["extra-extra-dev-1"]
