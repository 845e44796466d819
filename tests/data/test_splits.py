import numpy as np
import pandas as pd
import pytest

from bertrio.core.errors import UserError
from bertrio.data.splits import keep_share, make_splits, new_rows, sentence_groups
from bertrio.data.table import SPLITS, is_labelled

FRACTIONS = (0.7, 0.1, 0.2)
PAIR = ("text_a", "text_b")


def single(count, prefix="r", label=1.0):
    ids = [f"{prefix}{i}" for i in range(count)]
    return pd.DataFrame({"id": ids, "text": [f"text {name}" for name in ids], "label": label})


def pairs(count, sentences, seed=0, prefix="r"):
    """Return pairs of random sentences, some with white space around them and in capitals."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, sentences, size=(count, 2))
    frame = pd.DataFrame({"id": [f"{prefix}{i}" for i in range(count)]})
    frame["text_a"], frame["text_b"] = [f"s{a}" for a in drawn[:, 0]], [f" S{b}" for b in drawn[:, 1]]
    return frame.assign(label=rng.integers(0, 2, count).astype(float))


def split(tables, strategy, seed=0, task="sst", fractions=FRACTIONS):
    return make_splits(tables, strategy, fractions, seed, task, {name for name in tables if is_labelled(tables[name])})


def sentences_of(frame):
    return {text.strip().casefold() for name in frame.columns if name.startswith("text") for text in frame[name]}


def shares(splits):
    total = sum(map(len, splits.values()))
    return np.array([len(splits[split]) / total for split in SPLITS])


def test_official_splits_with_an_empty_test_if_missing():
    tables = {"train": single(5), "dev": single(2, "d")}
    splits = split(tables, "official")
    assert splits["train"] is tables["train"] and splits["dev"] is tables["dev"]
    assert len(splits["test"]) == 0 and list(splits["test"].columns) == ["id", "text", "label"]


@pytest.mark.parametrize("tables", [{"dev": single(5)}, {"train": single(5), "dev": single(0)}])
def test_official_without_train_or_dev_is_an_error(tables):
    with pytest.raises(UserError, match=r"task sst: found no \w+ rows.*data\.split\.tasks\.sst.*random"):
        split(tables, "official")


@pytest.mark.parametrize("strategy", ["random", "grouped"])
def test_every_row_is_in_one_split_of_the_requested_size(strategy):
    tables = {"train": single(700), "dev": single(200, "d"), "test": single(100, "t")}
    splits = split(tables, strategy)
    pooled, before = pd.concat(splits.values()), pd.concat(tables.values())
    assert sorted(pooled["id"]) == sorted(before["id"])
    assert pooled.set_index("id").loc[before["id"]]["text"].tolist() == before["text"].tolist()
    assert np.abs(shares(splits) - FRACTIONS).max() < 0.01
    assert all((frame["id"].str.startswith("d")).any() for frame in splits.values())


@pytest.mark.parametrize("strategy", ["random", "grouped"])
def test_splits_depend_on_seed_and_task(strategy):
    tables = {"train": single(300)}
    first, again, other_seed, other_task = (
        split(tables, strategy, seed, task)["dev"]["id"].tolist()
        for seed, task in [(1, "sst"), (1, "sst"), (2, "sst"), (1, "qqp")]
    )
    assert first == again and first != other_seed and first != other_task


@pytest.mark.parametrize("strategy", ["random", "grouped"])
def test_unlabelled_test_is_unchanged(strategy):
    tables = {"train": single(600), "dev": single(200, "d"), "test": single(50, "t", np.nan)}
    splits = split(tables, strategy)
    assert splits["test"] is tables["test"]
    assert abs(len(splits["train"]) - 700) <= 1 and abs(len(splits["dev"]) - 100) <= 1  # 0.7 to 0.1


def test_equal_ids_of_pooled_splits_become_unique():
    splits = split({"train": single(50), "dev": single(50)}, "random")
    ids = pd.concat(splits.values())["id"]
    assert ids.is_unique and set(ids) == {f"{split}-r{i}" for split in ("train", "dev") for i in range(50)}


@pytest.mark.parametrize("seed", range(5))
def test_no_sentence_is_in_two_grouped_splits(seed):
    tables = {"train": pairs(3000, 12000, seed)}
    splits = split(tables, "grouped", seed, "qqp")
    train, dev, test = (sentences_of(frame) for frame in splits.values())
    assert not (train & dev or train & test or dev & test)
    assert np.abs(shares(splits) - FRACTIONS).max() < 0.01


def test_too_large_group_goes_to_train_with_a_warning(capsys):
    frame = pairs(1000, 5000)
    frame.loc[:799, "text_a"] = "the same"
    splits = split({"train": frame}, "grouped", task="qqp")
    assert (splits["train"]["text_a"] == "the same").sum() == 800
    assert "qqp: grouped split has shares" in capsys.readouterr().err


def test_groups_are_connected_components():
    rows = [("a", "b b"), ("B  b ", "c"), ("d", "e"), ("E", "d"), ("f", "f")]
    frame = pd.DataFrame(rows, columns=["text_a", "text_b"]).assign(label=0.0)
    groups = sentence_groups(frame)
    assert groups[0] == groups[1] and groups[2] == groups[3] and len(set(groups)) == 3


@pytest.mark.parametrize("strategy", ["random", "grouped"])
@pytest.mark.parametrize(("rows", "fractions"), [(100, (0.8, 0.0, 0.2)), (2, FRACTIONS), (0, FRACTIONS)])
def test_too_few_rows_for_a_split_is_an_error(strategy, rows, fractions):
    with pytest.raises(UserError, match="task sst"):
        split({"train": single(rows)}, strategy, fractions=fractions)


def test_kept_share_is_rounded_up_nested_and_ordered():
    names = single(30)["id"].tolist()
    previous = set()
    for share, count in ((0.0, 0), (1e-6, 1), (0.1, 3), (0.11, 4), (1.0, 30)):
        kept = keep_share(single(30), share, 0, "sst-train")["id"].tolist()
        assert len(kept) == count and previous <= set(kept)
        assert kept == [name for name in names if name in set(kept)]
        previous = set(kept)


# Extra training rows


def pairs_of(prefix, *texts):
    rows = [(f"{prefix}-{number}", *pair, 1.0) for number, pair in enumerate(texts, start=1)]
    return pd.DataFrame(rows, columns=["id", *PAIR, "label"])


@pytest.fixture
def splits():
    return {
        "train": pairs_of("train", ("a", "b"), ("c", "d")),
        "dev": pairs_of("dev", ("e", "f"), ("a", "b")),
        "test": pairs_of("test", ("g", "h")).assign(label=np.nan),
    }


def test_extra_rows_of_other_splits_and_duplicates_are_left_out(splits):
    extra = pairs_of("extra", ("f", "e"), ("h", "g"), ("d", "c"), ("i", "j"), ("j", "i"), ("b", "a"), ("e", "i"))
    new, left_out = new_rows(splits, extra, PAIR, grouped=False)
    assert new.equals(extra.iloc[[3, 6]])
    assert dict(zip(left_out["id"], left_out["reason"], strict=True)) == {
        "extra-1": "also in dev", "extra-2": "also in test", "extra-3": "also in train", "extra-5": "given twice",
        "extra-6": "also in dev",
    }  # fmt: skip


def test_duplicates_ignore_case_and_white_space(splits):
    extra = pairs_of("extra", ("E", " f"), ("Straße e", "x"), ("STRASSE\n E", "X "))
    _, left_out = new_rows(splits, extra, PAIR, grouped=False)
    assert left_out["reason"].tolist() == ["also in dev", "given twice"]


def test_grouped_extra_rows_share_no_sentence_with_dev_or_test(splits):
    extra = pairs_of("extra", ("e", "i"), ("h", "j"), ("c", "i"))
    new, left_out = new_rows(splits, extra, PAIR, grouped=True)
    assert new["id"].tolist() == ["extra-3"]
    assert left_out["reason"].tolist() == ["shares a sentence with dev", "shares a sentence with test"]


def test_extra_ids_that_collide_are_changed(splits):
    new, _ = new_rows(splits, pairs_of("dev", ("i", "j"), ("k", "l")), PAIR, grouped=False)
    assert new["id"].tolist() == ["extra-dev-1", "extra-dev-2"]
    colliding = {**splits, "test": splits["test"].assign(id="extra-dev-1")}
    new, _ = new_rows(colliding, pairs_of("dev", ("i", "j")), PAIR, grouped=False)
    assert new["id"].tolist() == ["extra-extra-dev-1"]
